"""What a queue is called at its carrier, where nobody gave it an address: the same on both sides, and never the same
for two queues."""

from __future__ import annotations

import re
from hashlib import sha256

from windlass.core.delivery import Wakeup

SUBJECTS = "windlass.wakeup"
STREAM = "WINDLASS_WAKEUPS"
SQS_NAME_MAX = 80
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


def durable_of(subject: str) -> str:
    """The consumer that the workers of a queue share."""
    return "windlass_" + word_of(subject)


def sqs_name_of(namespace: str, queue: str) -> str:
    return f"windlass_{word_of(namespace)}_{word_of(queue)}"[:SQS_NAME_MAX]


def address_of(wakeup: Wakeup, namespace: str, queue: str) -> str:
    """Where the wake-ups of a queue go; empty for PostgreSQL, which knows queues by their names."""
    if wakeup.address is not None:
        return wakeup.address
    match wakeup.carrier:
        case "nats":
            return subject_of(namespace, queue)
        case "sqs":
            return sqs_name_of(namespace, queue)
    return ""
