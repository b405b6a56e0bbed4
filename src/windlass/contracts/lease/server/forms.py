"""Translates between the engine's records and the messages of the lease contract."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from windlass.contracts.lease.claim_by_id import Held
from windlass.contracts.lease.rules import OTHER_DELIVERY, NotClaimed
from windlass.contracts.lease.wire import messages as wire
from windlass.contracts.lease.wire.status import STATUS as ERROR_STATUS
from windlass.core.states import Instant, State
from windlass.core.submission import wire_fields
from windlass.core.task import Task
from windlass.datasets.rules.events import EventReport, Files, scratch_of
from windlass.errors import Conflict, Forbidden, Invalid, LeaseLost, WindlassError
from windlass.net.status import known_code, public_message

NOT_READY = "NotReady"
QUEUED: wire.TaskStatus = "Queued"
STATUS: dict[State, wire.TaskStatus] = {
    State.BLOCKED: QUEUED,
    State.QUEUED: QUEUED,
    State.SLEEPING: QUEUED,
    State.PARKED: QUEUED,
    State.RUNNING: "Running",
    State.SUCCEEDED: "Completed",
    State.FAILED: "Failed",
    State.CANCELLED: "Canceled",
    State.SKIPPED: "Canceled",
}
REPORTED: dict[State, wire.ReportStatus] = {
    State.SUCCEEDED: "Completed",
    State.FAILED: "Failed",
    State.CANCELLED: "Canceled",
    State.SKIPPED: "Canceled",
}
NOT_CLAIMED: dict[State, tuple[wire.Reason, str | UnsetType]] = {
    State.BLOCKED: ("AlreadyRunning", NOT_READY),
    State.QUEUED: ("AlreadyRunning", NOT_READY),
    State.SLEEPING: ("AlreadyRunning", NOT_READY),
    State.PARKED: ("AlreadyRunning", NOT_READY),
    State.SUCCEEDED: ("Completed", UNSET),
    State.FAILED: ("Completed", "Failed"),
    State.CANCELLED: ("Canceled", UNSET),
    State.SKIPPED: ("Canceled", "Skipped"),
    State.RUNNING: ("AlreadyRunning", UNSET),
}


def details(task: Task, payload: bytes, wire_json: bytes | None) -> dict[str, Any]:
    """The fields of wire.TaskDetails. A submission can set those that only this contract has in `wire`."""
    fields = wire_fields(wire_json)
    operator, inputs, outputs = (fields.get(name) for name in ("operator", "inputs", "outputs"))
    try:
        job = msgspec.convert(fields.get("job"), wire.Job)
    except msgspec.ValidationError:
        job = wire.Job(task.namespace, task.kind)
    return {
        "task_id": task.id,
        "attempt": task.attempt,
        "job": job,
        "operator": operator if isinstance(operator, str) and operator else task.kind,
        "config": config_of(payload),
        "inputs": Raw(msgspec.json.encode(inputs if isinstance(inputs, list) else [])),
        "namespace": task.namespace,
        "queue": task.queue,
        "kind": task.kind,
        "outputs": Raw(msgspec.json.encode(outputs)) if isinstance(outputs, list) else UNSET,
        "trigger": Raw(msgspec.json.encode(fields["trigger"])) if "trigger" in fields else UNSET,
        "traceparent": UNSET if task.trace is None else task.trace,
        "ends_at": UNSET if task.timer_at is None else task.timer_at,
        "cancel_grace_s": task.policy.cancel_grace_s,
        **_of_job(task, fields),
    }


def _of_job(task: Task, fields: Mapping[str, Any]) -> dict[str, Any]:
    """What the job of a DAG adds. A task that was submitted by hand cannot set it."""
    if task.job_id is None:
        return {}
    return {name: fields[name] for name in ("secrets", "idle_timeout_s") if name in fields}


def config_of(payload: bytes) -> Raw:
    """The payload as a JSON object. A payload that is not an object becomes its field `value`."""
    return Raw(payload) if payload.lstrip()[:1] == b"{" else Raw(b'{"value":' + payload + b"}")


def claimed(held: Held, scratch_uri: str) -> wire.ClaimedAnswer:
    task = held.task
    assert task.lease_id is not None, task.id
    return wire.ClaimedAnswer(
        attempt=task.attempt,
        lease_token=task.lease_id,
        lease_expires_at=held.expires_at,
        task=wire.TaskDetails(**details(task, held.payload, held.wire)),
        scratch_uri=scratch_of(scratch_uri, task.id, task.attempt),
        server_time=held.now,
    )


def not_claimed(why: NotClaimed, now: Instant | None) -> wire.NotClaimedAnswer:
    if why.state is None:
        return wire.NotClaimedAnswer(reason="NotFound")
    if why.waits_for == OTHER_DELIVERY:
        return wire.NotClaimedAnswer(reason="NotFound", detail="OtherDelivery")
    reason, detail = NOT_CLAIMED[why.state]
    if detail != NOT_READY:
        return wire.NotClaimedAnswer(reason=reason, detail=detail)
    left_s = UNSET if why.until is None or now is None else max(0.0, (why.until - now).total_seconds())
    return wire.NotClaimedAnswer(reason=reason, detail=detail, waits_for=why.waits_for, retry_after_s=left_s)


def fetched(task: Task, payload: bytes, wire_json: bytes | None) -> wire.FetchAnswer:
    cancelled = task.cancel is not None and not task.terminal
    return wire.FetchAnswer(status="Canceled" if cancelled else STATUS[task.state], **details(task, payload, wire_json))


def reported_events(events: list[wire.Event] | None) -> tuple[EventReport, ...]:
    """The events of a request. Raises Invalid, which names the first invalid one."""
    reports = tuple(
        EventReport(e.dataset_uuid, e.dataset_version, e.cursor, e.partition_key, e.start, e.end, f"events[{place}]")
        for place, e in enumerate(events or ())
    )
    for event in reports:
        event.check()
    return reports


def reported_outputs(outputs: list[wire.Output] | None, files: Mapping[int, Files]) -> tuple[EventReport, ...]:
    """The events of the outputs of a completion: one for each that has a cursor or a partition. `files` are those of
    outputs in the lake, by place."""
    reports = tuple(
        output_event(o, place, files.get(place))
        for place, o in enumerate(outputs or ())
        if o.cursor is not None or o.partition_key is not None
    )
    for report in reports:
        report.check()
    return reports


def output_event(o: wire.Output, place: int, files: Files | None = None) -> EventReport:
    """The event of an output of a completion."""
    return EventReport(
        o.dataset_uuid, o.dataset_version, o.cursor, o.partition_key, o.start, o.end, f"outputs[{place}]", o.row_count,
        files,
    )  # fmt: skip


# --------------------------------------------------------------------------------------------- refusals


def refused(error: WindlassError) -> tuple[int, wire.RefusedAnswer]:
    """The status and body of an error. An error about a task has the state of the task."""
    status, word = ERROR_STATUS[known_code(error)]
    field, state, attempt = (error.details.get(name) for name in ("field", "state", "current_attempt"))
    about_task = isinstance(error, LeaseLost | Conflict)
    return status, wire.RefusedAnswer(
        error=word,
        message=public_message(error),
        field=str(field) if field and isinstance(error, Invalid | Forbidden) and status != 413 else UNSET,
        task_status=STATUS[state] if about_task and isinstance(state, State) else UNSET,
        current_attempt=attempt if about_task and isinstance(attempt, int) else UNSET,
    )


def plain_error(_status: int, code: str, message: str) -> wire.RefusedAnswer:
    return wire.RefusedAnswer(error=code, message=message)
