"""Converts session messages to and from our records. Knows the proto and the records, but nothing of gRPC.

Ids are 16 bytes, times microseconds since 1970. Rare fields of a task travel in `more`, a JSON object of the fields
that differ from their default, so that a new field of a task is on this wire at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, get_args, get_type_hints
from uuid import UUID

import msgspec

from windlass.contracts.session.wire import session_pb2 as pb
from windlass.core.command import Claimed, Complete, Report
from windlass.core.lease import CancelSignal, Extension
from windlass.core.states import State
from windlass.core.task import Task
from windlass.errors import Invalid

T = TypeVar("T")

PART_BYTES = 1024 * 1024  # messages are split at this size, unless a single item is larger
PART_COUNT = 500
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def to_us(at: datetime | None) -> int:
    return 0 if at is None else (at - _EPOCH) // _MICROSECOND


def from_us(us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=us)


def to_id(field: str, value: bytes) -> UUID:
    if len(value) != 16:
        raise Invalid(f"must have 16 bytes, not {len(value)}", field=field)
    return UUID(bytes=value)


# --------------------------------------------------------------------------------------------- tasks

_ON_THE_MESSAGE = {
    "id", "namespace", "queue", "kind", "state", "available_at", "attempt", "failures", "losses", "lease_id", "worker",
    "started_at", "timer_at", "finished_at", "outcome", "result",
}  # fmt: skip
_TYPES = get_type_hints(Task)
_MORE_FIELDS = [field for field in msgspec.structs.fields(Task) if field.name not in _ON_THE_MESSAGE]
_More = msgspec.defstruct(
    "_More", [(f.name, _TYPES[f.name], f.default) for f in _MORE_FIELDS], omit_defaults=True, frozen=True
)
_MORE_NAMES = tuple(field.name for field in _MORE_FIELDS)
_NO_MORE = _More()
_encode, _decode_more = msgspec.json.Encoder().encode, msgspec.json.Decoder(_More).decode


def task_message(claimed: Claimed) -> pb.Task:
    task = claimed.task
    more = _More(*[getattr(task, name) for name in _MORE_NAMES])
    return pb.Task(
        id=task.id.bytes, attempt=task.attempt, kind=task.kind, queue=task.queue, payload=claimed.payload,
        available_at_us=to_us(task.available_at), started_at_us=to_us(task.started_at),
        ends_at_us=to_us(task.timer_at), failures=task.failures, losses=task.losses,
        more=b"" if more == _NO_MORE else _encode(more),
    )  # fmt: skip


def claimed_from(message: pb.Task, namespace: str, lease_id: UUID, worker: str) -> Claimed:
    more = _decode_more(message.more) if message.more else _NO_MORE
    task = Task(
        id=UUID(bytes=message.id), namespace=namespace, queue=message.queue, kind=message.kind, state=State.RUNNING,
        available_at=from_us(message.available_at_us), attempt=message.attempt, failures=message.failures,
        losses=message.losses, lease_id=lease_id, worker=worker, started_at=from_us(message.started_at_us),
        timer_at=from_us(message.ends_at_us) if message.ends_at_us else None,
        **{name: getattr(more, name) for name in _MORE_NAMES},
    )  # fmt: skip
    return Claimed(task, message.payload)


# --------------------------------------------------------------------------------------------- reports


def _what(kind: type) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


_FENCE = {"task_id", "attempt", "lease_id"}
_ENGINE_FIELDS = {"jitter"}  # random, set by the engine
REPORTS: dict[str, type[Any]] = {_what(kind): kind for kind in get_args(Report)}
_WHAT = {kind: what for what, kind in REPORTS.items()}


def _body_of(kind: type[Any]) -> type[Any]:
    """The struct of a report without its fence: the fields of its body."""
    types = get_type_hints(kind)
    fields: list[Any] = []
    for field in msgspec.structs.fields(kind):
        if field.name in _FENCE | _ENGINE_FIELDS:
            continue
        needed = field.default is msgspec.NODEFAULT
        fields.append((field.name, types[field.name]) if needed else (field.name, types[field.name], field.default))
    return msgspec.defstruct(f"{kind.__name__}Body", fields, omit_defaults=True)


_BODIES = {what: _body_of(kind) for what, kind in REPORTS.items()}
_DECODERS = {what: msgspec.json.Decoder(body).decode for what, body in _BODIES.items()}


def report_message(number: int, report: Report) -> pb.Report:
    what = _WHAT[type(report)]
    if isinstance(report, Complete):
        body = b"" if report.result is None else report.result
    else:
        made = _BODIES[what]
        body = _encode(made(*[getattr(report, name) for name in made.__struct_fields__]))
    return pb.Report(number=number, task_id=report.task_id.bytes, attempt=report.attempt, what=what, body=body)


def report_from(message: pb.Report, lease_id: UUID) -> Report:
    """Raises Invalid for a malformed report; the engine checks the rest."""
    task_id = to_id("task_id", message.task_id)
    if message.what == "complete":
        return Complete(task_id, message.attempt, lease_id, message.body or None)
    if message.what not in REPORTS:
        raise Invalid(f"{message.what!r} is not one of {', '.join(REPORTS)}", field="what")
    try:
        body = _DECODERS[message.what](message.body or b"{}")
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Invalid(f"does not fit {message.what}: {error}", field="body") from None
    report: Report = REPORTS[message.what](
        task_id=task_id, attempt=message.attempt, lease_id=lease_id, **msgspec.structs.asdict(body)
    )
    return report


# --------------------------------------------------------------------------------------------- heartbeats


def cancel_messages(cancels: Iterable[CancelSignal]) -> list[pb.Cancel]:
    return [pb.Cancel(task_id=c.task_id.bytes, attempt=c.attempt, reason=c.reason) for c in cancels]


def extended_message(number: int, extension: Extension) -> pb.Extended:
    return pb.Extended(
        number=number, expires_at_us=to_us(extension.expires_at), cancels=cancel_messages(extension.cancels),
        lost=[task_id.bytes for task_id in extension.lost], drain=extension.drain,
    )  # fmt: skip


def extension_from(message: pb.Extended) -> Extension:
    cancels = tuple(CancelSignal(UUID(bytes=c.task_id), c.attempt, c.reason) for c in message.cancels)
    lost = tuple(UUID(bytes=task_id) for task_id in message.lost)
    return Extension(from_us(message.expires_at_us), cancels, lost, message.drain)


# --------------------------------------------------------------------------------------------- parts


def parts(items: Sequence[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """Splits items into parts of limited size. A single item may be larger."""
    part: list[T] = []
    size_so_far = 0
    for item in items:
        if part and (size_so_far + size(item) > PART_BYTES or len(part) == PART_COUNT):
            yield part
            part, size_so_far = [], 0
        part.append(item)
        size_so_far += size(item)
    if part:
        yield part
