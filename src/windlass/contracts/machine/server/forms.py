"""The requests and answers of the machine contract."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct

from windlass.contracts.machine.export.mods.options import Options
from windlass.contracts.machine.rules import FORMAT, export_name, read_result
from windlass.contracts.machine.table import MachineRow
from windlass.core.payload_reference import is_reference
from windlass.core.states import State
from windlass.core.task import Task
from windlass.core.text import TEXT_MAX
from windlass.core.validation import clean_json
from windlass.engine.read.tasks import TaskView
from windlass.errors import Invalid
from windlass.net.decode import converted, decoded, decoded_report, field_of, reason_of

MODS = "mods"
PI = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}")
NAMED = re.compile(FORMAT)
SUBJECT_MAX, BATCH_MAX = 500, 200
OPTIONS_MAX_BYTES = 32 * 1024
METRICS_MAX_BYTES = 32 * 1024
LEVELS_MAX = 50

Status = Literal["processing", "success", "error"]
STATUS: dict[State, Status] = {
    State.BLOCKED: "processing",
    State.QUEUED: "processing",
    State.RUNNING: "processing",
    State.SLEEPING: "processing",
    State.PARKED: "processing",
    State.SUCCEEDED: "success",
    State.FAILED: "error",
    State.CANCELLED: "error",
    State.SKIPPED: "error",
}


class Receipt(Struct, frozen=True):
    """The export was accepted, and its machine has started or will start."""

    task_id: str
    status: Status = "processing"
    message: str = "Export job started. Use task_id to check status or poll /status/:task_id"


class ExportOrder(Struct, frozen=True, kw_only=True):
    """An export: the id of what to export, and options."""

    pi: Any = UNSET
    options: Any = UNSET
    batch_id: Any = UNSET


class CallbackForm(Struct, frozen=True, kw_only=True):
    """The result that a machine reports."""

    task_id: str
    status: Literal["success", "error"]
    batch_id: Annotated[str, Meta(max_length=1000)] | None = None
    output_r2_key: Annotated[str, Meta(min_length=1, max_length=1000)] | None = None
    output_file_name: Annotated[str, Meta(min_length=1, max_length=500)] | None = None
    output_file_size: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    metrics: dict[str, Any] | None = None
    error: str | None = None


_order = msgspec.json.Decoder(ExportOrder)
_callback = msgspec.json.Decoder(CallbackForm)


def read_order(format_: str, body: bytes) -> dict[str, Any]:
    """Read the payload of an export. Raises Invalid with the name of the wrong field."""
    order = decoded(_order, body)
    if order.pi is UNSET or order.pi is None or order.pi == "":
        raise Invalid("Missing required field: pi")
    text = order.pi if isinstance(order.pi, str) else ""
    if format_ == MODS and not PI.fullmatch(text):
        raise Invalid("must be a ULID (26 characters)", field="pi")
    if not text or len(text) > SUBJECT_MAX or not text.isprintable():
        raise Invalid(f"must be text of at most {SUBJECT_MAX} characters", field="pi")
    options = {} if order.options is UNSET or order.options is None else order.options
    if not isinstance(options, dict):
        raise Invalid("must be an object", field="options")
    if format_ == MODS:
        try:
            converted(options, Options)
        except msgspec.ValidationError as error:
            raise Invalid(reason_of(error), field=".".join(filter(None, ("options", field_of(error))))) from None
    _check_levels("options", options)
    if len(msgspec.json.encode(options)) > OPTIONS_MAX_BYTES:
        raise Invalid(f"may have at most {OPTIONS_MAX_BYTES} bytes", field="options")
    batch = "single" if order.batch_id is UNSET or order.batch_id is None else order.batch_id
    if not isinstance(batch, str) or not 0 < len(batch) <= BATCH_MAX or not batch.isprintable():
        raise Invalid(f"must be text of at most {BATCH_MAX} characters", field="batch_id")
    return {"pi": order.pi, "options": options, "batch_id": batch}


def read_callback(body: bytes) -> CallbackForm:
    form = decoded_report(_callback, body, lambda report: report.status == "error")
    _check_levels("metrics", form.metrics)
    if form.metrics is not None and len(msgspec.json.encode(form.metrics)) > METRICS_MAX_BYTES:
        raise Invalid(f"may have at most {METRICS_MAX_BYTES} bytes", field="metrics")
    if form.status == "success":
        for name in ("output_r2_key", "output_file_name", "output_file_size"):
            if getattr(form, name) is None:
                raise Invalid("is required when status is success", field=name)
    return form


def _check_levels(field: str, value: object) -> None:
    """Refuse JSON that is nested so deeply that a recursive reader could fail."""
    level, levels = [value], 0
    while level := [inner for outer in level for inner in _inside(outer)]:
        levels += 1
        if levels > LEVELS_MAX:
            raise Invalid(f"is nested more than {LEVELS_MAX} levels deep", field=field)


def _inside(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


# --------------------------------------------------------------------------------------------- the state of a task


def state_of(view: TaskView, machines: list[MachineRow]) -> dict[str, Any]:
    """The TaskState of the contract. Some fields have two spellings, since the contract uses both."""
    task, export = view.task, subject_of(view.payload)
    machine = next((row for row in machines if row.machine_id is not None), None)
    state: dict[str, Any] = {
        "task_id": export_name(task.id, task.kind),
        "status": STATUS[task.state],
        "pi": export["pi"],
        "options": export["options"],
        "batch_id": export["batch_id"],
        "created_at": ms(view.created_at),
        "machine_id": task.worker if machine is None else machine.machine_id,
        "instance_id": None if machine is None else machine.instance_id,
    }
    if task.terminal and task.finished_at is not None:
        state["completed_at"] = ms(task.finished_at)
        state |= outcome_of(task)
    state = {name: value for name, value in state.items() if value is not None}
    both = {"createdAt": "created_at", "machineId": "machine_id", "completedAt": "completed_at", "taskId": "task_id"}
    return state | {camel: state[snake] for camel, snake in both.items() if snake in state}


def outcome_of(task: Task) -> dict[str, Any]:
    if task.state is State.SUCCEEDED:
        object_ = read_result(task.result)
        if object_ is None:
            return {}
        named = {
            "output_r2_key": object_.object_key, "output_file_name": object_.file_name,
            "output_file_size": object_.file_size,
        }  # fmt: skip
        return named if object_.metrics is None else named | {"metrics": object_.metrics}
    reason = "" if task.error is None else task.error.message
    if task.state is State.CANCELLED and not reason.startswith("cancelled"):
        reason = f"cancelled: {reason}" if reason else "cancelled"
    return {"error": reason or "the export failed"}


def subject_of(payload: bytes) -> dict[str, Any]:
    """The fields of a payload that the contract names. Any task may run on a machine, so they may be missing."""
    content = None if is_reference(payload) else msgspec.json.decode(payload)
    known = content if isinstance(content, dict) else {}
    pi, options, batch = known.get("pi"), known.get("options"), known.get("batch_id")
    return {
        "pi": pi if isinstance(pi, str) else "",
        "options": options if isinstance(options, dict) else ({} if "pi" in known else content),
        "batch_id": batch if isinstance(batch, str) else "single",
    }


def ms(instant: datetime) -> int:
    return round(instant.timestamp() * 1000)


def kept_of(form: CallbackForm) -> dict[str, object]:
    """The part of a callback that the history keeps."""
    kept = {"batch_id": form.batch_id, "metrics": form.metrics, "error": form.error}
    return {name: clean_json(value, TEXT_MAX) for name, value in kept.items() if value is not None}
