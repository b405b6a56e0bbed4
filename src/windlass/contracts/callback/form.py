"""What the engine answers to a callback, in the words of the contract; what a worker sends is in `wire.envelope`."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from windlass.core.callback import Refusal
from windlass.core.check import PAYLOAD_MAX_BYTES, check_name, clean_json, clean_text
from windlass.core.error import (
    Forbidden,
    Invalid,
    LeaseLost,
    NotFound,
    TooLarge,
    Unauthenticated,
    Unavailable,
    WindlassError,
)
from windlass.core.text import TEXT_MAX
from windlass.wire.status import told_message

FinalState = Literal["SUCCEEDED", "FAILED", "CANCELLED"]
RETRY_AFTER_S = 1


class StartedAnswer(Struct, frozen=True, rename="camel", kw_only=True):
    """Heard. `workerId` is who was the first to say so of this attempt, if that was another: then it is run already."""

    acknowledged: bool = True
    server_time: datetime
    worker_id: str | UnsetType = UNSET


class HeartbeatAnswer(Struct, frozen=True, rename="camel", kw_only=True):
    """Heard. A cancel has a reason; a token comes when less than half of the old one's life is left."""

    acknowledged: bool = True
    should_cancel: bool = False
    cancel_reason: str | UnsetType = UNSET
    server_time: datetime
    task_token: str | UnsetType = UNSET
    token_expires_at: datetime | UnsetType = UNSET


class CompletedAnswer(Struct, frozen=True, rename="camel", kw_only=True):
    """Heard. `finalState` is what the engine made of the report, also when another attempt follows."""

    acknowledged: bool = True
    final_state: FinalState
    server_time: datetime


class RefusedAnswer(Struct, frozen=True, rename="camel", kw_only=True):
    """Why not. `error` is a stable word, `message` is for people."""

    error: str
    message: str
    state: str | UnsetType = UNSET
    expected_attempt: int | UnsetType = UNSET
    received_attempt: int | UnsetType = UNSET


def refused(error: WindlassError) -> tuple[int, RefusedAnswer, dict[str, str]]:
    """Status, body and headers of a refusal."""
    match error:
        case LeaseLost():
            return _lost(error)
        case Unauthenticated():
            return 401, RefusedAnswer(error="invalid_token", message=error.message), {"www-authenticate": "Bearer"}
        case Forbidden():
            return 403, RefusedAnswer(error="token_scope", message=error.message), {}
        case TooLarge():
            return 413, RefusedAnswer(error="payload_too_large", message=error.message), {}
        case Invalid():
            return 400, RefusedAnswer(error="invalid_argument", message=error.message), {}
        case NotFound():
            return 404, RefusedAnswer(error="task_not_found", message=error.message), {}
        case Unavailable():
            refusal = RefusedAnswer(error="unavailable", message=told_message(error))
            return 503, refusal, {"retry-after": str(RETRY_AFTER_S)}
    return 500, RefusedAnswer(error="internal", message="something is wrong on the server's side"), {}


def _lost(error: LeaseLost) -> tuple[int, RefusedAnswer, dict[str, str]]:
    told: dict[str, Any] = error.details
    refusal = told.get("refusal", Refusal.ATTEMPT_MISMATCH)
    body = RefusedAnswer(
        error=str(refusal),
        message=error.message,
        state=str(told["state"]).upper() if "state" in told else UNSET,
        expected_attempt=told.get("expected_attempt", UNSET),
        received_attempt=told.get("received_attempt", UNSET),
    )
    return 410 if refusal is Refusal.TASK_EXPIRED else 409, body, {}


# --------------------------------------------------------------------------------------------- what is kept


def checked_worker(name: str) -> str:
    check_name("workerId", name)
    return name


def kept_json(field: str, content: msgspec.Raw | UnsetType) -> object:
    """JSON of a worker as it can be kept among the history, or UNSET. What is too long is kept as text, and cut."""
    if isinstance(content, UnsetType):
        return UNSET
    text = bytes(content)
    if len(text) > PAYLOAD_MAX_BYTES:
        return clean_text(field, text[: TEXT_MAX * 4].decode("utf-8", "replace"))
    try:
        return clean_json(msgspec.json.decode(text))
    except (msgspec.DecodeError, RecursionError):
        raise Invalid("is no JSON that can be kept", field=field) from None
