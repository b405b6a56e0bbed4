"""Tasks: submit, read, cancel, retry."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from msgspec import Meta, Struct
from msgspec.structs import replace

from windlass.api.framework import cursor
from windlass.api.framework.forms import At, Cursor, IdText, In, Limit, Listed, Name, Nothing, Paged, Reason
from windlass.api.framework.request import KEY_HEADER
from windlass.api.framework.route import Call, Table, read_id
from windlass.api.routes.task_forms import (
    EntryForm,
    HistoryForm,
    NewTask,
    TaskForm,
    TaskSpec,
    attempts_of,
    task_form,
)
from windlass.core.access import Role
from windlass.core.progress import LogLine
from windlass.core.retry import DEFAULT_POLICY
from windlass.core.states import State
from windlass.core.submission import Submission
from windlass.core.trace import is_traceparent
from windlass.engine.manage.retry_replay import REPLAY_MAX
from windlass.engine.read.tasks import NO_REPORT, Created, TaskRow, TaskView
from windlass.engine.submit.submitter import BATCH_MAX

table = Table("tasks")


class TaskFilter(Paged, frozen=True, forbid_unknown_fields=True):
    """A filter. A task must match all given fields."""

    state: tuple[State, ...] = ()
    queue: Name | None = None
    kind: Name | None = None
    run_id: IdText | None = None
    created_since: At | None = None
    created_before: At | None = None


class LogFilter(Struct, frozen=True, forbid_unknown_fields=True):
    """The log lines of one attempt. Default: all lines that are kept."""

    attempt: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    after: Cursor | None = None
    limit: Limit = 500


class Batch(Struct, frozen=True, forbid_unknown_fields=True):
    """Tasks to submit, all or none."""

    tasks: Annotated[list[NewTask], Meta(min_length=1, max_length=BATCH_MAX)]


class Submitted(Struct, frozen=True):
    """The tasks, in the order of the request."""

    items: list[TaskForm]


class CancelOrder(Struct, frozen=True, forbid_unknown_fields=True):
    """`force` ends a running task at once, without its grace period."""

    reason: Reason = ""
    force: bool = False


Replayable = Literal["failed", "cancelled", "skipped"]


class ReplayOrder(In, frozen=True, forbid_unknown_fields=True):
    """A filter of tasks that did not succeed. With `dry_run` they are only counted."""

    state: Annotated[tuple[Replayable, ...], Meta(min_length=1)] = ("failed",)
    queue: Name | None = None
    kind: Name | None = None
    run_id: IdText | None = None
    created_since: At | None = None
    created_before: At | None = None
    after: Cursor | None = None
    limit: Annotated[int, Meta(ge=1, le=REPLAY_MAX)] = REPLAY_MAX
    dry_run: bool = False


class Replays(Struct, frozen=True):
    """The number of tasks that matched, the ids of the new tasks, and the cursor of the next page, if there is one."""

    matched: int
    task_ids: list[UUID]
    next: str | None
    dry_run: bool


class WaitForm(Struct, frozen=True):
    """Why a task does not run: a stable code, a message, and when the reason ends, if that is known."""

    reason: str
    message: str
    until: datetime | None


class Waits(Struct, frozen=True):
    """All reasons why a task does not run now. The list is empty if it runs or has ended."""

    task_id: UUID
    items: list[WaitForm]


# --------------------------------------------------------------------------------------------- submit


@table.add("POST", "/api/v1/tasks", Role.SUBMITTER, status=201, headers=(KEY_HEADER,), large=True)
async def submit_task(call: Call[None, NewTask]) -> TaskForm:
    """Submit a task. The answer is sent when the task is durable. A repeated idempotency key returns the same task."""
    body = call.body
    key = call.key  # read even if the body has one: reading checks the header
    [submission] = await submissions_of(call, [body], [call.namespace(body.namespace)], [body.idempotency_key or key])
    view, new = await call.engine.submit_and_view(submission)
    return task_form(view) if new else await full_form(call, view)


@table.add("POST", "/api/v1/tasks/batch", Role.SUBMITTER, status=201, headers=(KEY_HEADER,), large=True)
async def submit_batch(call: Call[None, Batch]) -> Submitted:
    """Submit tasks, all or none. An Idempotency-Key header gives each task its own key, by its place in the list."""
    keys = batch_keys(call.key, call.body.tasks)
    spaces = [call.namespace(task.namespace) for task in call.body.tasks]
    ids = await call.engine.submit_many(await submissions_of(call, call.body.tasks, spaces, keys))
    return Submitted(await list_forms(call, await call.engine.tasks.get_many(ids)))


async def submissions_of(
    call: Call[Any, Any], specs: Sequence[TaskSpec], namespaces: Sequence[str], keys: Sequence[str | None]
) -> list[Submission]:
    """Return the submissions of these forms, and declare their namespaces. Each queue is read once."""
    for namespace in set(namespaces):
        await call.engine.keys.declare_namespace(namespace)
    orders = list(zip(specs, namespaces, keys, strict=True))
    queues = {(namespace, spec.queue) for spec, namespace, _ in orders if spec.own_policy}
    of_queue = {(space, queue): await call.engine.queues.policy(queue, namespace=space) for space, queue in queues}
    of_kind = await call.engine.parts.kinds.policies({(namespace, spec.kind) for spec, namespace, _ in orders})
    trace = call.header("traceparent")
    submissions = []
    for spec, namespace, key in orders:
        queue_policy = of_queue.get((namespace, spec.queue), DEFAULT_POLICY)
        policy = spec.policy(queue_policy, of_kind.get((namespace, spec.kind)))
        submissions.append(spec.submission(namespace, policy, key))
    if is_traceparent(trace):
        return [replace(submission, trace=trace) for submission in submissions]
    return submissions


def batch_keys(request_key: str | None, specs: Sequence[TaskSpec]) -> list[str | None]:
    """Return one key per task: the key in its body, or else the key of the request with the task's place."""
    return [spec.idempotency_key or (request_key and f"{request_key}/{place}") for place, spec in enumerate(specs)]


# --------------------------------------------------------------------------------------------- read


@table.add("GET", "/api/v1/tasks", Role.VIEWER)
async def list_tasks(call: Call[TaskFilter, None]) -> Listed[TaskForm]:
    """List tasks, newest first."""
    query = call.query
    page = await call.engine.tasks.page(
        namespace=call.namespace(query.namespace),
        states=query.state or None,
        queue=query.queue,
        kind=query.kind,
        run_id=None if query.run_id is None else read_id("run_id", query.run_id),
        created=Created(query.created_since, query.created_before),
        after=cursor.to_position(query.after),
        limit=query.limit,
    )
    return Listed(await list_forms(call, page.tasks), cursor.of_position(page.next))


@table.add("GET", "/api/v1/tasks/{task_id}", Role.VIEWER)
async def get_task(call: Call[None, None]) -> TaskForm:
    """Get a task."""
    return await full_form(call, await find_task(call))


@table.add("GET", "/api/v1/tasks/{task_id}/history", Role.VIEWER)
async def task_history(call: Call[None, None]) -> HistoryForm:
    """Get the history of a task, in order, with every attempt."""
    view = await find_task(call)
    entries = await call.engine.tasks.timeline(view.task.id)
    lines = [EntryForm(e.at, e.attempt, str(e.what), e.worker, e.detail) for e in entries]
    return HistoryForm(view.task.id, lines, attempts_of(entries))


@table.add("GET", "/api/v1/tasks/{task_id}/why-waiting", Role.VIEWER)
async def why_waiting(call: Call[None, None]) -> Waits:
    """List all reasons why a task does not run now."""
    view = await find_task(call)
    reasons = await call.engine.tasks.why_waiting(view.task.id)
    return Waits(view.task.id, [WaitForm(r.reason, r.message, r.until) for r in reasons])


@table.add("GET", "/api/v1/tasks/{task_id}/logs", Role.VIEWER)
async def task_logs(call: Call[LogFilter, None]) -> Listed[LogLine]:
    """List the log lines of a task's attempts, in order. Only the last lines of each attempt are kept."""
    view, query = await find_task(call), call.query
    page = await call.engine.parts.progress.log(
        view.task.id, attempt=query.attempt, after=cursor.to_pair(query.after), limit=query.limit
    )
    return Listed(page.lines, cursor.of_pair(page.next))


async def find_task(call: Call[Any, Any]) -> TaskView:
    """Return the task in the path, if the key reaches its namespace."""
    view = await call.engine.tasks.get(call.id("task_id"))
    call.reach(view.task.namespace)
    return view


async def full_form(call: Call[Any, Any], view: TaskView) -> TaskForm:
    """Return the form of a task, with its progress and its last report."""
    progress = await call.engine.parts.progress.progress([view.task.id]) if view.task.attempt else {}
    last_report = await call.engine.tasks.last_report(view.task.id) if view.task.attempt else NO_REPORT
    return task_form(view, progress.get(view.task.id), last_report=last_report)


async def list_forms(call: Call[Any, Any], rows: Sequence[TaskRow]) -> list[TaskForm]:
    """Return the forms of tasks in a list, with their progress."""
    begun = [row.task.id for row in rows if row.task.attempt]
    progress = await call.engine.parts.progress.progress(begun) if begun else {}
    return [task_form(row, progress.get(row.task.id), listed=True) for row in rows]


# --------------------------------------------------------------------------------------------- change


@table.add("POST", "/api/v1/tasks/{task_id}/cancel", Role.SUBMITTER)
async def cancel_task(call: Call[None, CancelOrder]) -> TaskForm:
    """Cancel a task. A waiting task ends at once; a running one gets a cancel request, and has its grace period."""
    view = await find_task(call)
    await call.engine.cancel(view.task.id, call.body.reason, force=call.body.force)
    return await full_form(call, await call.engine.tasks.get(view.task.id))


@table.add("POST", "/api/v1/tasks/{task_id}/retry", Role.OPERATOR)
async def retry_task(call: Call[None, Nothing]) -> TaskForm:
    """Retry a task now. A task that waits for its time becomes available at once, and a parked one continues. One that
    ended without success is submitted again as a new task, whose `replay_of` is the id of the old one."""
    view = await find_task(call)
    return await full_form(call, await call.engine.tasks.get(await call.engine.parts.repair.retry(view.task.id)))


@table.add("POST", "/api/v1/tasks/replay", Role.OPERATOR)
async def replay_tasks(call: Call[None, ReplayOrder]) -> Replays:
    """Submit tasks that did not succeed again, by filter, newest first. A repeated request submits no task twice."""
    body = call.body
    done = await call.engine.parts.repair.replay(
        namespace=call.namespace(body.namespace),
        states=[State(state) for state in body.state],
        queue=body.queue,
        kind=body.kind,
        run_id=None if body.run_id is None else read_id("run_id", body.run_id),
        created=Created(body.created_since, body.created_before),
        after=cursor.to_position(body.after),
        limit=body.limit,
        dry_run=body.dry_run,
    )
    return Replays(done.matched, done.task_ids, cursor.of_position(done.next), body.dry_run)
