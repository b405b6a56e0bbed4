"""The failure of a handler, as data: a failing handler is never an exception inside the engine.

Owns the categories and which of them are retried. `retry` decides when.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec
from msgspec.structs import force_setattr

from windlass.core.text import REASON_MAX, TEXT_MAX, clean, clean_middle


class Category(StrEnum):
    """The cause of a failure. Decides whether to retry, unless `retryable` is set."""

    USER_CODE = "USER_CODE"
    DATA_QUALITY = "DATA_QUALITY"
    INFRASTRUCTURE = "INFRASTRUCTURE"
    CONFIGURATION = "CONFIGURATION"
    TIMEOUT = "TIMEOUT"
    CANCELLED = "CANCELLED"


RETRYABLE = frozenset({Category.USER_CODE, Category.INFRASTRUCTURE, Category.TIMEOUT})


# Reasons that Windlass sets itself: they add nothing to the message.
PLAIN = frozenset({"Fail", "Retry", "CANCELLED"})


def reason_and_message(reason: str, message: str) -> str:
    """Reason and message in one line, each where it adds something."""
    return ": ".join(dict.fromkeys(part for part in ("" if reason in PLAIN else reason, message) if part)) or reason


_TEXTS = (("message", TEXT_MAX, clean), ("reason", REASON_MAX, clean), ("trace", TEXT_MAX, clean_middle))


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """One failure. `reason` is a stable word for programs, `message` a sentence for people. Its texts are cleaned, so
    that they can be stored and sent."""

    category: Category
    message: str
    reason: str = ""
    trace: str = ""
    retryable: bool | None = None
    retry_after_s: float | None = None

    def __post_init__(self) -> None:
        for name, longest, cut in _TEXTS:
            text = getattr(self, name)
            if isinstance(text, str):
                force_setattr(self, name, cut(text, longest))

    @property
    def line(self) -> str:
        """For people: `ZeroDivisionError: division by zero`."""
        return reason_and_message(self.reason, self.message)

    @property
    def may_retry(self) -> bool:
        """An explicit `retryable` wins over the category."""
        return self.category in RETRYABLE if self.retryable is None else self.retryable
