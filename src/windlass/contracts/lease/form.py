"""From our words to those of the lease contract, and back."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from windlass.core.dataset import SaidEvent, scratch_of
from windlass.core.error import (
    Conflict,
    Forbidden,
    Invalid,
    LeaseLost,
    NotFound,
    TooLarge,
    Unavailable,
    WindlassError,
)
from windlass.core.holder import OTHER_DELIVERY, NotClaimed
from windlass.core.submission import wire_fields
from windlass.core.task import Task
from windlass.core.transition import Instant, State
from windlass.engine.holder import Held
from windlass.wire.lease import (
    ClaimedAnswer,
    Event,
    FetchAnswer,
    Job,
    NotClaimedAnswer,
    Reason,
    RefusedAnswer,
    ReportStatus,
    TaskDetails,
    TaskStatus,
)
from windlass.wire.status import told_message

RETRY_AFTER_S = 1
NOT_READY = "NotReady"
STATUS: dict[State, TaskStatus] = {
    State.RUNNING: "Running",
    State.SUCCEEDED: "Completed",
    State.FAILED: "Failed",
    State.CANCELLED: "Canceled",
    State.SKIPPED: "Canceled",
}
REPORTED: dict[State, ReportStatus] = {
    State.SUCCEEDED: "Completed",
    State.FAILED: "Failed",
    State.CANCELLED: "Canceled",
    State.SKIPPED: "Canceled",
}
_ENDED: dict[State, tuple[Reason, str | UnsetType]] = {
    State.SUCCEEDED: ("Completed", UNSET),
    State.FAILED: ("Completed", "Failed"),
    State.CANCELLED: ("Canceled", UNSET),
    State.SKIPPED: ("Canceled", "Skipped"),
    State.RUNNING: ("AlreadyRunning", UNSET),
}


def status_of(state: State) -> TaskStatus:
    return STATUS.get(state, "Queued")


def details(task: Task, payload: bytes, wire: bytes | None) -> dict[str, Any]:
    """The fields of TaskDetails. What only this wire knows may be given in the task's `wire`."""
    said = wire_fields(wire)
    job, operator = said.get("job"), said.get("operator")
    named = isinstance(job, dict) and isinstance(job.get("dag_name"), str) and isinstance(job.get("name"), str)
    inputs, outputs = said.get("inputs"), said.get("outputs")
    return {
        "task_id": task.id,
        "attempt": task.attempt,
        "job": Job(job["dag_name"], job["name"]) if named and isinstance(job, dict) else Job(task.namespace, task.kind),
        "operator": operator if isinstance(operator, str) and operator else task.kind,
        "config": config_of(payload),
        "inputs": Raw(msgspec.json.encode(inputs if isinstance(inputs, list) else [])),
        "namespace": task.namespace,
        "queue": task.queue,
        "kind": task.kind,
        "outputs": Raw(msgspec.json.encode(outputs)) if isinstance(outputs, list) else UNSET,
        "traceparent": UNSET if task.trace is None else task.trace,
        "ends_at": UNSET if task.timer_at is None else task.timer_at,
        "cancel_grace_s": task.policy.cancel_grace_s,
    }


def config_of(payload: bytes) -> Raw:
    """The payload as an object: what is none stands under `value`."""
    return Raw(payload) if payload.lstrip()[:1] == b"{" else Raw(b'{"value":' + payload + b"}")


def claimed(held: Held, scratch_uri: str) -> ClaimedAnswer:
    task = held.task
    assert task.lease_id is not None, task.id
    return ClaimedAnswer(
        attempt=task.attempt,
        lease_token=task.lease_id,
        lease_expires_at=held.expires_at,
        task=TaskDetails(**details(task, held.payload, held.wire)),
        scratch_uri=scratch_of(scratch_uri, task.id, task.attempt),
        server_time=held.now,
    )


def not_claimed(why: NotClaimed, now: Instant | None) -> NotClaimedAnswer:
    if why.state is None:
        return NotClaimedAnswer(reason="NotFound")
    if why.waits_for == OTHER_DELIVERY:
        return NotClaimedAnswer(reason="NotFound", detail="OtherDelivery")
    if why.state in _ENDED:
        reason, detail = _ENDED[why.state]
        return NotClaimedAnswer(reason=reason, detail=detail)
    left_s = None if why.until is None or now is None else max(0.0, (why.until - now).total_seconds())
    return NotClaimedAnswer(
        reason="AlreadyRunning",
        detail=NOT_READY,
        waits_for=why.waits_for,
        retry_after_s=UNSET if left_s is None else left_s,
    )


def fetched(task: Task, payload: bytes, wire: bytes | None) -> FetchAnswer:
    asked = task.cancel is not None and not task.terminal
    return FetchAnswer(status="Canceled" if asked else status_of(task.state), **details(task, payload, wire))


def said_events(events: list[Event] | None) -> tuple[SaidEvent, ...]:
    """What was told of; raises Invalid naming the first that makes no sense."""
    told = tuple(
        SaidEvent(e.dataset_uuid, e.dataset_version, e.cursor, e.partition_key, e.start, e.end) for e in events or ()
    )
    for place, event in enumerate(told):
        event.check(f"events[{place}]")
    return told


# --------------------------------------------------------------------------------------------- refusals


def refused(error: WindlassError) -> tuple[int, RefusedAnswer, dict[str, str]]:
    """Status, body and headers of a refusal."""
    match error:
        case LeaseLost():
            return 409, _about_task("stale_lease", error), {}
        case Conflict():
            return 409, _about_task("conflict", error), {}
        case Forbidden():
            field = error.details.get("field")
            told = RefusedAnswer(error="not_allowed", message=error.message, field=str(field) if field else UNSET)
            return 403, told, {}
        case TooLarge():
            return 413, RefusedAnswer(error="payload_too_large", message=error.message), {}
        case Invalid():
            field = error.field or UNSET
            return 400, RefusedAnswer(error="invalid_argument", message=error.message, field=field), {}
        case NotFound():
            return 404, RefusedAnswer(error="task_not_found", message=error.message), {}
        case Unavailable():
            refusal = RefusedAnswer(error="unavailable", message=told_message(error))
            return 503, refusal, {"retry-after": str(RETRY_AFTER_S)}
    return 500, RefusedAnswer(error="internal", message="something is wrong on the server's side"), {}


def _about_task(word: str, error: WindlassError) -> RefusedAnswer:
    state, attempt = error.details.get("state"), error.details.get("current_attempt")
    return RefusedAnswer(
        error=word,
        message=error.message,
        task_status=status_of(state) if isinstance(state, State) else UNSET,
        current_attempt=attempt if isinstance(attempt, int) else UNSET,
    )
