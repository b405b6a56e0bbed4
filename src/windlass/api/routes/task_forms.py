"""The requests that submit tasks, and the answers that describe them. Fields may be added, but never changed."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from msgspec.structs import replace

from windlass.api.framework.forms import At, IdText, Key, Name, Positive, Seconds, Timeout
from windlass.api.framework.route import read_id
from windlass.core.attempt import WORKER_TIME
from windlass.core.failure import Category, Failure
from windlass.core.payload_reference import is_reference
from windlass.core.progress import Progress
from windlass.core.retry import DEFAULT_POLICY, Policy
from windlass.core.states import TERMINAL, Entry, State
from windlass.core.submission import PRIORITY_MAX, PRIORITY_MIN, Submission
from windlass.core.task import Outcome, Task
from windlass.core.validation import COUNT_MAX
from windlass.engine.read.tasks import LISTED_PAYLOAD_MAX_BYTES, NO_REPORT, LastReport, TaskRow

_NULL = Raw(b"null")


class TaskSpec(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The work of a task. `payload` is any JSON; `wire` holds fields of one contract. A lower priority runs first."""

    queue: Name = "default"
    kind: Name
    payload: Raw | UnsetType = UNSET
    delay_s: Seconds = 0.0
    priority: Annotated[int, Meta(ge=PRIORITY_MIN, le=PRIORITY_MAX)] = 0
    idempotency_key: Key | None = None
    max_attempts: Positive | None = None
    max_losses: Annotated[int, Meta(ge=0, le=COUNT_MAX)] | None = None
    timeout_s: Timeout | None = None
    deadline_at: At | None = None
    concurrency_key: Key | None = None
    requires: Annotated[list[Name], Meta(max_length=100)] = []
    wire: dict[str, Any] | None = None

    @property
    def own_policy(self) -> bool:
        return not (self.max_attempts is None and self.max_losses is None and self.timeout_s is None)

    def policy(self, queue: Policy, kind: Policy | None = None) -> Policy:
        """The limits of the request. Those it leaves out come from the workers of its kind, or else from its queue."""
        if not self.own_policy:
            return DEFAULT_POLICY if kind is None else kind
        own = {name: getattr(self, name) for name in ("max_attempts", "max_losses", "timeout_s")}
        return replace(
            queue if kind is None else kind, **{name: value for name, value in own.items() if value is not None}
        )

    def submission(self, namespace: str, policy: Policy, key: str | None) -> Submission:
        return Submission(
            kind=self.kind,
            payload=b"null" if self.payload is UNSET else bytes(self.payload),
            queue=self.queue,
            namespace=namespace,
            priority=self.priority,
            delay_s=self.delay_s,
            deadline_at=self.deadline_at,
            concurrency_key=self.concurrency_key or "",
            idempotency_key=key,
            policy=policy,
            requires=tuple(self.requires),
            wire=None if self.wire is None else msgspec.json.encode(self.wire),
        )


class NewTask(TaskSpec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A task to submit. The default namespace is that of the key."""

    namespace: Name | None = None
    run_id: IdText | None = None

    def submission(self, namespace: str, policy: Policy, key: str | None) -> Submission:
        plain = super().submission(namespace, policy, key)
        return plain if self.run_id is None else replace(plain, run_id=read_id("run_id", self.run_id))


class ErrorForm(Struct, frozen=True):
    """The error of the last attempt."""

    category: Category
    message: str
    reason: str | None
    trace: str | None
    retryable: bool


class ReportForm(Struct, frozen=True):
    """What the worker of an attempt reported besides its result: its metrics, its partial progress, and the phase in
    which it was cancelled. `reported_at` is the server's time, `completed_at` the worker's."""

    attempt: int
    worker: str | None
    reported_at: datetime
    outcome: str
    completed_at: datetime | None
    metrics: dict[str, int] | None
    cancelled_during_phase: str | None
    partial_progress: Any
    output: Any


class TaskForm(Struct, frozen=True, kw_only=True):
    """A task. In a list, a payload or result of more than 64 KiB is null and named in `omitted`."""

    id: UUID
    namespace: str
    queue: str
    kind: str
    state: State
    attempt: int
    failures: int
    losses: int
    payload: Raw
    result: Raw
    error: ErrorForm | None
    reason: str | None
    progress: Progress | None
    created_at: datetime
    available_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    deadline_at: datetime | None
    priority: int
    worker: str | None
    run_id: UUID | None
    replay_of: UUID | None
    schedule_id: UUID | None
    cancel_requested_at: datetime | None
    max_attempts: int
    max_losses: int
    timeout_s: float | None
    idempotency_key: str | None
    concurrency_key: str | None
    requires: tuple[str, ...]
    wire: Raw
    report: ReportForm | None = None
    last_heartbeat_at: datetime | None = None
    omitted: list[str] = []


def task_form(
    row: TaskRow, progress: Progress | None = None, *, listed: bool = False, last_report: LastReport = NO_REPORT
) -> TaskForm:
    task = row.task
    long_result = listed and _too_long(task.result)
    long_payload = row.payload is None or (listed and is_reference(row.payload))
    return TaskForm(
        id=task.id, namespace=task.namespace, queue=task.queue, kind=task.kind, state=task.state,
        attempt=task.attempt, failures=task.failures, losses=task.losses,
        payload=raw(None if long_payload else row.payload), result=raw(None if long_result else task.result),
        error=error_form(task.error), reason=_reason(task), progress=progress,
        created_at=row.created_at, available_at=task.available_at, started_at=task.started_at,
        finished_at=task.finished_at, deadline_at=task.deadline_at, priority=task.priority, worker=task.current_worker,
        run_id=task.run_id, replay_of=row.replay_of, schedule_id=row.schedule_id,
        cancel_requested_at=task.cancel.requested_at if task.cancel else None,
        max_attempts=task.policy.max_attempts, max_losses=task.policy.max_losses, timeout_s=task.policy.timeout_s,
        idempotency_key=row.idempotency_key, concurrency_key=task.concurrency_key or None, requires=row.requires,
        wire=raw(row.wire), report=report_form(last_report.report), last_heartbeat_at=last_report.last_heartbeat_at,
        omitted=[name for name, left in (("payload", long_payload), ("result", long_result)) if left],
    )  # fmt: skip


def _too_long(result: bytes | None) -> bool:
    """Whether a result is too long for a list. One that is stored as an object always is."""
    return result is not None and (len(result) > LISTED_PAYLOAD_MAX_BYTES or is_reference(result))


def report_form(entry: Entry | None) -> ReportForm | None:
    if entry is None:
        return None
    detail: dict[str, Any] = entry.detail or {}
    return ReportForm(
        entry.attempt, entry.worker, entry.at, str(detail.get("outcome")), _instant(detail.get(WORKER_TIME)),
        detail.get("metrics"), detail.get("cancelled_during_phase"), detail.get("partial_progress"),
        detail.get("output"),
    )  # fmt: skip


def raw(content: bytes | None) -> Raw:
    return _NULL if content is None else Raw(content)


def error_form(failure: Failure | None) -> ErrorForm | None:
    if failure is None:
        return None
    return ErrorForm(
        failure.category, failure.message, failure.reason or None, failure.trace or None, failure.may_retry
    )


def _reason(task: Task) -> str | None:
    """The reason of a task's state: that of its cancellation, or else the code of its failure."""
    cancelled = task.cancel.reason if task.cancel is not None else ""
    failed = task.error.reason if task.error is not None else ""
    return (cancelled or failed if task.state is State.CANCELLED else failed or cancelled) or None


class EntryForm(Struct, frozen=True):
    """One line of a task's history."""

    at: datetime
    attempt: int
    what: str
    worker: str | None
    detail: dict[str, Any] | None


class AttemptForm(Struct, frozen=True):
    """An attempt: its worker, its start and end, and its outcome. `outcome` is null while it runs."""

    number: int
    worker: str | None
    started_at: datetime | None
    ended_at: datetime | None
    outcome: str | None
    category: str | None
    reason: str | None
    error: str | None


class HistoryForm(Struct, frozen=True):
    """The history of a task, in order, and its attempts."""

    task_id: UUID
    items: list[EntryForm]
    attempts: list[AttemptForm]


_ENDS = {*Outcome.__members__.values(), *TERMINAL}


def attempts_of(entries: Iterable[Entry]) -> list[AttemptForm]:
    """Return every attempt that began. The entry that ends an attempt has its start."""
    found: dict[int, AttemptForm] = {}
    for entry in entries:
        detail = entry.detail or {}
        if entry.attempt == 0 or entry.what not in {*_ENDS, "started"}:
            continue
        known = found.get(entry.attempt)
        if known is not None and known.ended_at is not None:
            continue  # it had ended: what came later ended the task, not this try
        ended = entry.what != "started"
        found[entry.attempt] = AttemptForm(
            entry.attempt, entry.worker,
            _instant(detail.get("started_at")) if ended else entry.at,
            entry.at if ended else None,
            str(entry.what) if ended else None,
            *(None if detail.get(name) is None else str(detail[name]) for name in ("category", "reason", "error")),
        )  # fmt: skip
    return [found[number] for number in sorted(found)]


def _instant(value: object) -> datetime | None:
    """Convert an instant. History that was read from the database has instants as text."""
    return (
        msgspec.convert(value, datetime) if isinstance(value, str) else value if isinstance(value, datetime) else None
    )
