"""What clients and machines send and are told, in the words of the contract."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from windlass.core.check import clean_json
from windlass.core.error import Invalid
from windlass.core.machine import FORMAT, export_name
from windlass.core.reference import is_reference
from windlass.core.task import Task
from windlass.core.text import TEXT_MAX
from windlass.core.transition import State
from windlass.engine.machine import MachineRow
from windlass.engine.view import TaskView
from windlass.wire.decode import converted, decoded, decoded_report, field_of, reason_of

MODS = "mods"
PI = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}")
NAMED = re.compile(FORMAT)
SUBJECT_MAX, BATCH_MAX = 500, 200
OPTIONS_MAX_BYTES = 32 * 1024
METRICS_MAX_BYTES = 32 * 1024
SIZE_MAX = 2**53
LEVELS_MAX = 50
STARTED = "Export job started. Use task_id to check status or poll /status/:task_id"

Status = Literal["processing", "success", "error"]
STATUS: dict[State, Status] = {
    State.SUCCEEDED: "success",
    State.FAILED: "error",
    State.CANCELLED: "error",
    State.SKIPPED: "error",
}


class Receipt(Struct, frozen=True):
    """A request was taken, and its machine is there or on its way."""

    task_id: str
    status: Status = "processing"
    message: str = STARTED


class ModsOptions(Struct, frozen=True, rename="camel", kw_only=True):
    """What can be asked of a MODS export; what is left out has the exporter's default."""

    recursive: bool | UnsetType = UNSET
    max_depth: Annotated[int, Meta(ge=0)] | UnsetType = UNSET
    parallel_batch_size: Annotated[int, Meta(ge=1)] | UnsetType = UNSET
    include_ocr: bool | UnsetType = UNSET
    cheimarros_mode: Literal["full", "minimal", "skip"] | UnsetType = UNSET
    validate: bool | UnsetType = UNSET


class ExportOrder(Struct, frozen=True, kw_only=True):
    """An export: what of, and how."""

    pi: Any = UNSET
    options: Any = UNSET
    batch_id: Any = UNSET


class CallbackForm(Struct, frozen=True, kw_only=True):
    """What a machine says when it is done."""

    task_id: str
    status: Literal["success", "error"]
    batch_id: Annotated[str, Meta(max_length=1000)] | None = None
    output_r2_key: Annotated[str, Meta(min_length=1, max_length=1000)] | None = None
    output_file_name: Annotated[str, Meta(min_length=1, max_length=500)] | None = None
    output_file_size: Annotated[int, Meta(ge=0, le=SIZE_MAX)] | None = None
    metrics: dict[str, Any] | None = None
    error: str | None = None


_order = msgspec.json.Decoder(ExportOrder)
_callback = msgspec.json.Decoder(CallbackForm)


def read_order(format_: str, body: bytes) -> dict[str, Any]:
    """The payload of an export. Raises Invalid naming the field."""
    order = decoded(_order, body)
    if order.pi is UNSET or order.pi is None or order.pi == "":
        raise Invalid("Missing required field: pi")
    if not isinstance(order.pi, str) or not _fits(format_, order.pi):
        raise Invalid("must be 26 characters of a ULID" if format_ == MODS else "must be text", field="pi")
    options = {} if order.options is UNSET or order.options is None else order.options
    if not isinstance(options, dict):
        raise Invalid("must be an object", field="options")
    if format_ == MODS:
        try:
            converted(options, ModsOptions)
        except msgspec.ValidationError as error:
            raise Invalid(reason_of(error), field=".".join(filter(None, ("options", field_of(error))))) from None
    _check_levels("options", options)
    if len(msgspec.json.encode(options)) > OPTIONS_MAX_BYTES:
        raise Invalid(f"may have at most {OPTIONS_MAX_BYTES} bytes", field="options")
    batch = "single" if order.batch_id is UNSET or order.batch_id is None else order.batch_id
    if not isinstance(batch, str) or not 0 < len(batch) <= BATCH_MAX or not batch.isprintable():
        raise Invalid(f"must be text of at most {BATCH_MAX} characters", field="batch_id")
    return {"pi": order.pi, "options": options, "batch_id": batch}


def _fits(format_: str, pi: str) -> bool:
    if format_ == MODS:
        return PI.fullmatch(pi) is not None
    return len(pi) <= SUBJECT_MAX and pi.isprintable()


def read_callback(body: bytes) -> CallbackForm:
    form = decoded_report(_callback, body, lambda said: said.status == "error")
    _check_levels("metrics", form.metrics)
    if form.metrics is not None and len(msgspec.json.encode(form.metrics)) > METRICS_MAX_BYTES:
        raise Invalid(f"may have at most {METRICS_MAX_BYTES} bytes", field="metrics")
    if form.status == "success":
        for name in ("output_r2_key", "output_file_name", "output_file_size"):
            if getattr(form, name) is None:
                raise Invalid("is missing from a success", field=name)
    return form


def _check_levels(field: str, value: object) -> None:
    """What others have to walk through, level by level, must not be deeper than they can."""
    level, levels = [value], 0
    while level := [inner for one in level for inner in _inside(one)]:
        levels += 1
        if levels > LEVELS_MAX:
            raise Invalid("is nested too deeply", field=field)


def _inside(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


# --------------------------------------------------------------------------------------------- the state of a task


def status_of(task: Task) -> Status:
    return STATUS.get(task.state, "processing")


def state_of(view: TaskView, machines: list[MachineRow]) -> dict[str, Any]:
    """The TaskState of the document, with the names of its callback beside its own."""
    task, asked = view.task, subject_of(view.payload)
    machine = next((row for row in machines if row.machine_id is not None), None)
    told: dict[str, Any] = {
        "task_id": export_name(task.id, task.kind),
        "status": status_of(task),
        "pi": asked["pi"],
        "options": asked["options"],
        "batch_id": asked["batch_id"],
        "created_at": ms(view.created_at),
        "machine_id": task.worker if machine is None else machine.machine_id,
        "instance_id": None if machine is None else machine.instance_id,
    }
    if task.terminal and task.finished_at is not None:
        told["completed_at"] = ms(task.finished_at)
        told |= outcome_of(task)
    kept = {name: value for name, value in told.items() if value is not None}
    both = {"createdAt": "created_at", "machineId": "machine_id", "completedAt": "completed_at", "taskId": "task_id"}
    return kept | {camel: kept[snake] for camel, snake in both.items() if snake in kept}


def outcome_of(task: Task) -> dict[str, Any]:
    if task.state is State.SUCCEEDED:
        result = msgspec.json.decode(task.result or b"null")
        names = ("output_r2_key", "output_file_name", "output_file_size", "metrics")
        return {name: result[name] for name in names if name in result} if isinstance(result, dict) else {}
    why = "" if task.error is None else task.error.message
    if task.state is State.CANCELLED and not why.startswith("cancelled"):
        why = f"cancelled: {why}" if why else "cancelled"
    return {"error": why or "the export failed"}


def subject_of(payload: bytes) -> dict[str, Any]:
    """What of a payload the document has names for: any task may be run on a machine."""
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


def said_of(form: CallbackForm) -> dict[str, object]:
    """What is kept of a callback among the history."""
    told = {"status": form.status, "batch_id": form.batch_id, "metrics": form.metrics, "error": form.error}
    return {name: clean_json(value, TEXT_MAX) for name, value in told.items() if value is not None}
