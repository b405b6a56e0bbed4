"""What carries wake-ups to workers: which carriers there are, what addresses they have, and what a queue is called at
one where nobody gave it an address: the same for senders and workers, and never the same for two queues.

A new carrier is a row here, and a driver (see `queues.driver`). How one is reached is not known here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from hashlib import sha256
from typing import Literal, NamedTuple, get_args

from windlass.core.check import check_text, is_url
from windlass.core.error import Invalid

CarrierName = Literal["postgres", "nats", "sqs"]
POSTGRES: CarrierName = "postgres"
ADDRESS_MAX = 500
SUBJECTS = "windlass.wakeup"
SQS_NAME_MAX = 80
_SUBJECT = re.compile(r"[^\s.*>]+(\.[^\s.*>]+)*")
_SQS_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}")
_PLAIN = re.compile(r"[A-Za-z0-9-]{1,30}")


def word_of(name: str) -> str:
    """A name in letters, digits and dashes. One that has others, or is long, is told apart by a part of its hash."""
    if _PLAIN.fullmatch(name):
        return name
    readable = re.sub(r"[^A-Za-z0-9-]+", "-", name)[:15]
    return f"{readable}_{sha256(name.encode()).hexdigest()[:12]}"


def subject_of(namespace: str, queue: str) -> str:
    """A subject of NATS."""
    return f"{SUBJECTS}.{word_of(namespace)}.{word_of(queue)}"


def sqs_name_of(namespace: str, queue: str) -> str:
    return f"windlass_{word_of(namespace)}_{word_of(queue)}"[:SQS_NAME_MAX]


class Carrier(NamedTuple):
    """`made` is the address of a queue that was given none, `fits` whether one that was given can be meant, and `must`
    what is said if not."""

    made: Callable[[str, str], str]
    fits: Callable[[str], object]
    must: str


CARRIERS: dict[CarrierName, Carrier] = {
    "postgres": Carrier(lambda _, __: "", lambda _: False, "PostgreSQL carries wake-ups by the name of the queue"),
    "nats": Carrier(subject_of, _SUBJECT.fullmatch, "must be a subject without wildcards"),
    "sqs": Carrier(
        sqs_name_of, lambda text: is_url(text) or _SQS_NAME.fullmatch(text), "must be the name or the URL of a queue"
    ),
}
assert tuple(CARRIERS) == get_args(CarrierName), CARRIERS


def check_carrier(field: str, name: str) -> None:
    if name not in CARRIERS:
        raise Invalid(f"must be {', '.join(CARRIERS)}", field=field)


def check_address(field: str, name: CarrierName, address: str) -> None:
    check_text(field, address, ADDRESS_MAX)
    if not CARRIERS[name].fits(address):
        raise Invalid(CARRIERS[name].must, field=field)


def address_at(name: CarrierName, given: str | None, namespace: str, queue: str) -> str:
    """Where the wake-ups of a queue go."""
    return CARRIERS[name].made(namespace, queue) if given is None else given
