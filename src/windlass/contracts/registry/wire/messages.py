"""Converts messages of the registry contract to and from our records. Knows the proto and the records, not the caller.

A workflow run is a task, a workflow type its kind, a task queue its queue. Fields that only this wire has (the
caller's own id, context, version, final errors) are kept in the `wire` column of the task.
"""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
from google.protobuf.timestamp_pb2 import Timestamp

from windlass.contracts.registry.wire import kagzi_pb2 as pb
from windlass.core.failure import Category, Failure
from windlass.core.payload_reference import is_reference
from windlass.core.position import Position
from windlass.core.retry import Policy
from windlass.core.states import State
from windlass.core.task import Outcome, Task
from windlass.core.validation import PAYLOAD_MAX_BYTES, check_payload, check_text
from windlass.errors import Invalid
from windlass.net.ids import parse_id
from windlass.net.page_token import position_bytes, read_position

DEFAULT_VERSION = "1"
PAGE_DEFAULT, PAGE_MAX = 20, 100
ATTEMPTS_UNLIMITED = 1_000_000
MESSAGE_MAX = 64 * 1024
EXHAUSTED = "Worker died, retries exhausted"
DEFAULT_POLICY = Policy(max_attempts=5, retry_delay_s=1.0, retry_factor=2.0, retry_delay_max_s=60.0)
SECONDS_MAX = 10 * 365 * 86400.0

STATUS: dict[State, pb.WorkflowStatus] = {
    State.BLOCKED: pb.WORKFLOW_STATUS_PENDING,
    State.QUEUED: pb.WORKFLOW_STATUS_PENDING,
    State.RUNNING: pb.WORKFLOW_STATUS_RUNNING,
    State.SLEEPING: pb.WORKFLOW_STATUS_SLEEPING,
    State.PARKED: pb.WORKFLOW_STATUS_SLEEPING,
    State.SUCCEEDED: pb.WORKFLOW_STATUS_COMPLETED,
    State.FAILED: pb.WORKFLOW_STATUS_FAILED,
    State.CANCELLED: pb.WORKFLOW_STATUS_CANCELLED,
    State.SKIPPED: pb.WORKFLOW_STATUS_CANCELLED,
}
_COUNTED = frozenset({Outcome.FAILED, Outcome.LOST, Outcome.TIMED_OUT})


class Extra(msgspec.Struct, frozen=True, omit_defaults=True):
    """Fields of a run that only this wire has."""

    workflow_id: str = ""
    context: msgspec.Raw = msgspec.Raw()
    version: str = DEFAULT_VERSION
    non_retryable_errors: tuple[str, ...] = ()


_decode_extra = msgspec.json.Decoder(Extra).decode


def extra_of(wire: bytes | None) -> Extra:
    """Reads the extra fields. A run that was submitted another way has none."""
    try:
        return Extra() if wire is None else _decode_extra(wire)
    except msgspec.MsgspecError:
        return Extra()


# --------------------------------------------------------------------------------------------- fields


def read_id(field: str, text: str, prefix: str = "task") -> UUID:
    found = parse_id(prefix, text)
    if found is None:
        raise Invalid("must be a UUID", field=field)
    return found


def json_bytes(field: str, value: bytes, *, empty: bytes | None = b"null", most: int = PAYLOAD_MAX_BYTES) -> bytes:
    """Checks JSON and returns it unchanged. An empty value becomes `empty`, or is refused if that is None."""
    if not value:
        if empty is None:
            raise Invalid("must be JSON; for nothing send null", field=field)
        return empty
    check_payload(field, value, most)
    return value


def page_size(size: int, default: int = PAGE_DEFAULT) -> int:
    return default if size <= 0 else min(size, PAGE_MAX)


def page_token(position: Position | None) -> str:
    return "" if position is None else base64.urlsafe_b64encode(position_bytes(position)).decode()


def read_page_token(token: str) -> Position | None:
    if not token:
        return None
    try:
        position = read_position(base64.b64decode(token, altchars=b"-_", validate=True))
    except (ValueError, binascii.Error):
        position = None
    if position is None:
        raise Invalid("is not a page token of this server", field="page_token")
    return position


def timestamp(at: datetime | None) -> Timestamp | None:
    if at is None:
        return None
    stamp = Timestamp()
    stamp.FromDatetime(at)
    return stamp


def instant(field: str, stamp: Timestamp) -> datetime:
    try:
        at: datetime = stamp.ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise Invalid("is not an instant", field=field) from None
    return at


# --------------------------------------------------------------------------------------------- policies and errors


def policy_from(message: pb.RetryPolicy | None, base: Policy = DEFAULT_POLICY) -> Policy:
    """Reads a retry policy. A field that is 0 comes from `base`; negative attempts mean no limit."""
    policy = message if message is not None else pb.RetryPolicy()
    attempts = policy.maximum_attempts or base.max_attempts
    attempts = ATTEMPTS_UNLIMITED if attempts < 0 else min(attempts, ATTEMPTS_UNLIMITED)
    for field in ("initial_interval_ms", "maximum_interval_ms"):
        if getattr(policy, field) < 0:
            raise Invalid("must not be negative", field=f"retry_policy.{field}")
    coefficient = policy.backoff_coefficient
    if coefficient and not 1.0 <= coefficient <= 1000.0:
        raise Invalid("must lie between 1 and 1000", field="retry_policy.backoff_coefficient")
    return Policy(
        max_attempts=attempts,
        max_losses=attempts,
        timeout_s=base.timeout_s,
        retry_delay_s=min(policy.initial_interval_ms / 1000, SECONDS_MAX) or base.retry_delay_s,
        retry_factor=coefficient or base.retry_factor,
        retry_delay_max_s=min(policy.maximum_interval_ms / 1000, SECONDS_MAX) or base.retry_delay_max_s,
    )


def prefixes_from(policy: pb.RetryPolicy | None) -> tuple[str, ...]:
    prefixes = () if policy is None else tuple(policy.non_retryable_errors)
    for prefix in prefixes:
        check_text("retry_policy.non_retryable_errors", prefix, 1000)
    return prefixes


def failure_from(error: pb.ErrorDetail, final: tuple[str, ...]) -> Failure:
    """Reads a failure. `final` are prefixes of messages that are not retried."""
    code = error.code if error.code in pb.ErrorCode.values() else pb.ERROR_CODE_UNSPECIFIED
    final_error = error.non_retryable or any(error.message.startswith(prefix) for prefix in final)
    wait_s = min(error.retry_after_ms / 1000, SECONDS_MAX) if error.retry_after_ms > 0 else None
    return Failure(
        Category.USER_CODE,
        error.message[:MESSAGE_MAX],
        pb.ErrorCode.Name(code).removeprefix("ERROR_CODE_"),
        retryable=not final_error,
        retry_after_s=wait_s,
    )


def error_message(failure: Failure | None, *, exhausted: bool = False) -> pb.ErrorDetail:
    """The error of a run. Always present on this wire; empty if nothing failed."""
    if failure is None:
        return pb.ErrorDetail()
    name = f"ERROR_CODE_{failure.reason}"
    code = pb.ErrorCode.Value(name) if name in pb.ErrorCode.keys() else _code_of(failure.category)  # noqa: SIM118
    message = f"{EXHAUSTED}: {failure.message}" if exhausted else failure.message
    wait_ms = 0 if failure.retry_after_s is None else int(failure.retry_after_s * 1000)
    return pb.ErrorDetail(
        code=code, message=message, non_retryable=exhausted or not failure.may_retry, retry_after_ms=wait_ms
    )


def _code_of(category: Category) -> pb.ErrorCode:
    match category:
        case Category.INFRASTRUCTURE | Category.TIMEOUT:
            return pb.ERROR_CODE_UNAVAILABLE
        case Category.CANCELLED:
            return pb.ERROR_CODE_PRECONDITION_FAILED
        case Category.DATA_QUALITY | Category.CONFIGURATION:
            return pb.ERROR_CODE_INVALID_ARGUMENT
    return pb.ERROR_CODE_INTERNAL


# --------------------------------------------------------------------------------------------- runs


def status_of_run(task: Task) -> pb.WorkflowStatus:
    """A run whose cancellation was requested is shown as cancelled at once."""
    if task.state is State.RUNNING and task.cancel is not None:
        return pb.WORKFLOW_STATUS_CANCELLED
    return STATUS[task.state]


def shown_status(task: Task) -> str:
    return str(pb.WorkflowStatus.Name(status_of_run(task))).removeprefix("WORKFLOW_STATUS_")


def states_of(filter_status: str) -> list[State] | None:
    """Our states with this status; None, for all, if the filter is empty."""
    if not filter_status:
        return None
    name = f"WORKFLOW_STATUS_{filter_status}"
    if name not in pb.WorkflowStatus.keys() or filter_status == "UNSPECIFIED":  # noqa: SIM118
        raise Invalid(f"{filter_status!r} is not a status of a run", field="filter_status")
    return [state for state, status in STATUS.items() if status == pb.WorkflowStatus.Value(name)]


def attempts_of(task: Task) -> int:
    """Attempts as the retry policy counts them: a claim after a sleep does not count."""
    if task.attempt == 0:
        return 0
    return task.failures + task.losses + (0 if task.outcome in _COUNTED else 1)


def _shown(text: bytes | None) -> bytes:
    """Leaves out a payload that is stored as an object. A call for one run has loaded it before."""
    return b"" if text is None or is_reference(text) else text


def run_message(task: Task, created_at: datetime, payload: bytes | None, wire: bytes | None) -> pb.WorkflowRun:
    extra = extra_of(wire)
    exhausted = task.state is State.FAILED and task.outcome is Outcome.LOST
    wake_up_at = task.timer_at if task.state is State.SLEEPING else None
    if task.state is State.QUEUED and task.available_at > created_at:
        wake_up_at = task.available_at
    return pb.WorkflowRun(
        run_id=str(task.id), business_id=extra.workflow_id, task_queue=task.queue, workflow_type=task.kind,
        status=status_of_run(task), input=_shown(payload), output=_shown(task.result),
        error=error_message(task.error, exhausted=exhausted), attempts=attempts_of(task),
        created_at=timestamp(created_at), started_at=timestamp(task.started_at),
        finished_at=timestamp(task.finished_at), wake_up_at=timestamp(wake_up_at), namespace_id=task.namespace,
        context=bytes(extra.context), deadline_at=timestamp(task.deadline_at), worker_id=task.current_worker or "",
        version=extra.version,
    )  # fmt: skip


def wire_of(workflow_id: str, context: bytes, version: str, final: tuple[str, ...]) -> bytes:
    """The extra fields as JSON, for the `wire` column of the task."""
    fields: dict[str, Any] = {"workflow_id": workflow_id, "version": version}
    if context:
        fields["context"] = msgspec.Raw(context)
    if final:
        fields["non_retryable_errors"] = final
    return msgspec.json.encode(fields)
