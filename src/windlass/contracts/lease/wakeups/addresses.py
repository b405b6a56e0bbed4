"""The carriers of wake-ups, the form of their addresses, and the default address of a queue.

Senders and workers derive the same default address, and two queues never share one. A new carrier is a row here and a
driver (see `carriers.drivers`). This module does not know how a carrier is reached.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from hashlib import sha256
from typing import Literal, NamedTuple, get_args

from windlass.core.validation import is_url

CarrierName = Literal["postgres", "nats", "sqs"]
POSTGRES: CarrierName = "postgres"
ADDRESS_MAX = 500
SUBJECTS = "windlass.wakeup"
SQS_NAME_MAX = 80
_SUBJECT = re.compile(r"[^\s.*>]+(\.[^\s.*>]+)*")
_SQS_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}")
_PLAIN = re.compile(r"[A-Za-z0-9-]{1,30}")


def word_of(name: str) -> str:
    """A name in letters, digits and dashes. A name with other characters, or a long one, gets a part of its hash."""
    if _PLAIN.fullmatch(name):
        return name
    readable = re.sub(r"[^A-Za-z0-9-]+", "-", name)[:15]
    return f"{readable}_{sha256(name.encode()).hexdigest()[:12]}"


def subject_of(namespace: str, queue: str) -> str:
    """The NATS subject of a queue."""
    return f"{SUBJECTS}.{word_of(namespace)}.{word_of(queue)}"


def sqs_name_of(namespace: str, queue: str) -> str:
    return f"windlass_{word_of(namespace)}_{word_of(queue)}"[:SQS_NAME_MAX]


class Carrier(NamedTuple):
    """The default address of a queue, the check of a configured address, and the error if it does not fit."""

    default_address: Callable[[str, str], str]
    fits: Callable[[str], object]
    error: str


CARRIERS: dict[CarrierName, Carrier] = {
    "postgres": Carrier(lambda _, __: "", lambda _: False, "must be empty: PostgreSQL carries wake-ups by queue name"),
    "nats": Carrier(subject_of, _SUBJECT.fullmatch, "must be a subject without wildcards"),
    "sqs": Carrier(
        sqs_name_of, lambda text: is_url(text) or _SQS_NAME.fullmatch(text), "must be the name or the URL of a queue"
    ),
}
assert tuple(CARRIERS) == get_args(CarrierName), CARRIERS
