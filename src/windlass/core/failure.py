"""What went wrong in a handler, as data: a failing handler is never an exception inside the engine.

Owns the categories and which of them are worth another try. It does not know when that try comes: see `retry`.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Category(StrEnum):
    """Who or what is to blame; decides whether a retry makes sense when nobody said so."""

    USER_CODE = "USER_CODE"
    DATA_QUALITY = "DATA_QUALITY"
    INFRASTRUCTURE = "INFRASTRUCTURE"
    CONFIGURATION = "CONFIGURATION"
    TIMEOUT = "TIMEOUT"
    CANCELLED = "CANCELLED"


RETRYABLE = frozenset({Category.USER_CODE, Category.INFRASTRUCTURE, Category.TIMEOUT})


# Said by our own means: beside the message they tell nothing.
PLAIN = frozenset({"Fail", "Retry", "CANCELLED"})


def told(reason: str, message: str) -> str:
    """Word and sentence in one line, each where it adds something."""
    return ": ".join(dict.fromkeys(part for part in ("" if reason in PLAIN else reason, message) if part)) or reason


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """One failure. `reason` is a stable word for machines, `message` a sentence for people."""

    category: Category
    message: str
    reason: str = ""
    trace: str = ""
    retryable: bool | None = None
    retry_after_s: float | None = None

    @property
    def line(self) -> str:
        """What a person reads: `ZeroDivisionError: division by zero`."""
        return told(self.reason, self.message)

    @property
    def may_retry(self) -> bool:
        """An explicit `retryable` wins over what the category says."""
        return self.category in RETRYABLE if self.retryable is None else self.retryable
