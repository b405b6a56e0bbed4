"""Tasks: submit, look, cancel, try again."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from msgspec import Meta, Struct
from msgspec.structs import replace

from windlass.core.access import Role
from windlass.core.note import LogLine
from windlass.core.retry import DEFAULT_POLICY
from windlass.core.submission import Submission
from windlass.core.trace import is_traceparent
from windlass.core.transition import State
from windlass.engine.repair import REPLAY_MAX
from windlass.engine.submit import BATCH_MAX
from windlass.engine.view import NOTHING_TOLD, Created, TaskRow, TaskView
from windlass.http import cursor
from windlass.http.form import At, Cursor, IdText, In, Limit, Listed, Name, Nothing, Paged, Reason
from windlass.http.read import KEY_HEADER
from windlass.http.route import Call, Table, read_id
from windlass.http.task_form import (
    EntryForm,
    HistoryForm,
    NewTask,
    TaskForm,
    TaskSpec,
    attempts_of,
    task_form,
)

table = Table("tasks")


class TaskFilter(Paged, frozen=True, forbid_unknown_fields=True):
    """Which tasks; all that is given must hold."""

    state: tuple[State, ...] = ()
    queue: Name | None = None
    kind: Name | None = None
    run_id: IdText | None = None
    created_since: At | None = None
    created_before: At | None = None


class LogFilter(Struct, frozen=True, forbid_unknown_fields=True):
    """Lines of one attempt, or of all that are kept."""

    attempt: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    after: Cursor | None = None
    limit: Limit = 500


class Batch(Struct, frozen=True, forbid_unknown_fields=True):
    """Tasks to submit, all or none."""

    tasks: Annotated[list[NewTask], Meta(min_length=1, max_length=BATCH_MAX)]


class Submitted(Struct, frozen=True):
    """The tasks, in the order in which they were sent."""

    items: list[TaskForm]


class CancelOrder(Struct, frozen=True, forbid_unknown_fields=True):
    """`force` ends a running task at once, without its grace."""

    reason: Reason = ""
    force: bool = False


Replayable = Literal["failed", "cancelled", "skipped"]


class ReplayOrder(In, frozen=True, forbid_unknown_fields=True):
    """Which of those that did not succeed to do again; with `dry_run` they are only counted."""

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
    """How many matched, the new tasks, and the cursor to go on with if there are more."""

    matched: int
    task_ids: list[UUID]
    next: str | None
    dry_run: bool


class WaitForm(Struct, frozen=True):
    """Why a task does not run: a stable word, a sentence, and when that ends, if that is known."""

    reason: str
    message: str
    until: datetime | None


class Waits(Struct, frozen=True):
    """Everything that keeps a task from running now; nothing if it runs or has ended."""

    task_id: UUID
    items: list[WaitForm]


# --------------------------------------------------------------------------------------------- submit


@table.add("POST", "/api/v1/tasks", Role.SUBMITTER, status=201, headers=(KEY_HEADER,), large=True)
async def submit_task(call: Call[None, NewTask]) -> TaskForm:
    """Submit a task. Answered when it is durable; the same idempotency key again answers with the same task."""
    body = call.body
    key = call.key  # also if it is not used: it is checked
    [submission] = await all_ready(call, [body], [call.namespace(body.namespace)], [body.idempotency_key or key])
    return await shown(call, await call.engine.views.get(await call.engine.submit(submission)))


@table.add("POST", "/api/v1/tasks/batch", Role.SUBMITTER, status=201, headers=(KEY_HEADER,), large=True)
async def submit_batch(call: Call[None, Batch]) -> Submitted:
    """Submit tasks, all or none. An Idempotency-Key header stands for one key each, by place."""
    keys = batch_keys(call.key, call.body.tasks)
    spaces = [call.namespace(task.namespace) for task in call.body.tasks]
    ids = await call.engine.submit_many(await all_ready(call, call.body.tasks, spaces, keys))
    return Submitted(await listed(call, await call.engine.views.get_many(ids)))


async def all_ready(
    call: Call[Any, Any], specs: Sequence[TaskSpec], namespaces: Sequence[str], keys: Sequence[str | None]
) -> list[Submission]:
    """The submissions that these forms ask for; their namespaces are known from now on. Each queue is asked once."""
    for namespace in set(namespaces):
        await call.engine.access.declare_namespace(namespace)
    wanted = {(space, spec.queue) for spec, space in zip(specs, namespaces, strict=True) if spec.own_policy}
    policies = {(space, queue): await call.engine.queues.policy(queue, namespace=space) for space, queue in wanted}
    declared = await call.engine.kinds.policies(
        {(space, spec.kind) for spec, space in zip(specs, namespaces, strict=True)}
    )
    plain = [
        spec.submission(
            space, spec.policy(policies.get((space, spec.queue), DEFAULT_POLICY), declared.get((space, spec.kind))), key
        )
        for spec, space, key in zip(specs, namespaces, keys, strict=True)
    ]
    trace = call.headers.get("traceparent")
    return [replace(submission, trace=trace) for submission in plain] if is_traceparent(trace) else plain


def batch_keys(request_key: str | None, specs: Sequence[TaskSpec]) -> list[str | None]:
    """A key in the body was chosen for its task; one in the header is the request's, and so each place has its own."""
    return [spec.idempotency_key or (request_key and f"{request_key}/{place}") for place, spec in enumerate(specs)]


# --------------------------------------------------------------------------------------------- look


@table.add("GET", "/api/v1/tasks", Role.VIEWER)
async def list_tasks(call: Call[TaskFilter, None]) -> Listed[TaskForm]:
    """Tasks, newest first."""
    query = call.query
    page = await call.engine.views.page(
        namespace=call.namespace(query.namespace),
        states=query.state or None,
        queue=query.queue,
        kind=query.kind,
        run_id=None if query.run_id is None else read_id("run_id", query.run_id),
        created=Created(query.created_since, query.created_before),
        after=cursor.to_position(query.after),
        limit=query.limit,
    )
    return Listed(await listed(call, page.tasks), cursor.of_position(page.next))


@table.add("GET", "/api/v1/tasks/{task_id}", Role.VIEWER)
async def get_task(call: Call[None, None]) -> TaskForm:
    """One task."""
    return await shown(call, await seen(call))


@table.add("GET", "/api/v1/tasks/{task_id}/history", Role.VIEWER)
async def task_history(call: Call[None, None]) -> HistoryForm:
    """What happened to a task, in order, with every attempt."""
    view = await seen(call)
    entries = await call.engine.views.timeline(view.task.id)
    lines = [EntryForm(e.at, e.attempt, str(e.what), e.worker, e.detail) for e in entries]
    return HistoryForm(view.task.id, lines, attempts_of(entries))


@table.add("GET", "/api/v1/tasks/{task_id}/why-waiting", Role.VIEWER)
async def why_waiting(call: Call[None, None]) -> Waits:
    """Everything that keeps a task from running now."""
    view = await seen(call)
    reasons = await call.engine.views.why_waiting(view.task.id)
    return Waits(view.task.id, [WaitForm(r.reason, r.message, r.until) for r in reasons])


@table.add("GET", "/api/v1/tasks/{task_id}/logs", Role.VIEWER)
async def task_logs(call: Call[LogFilter, None]) -> Listed[LogLine]:
    """What the attempts of a task have logged, in order: the last lines of each that are kept."""
    view, query = await seen(call), call.query
    page = await call.engine.notes.log(
        view.task.id, attempt=query.attempt, after=cursor.to_pair(query.after), limit=query.limit
    )
    return Listed(page.lines, cursor.of_pair(page.next))


async def seen(call: Call[Any, Any]) -> TaskView:
    """The task in the path, if the key reaches its namespace."""
    view = await call.engine.views.get(call.id("task_id"))
    call.reach(view.task.namespace)
    return view


async def shown(call: Call[Any, Any], view: TaskView) -> TaskForm:
    """A task with what it last said of its progress."""
    said = await call.engine.notes.progress([view.task.id]) if view.task.attempt else {}
    told = await call.engine.views.told(view.task.id) if view.task.attempt else NOTHING_TOLD
    return task_form(view, said.get(view.task.id), told=told)


async def listed(call: Call[Any, Any], rows: Sequence[TaskRow]) -> list[TaskForm]:
    begun = [row.task.id for row in rows if row.task.attempt]
    said = await call.engine.notes.progress(begun) if begun else {}
    return [task_form(row, said.get(row.task.id), listed=True) for row in rows]


# --------------------------------------------------------------------------------------------- act


@table.add("POST", "/api/v1/tasks/{task_id}/cancel", Role.SUBMITTER)
async def cancel_task(call: Call[None, CancelOrder]) -> TaskForm:
    """Ask a task to stop. One that waits ends at once; one that runs is told, and has its grace."""
    view = await seen(call)
    await call.engine.cancel(view.task.id, call.body.reason, force=call.body.force)
    return await shown(call, await call.engine.views.get(view.task.id))


@table.add("POST", "/api/v1/tasks/{task_id}/retry", Role.OPERATOR)
async def retry_task(call: Call[None, Nothing]) -> TaskForm:
    """Try it now. What waits for its time is available at once, what is parked goes on; what has ended without success
    is done again as a new task, whose `replay_of` names the old one."""
    view = await seen(call)
    return await shown(call, await call.engine.views.get(await call.engine.repair.retry(view.task.id)))


@table.add("POST", "/api/v1/tasks/replay", Role.OPERATOR)
async def replay_tasks(call: Call[None, ReplayOrder]) -> Replays:
    """Do again what did not succeed, by filter, newest first. Asked twice, nothing is done twice."""
    body = call.body
    done = await call.engine.repair.replay(
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
