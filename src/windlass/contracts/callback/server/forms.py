"""The answers to callbacks. The requests are in `wire.envelope`."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from windlass.contracts.callback.rules import Refusal
from windlass.contracts.callback.wire.status import STATUS
from windlass.core.text import TEXT_MAX
from windlass.core.validation import PAYLOAD_MAX_BYTES, clean_json, clean_text
from windlass.errors import Invalid, LeaseLost, WindlassError
from windlass.net.status import known_code, public_message

FinalState = Literal["SUCCEEDED", "FAILED", "CANCELLED"]


class StartedAnswer(Struct, frozen=True, rename="camel", kw_only=True):
    """The start was recorded. `workerId` is set if another worker started this attempt first and already runs it."""

    acknowledged: bool = True
    server_time: datetime
    worker_id: str | UnsetType = UNSET


class HeartbeatAnswer(Struct, frozen=True, rename="camel", kw_only=True):
    """The heartbeat was recorded. A cancel has a reason. A new token comes when the old one is past half its life."""

    acknowledged: bool = True
    should_cancel: bool = False
    cancel_reason: str | UnsetType = UNSET
    server_time: datetime
    task_token: str | UnsetType = UNSET
    token_expires_at: datetime | UnsetType = UNSET


class CompletedAnswer(Struct, frozen=True, rename="camel", kw_only=True):
    """The report was recorded. `finalState` is the outcome of this attempt, even if another attempt follows."""

    acknowledged: bool = True
    final_state: FinalState
    server_time: datetime


class RefusedAnswer(Struct, frozen=True, rename="camel", kw_only=True):
    """The request was refused. `error` is a stable code; `message` is for people."""

    error: str
    message: str
    state: str | UnsetType = UNSET
    expected_attempt: int | UnsetType = UNSET
    received_attempt: int | UnsetType = UNSET


def refused(error: WindlassError) -> tuple[int, RefusedAnswer]:
    """The status and body of an error."""
    status, word = STATUS[known_code(error)]
    if not isinstance(error, LeaseLost):
        return status, RefusedAnswer(error=word, message=public_message(error))
    details: dict[str, Any] = error.details
    refusal = details.get("refusal", Refusal.ATTEMPT_MISMATCH)
    body = RefusedAnswer(
        error=str(refusal),
        message=error.message,
        state=str(details["state"]).upper() if "state" in details else UNSET,
        expected_attempt=details.get("expected_attempt", UNSET),
        received_attempt=details.get("received_attempt", UNSET),
    )
    return 410 if refusal is Refusal.TASK_EXPIRED else status, body


def plain_error(_status: int, code: str, message: str) -> RefusedAnswer:
    return RefusedAnswer(error=code, message=message)


def kept_json(field: str, content: msgspec.Raw) -> object:
    """JSON of a worker in the form that the history stores. JSON that is too long becomes shortened text."""
    text = bytes(content)
    if len(text) > PAYLOAD_MAX_BYTES:
        return clean_text(field, text[: TEXT_MAX * 4].decode("utf-8", "replace"))
    try:
        return clean_json(msgspec.json.decode(text))
    except (msgspec.DecodeError, RecursionError):
        raise Invalid("is not JSON that can be stored", field=field) from None
