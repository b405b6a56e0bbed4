"""Runs: tasks that wait for each other, and that are submitted, listed and cancelled together."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from msgspec import Meta, Struct
from msgspec.structs import replace

from windlass.api.framework import cursor
from windlass.api.framework.forms import Cursor, Limit, Listed, Name, Paged, Reason
from windlass.api.framework.request import KEY_HEADER
from windlass.api.framework.route import Call, Table
from windlass.api.routes.task_forms import TaskForm, TaskSpec
from windlass.api.routes.tasks import batch_keys, list_forms, submissions_of
from windlass.core.access import Role
from windlass.core.submission import Submission
from windlass.engine.read.runs import RunView
from windlass.engine.submit.submitter import BATCH_MAX
from windlass.errors import Invalid

table = Table("runs")


class RunTask(TaskSpec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A task of a run. Other tasks of the request refer to it by `name`. It waits until the tasks in `after` have
    succeeded, or with `after_any_outcome` until they have ended with any outcome."""

    name: Name | None = None
    after: Annotated[tuple[Name, ...], Meta(max_length=BATCH_MAX)] = ()
    after_any_outcome: bool = False


class NewRun(Struct, frozen=True, forbid_unknown_fields=True):
    """Tasks to submit together, all or none."""

    tasks: Annotated[list[RunTask], Meta(min_length=1, max_length=BATCH_MAX)]
    namespace: Name | None = None


class RunForm(Struct, frozen=True):
    """A run, and the number of its tasks in each state."""

    id: UUID
    namespace: str
    created_at: datetime
    counts: dict[str, int]


class RunTasks(RunForm, frozen=True):
    """A run with a page of its tasks, newest first."""

    tasks: list[TaskForm]
    next: str | None


class MadeRun(RunForm, frozen=True):
    """A submitted run: its tasks in the order of the request, and their ids by name."""

    tasks: list[TaskForm]
    names: dict[str, UUID]


class RunTaskPage(Struct, frozen=True, forbid_unknown_fields=True):
    """A page of a run's tasks."""

    after: Cursor | None = None
    limit: Limit = 200


class RunCancel(Struct, frozen=True, forbid_unknown_fields=True):
    """The reason of the cancel."""

    reason: Reason = ""


class RunCancelled(RunForm, frozen=True):
    """The run. `asked` is the number of tasks that received a cancel request."""

    asked: int


@table.add("POST", "/api/v1/runs", Role.SUBMITTER, status=201, headers=(KEY_HEADER,), large=True)
async def submit_run(call: Call[None, NewRun]) -> MadeRun:
    """Submit tasks that wait for each other, all or none. A repeated Idempotency-Key returns the same run."""
    namespace = call.namespace(call.body.namespace)
    keys = batch_keys(call.key, call.body.tasks)
    run_id = await call.engine.runs.find(namespace, keys[0]) or call.engine.parts.randomness.new_id()
    ids = [call.engine.parts.randomness.new_id() for _ in call.body.tasks]
    plain = await submissions_of(call, call.body.tasks, [namespace] * len(ids), keys)
    made = await call.engine.submit_many(_link(call.body.tasks, plain, ids, run_id))
    views = await call.engine.tasks.get_many(made)
    names = {task.name: id_ for task, id_ in zip(call.body.tasks, made, strict=True) if task.name is not None}
    run = await call.engine.runs.get(views[0].task.run_id or run_id)
    return MadeRun(*_fields(run), await list_forms(call, views), names)


def _link(tasks: list[RunTask], plain: list[Submission], ids: list[UUID], run_id: UUID) -> list[Submission]:
    """Return the submissions with their ids, and with the names in `after` replaced by ids."""
    by_name: dict[str, UUID] = {}
    for place, (task, id_) in enumerate(zip(tasks, ids, strict=True)):
        if task.name is not None and by_name.setdefault(task.name, id_) is not id_:
            raise Invalid(f"the name {task.name} is used twice", field=f"tasks[{place}].name")
    linked = []
    for place, (task, submission, id_) in enumerate(zip(tasks, plain, ids, strict=True)):
        unknown = [name for name in task.after if name not in by_name]
        if unknown:
            raise Invalid(f"no task of this run is called {unknown[0]}", field=f"tasks[{place}].after")
        after = tuple(by_name[name] for name in task.after)
        linked.append(replace(submission, id=id_, run_id=run_id, after=after, after_any_outcome=task.after_any_outcome))
    return linked


@table.add("GET", "/api/v1/runs", Role.VIEWER)
async def list_runs(call: Call[Paged, None]) -> Listed[RunForm]:
    """List runs, newest first."""
    query = call.query
    found = await call.engine.runs.list(
        call.namespace(query.namespace), after=cursor.to_position(query.after), limit=query.limit + 1
    )
    page, more = cursor.page_of(found, query.limit, lambda run: (run.created_at, run.id))
    return Listed([RunForm(*_fields(run)) for run in page], more)


@table.add("GET", "/api/v1/runs/{run_id}", Role.VIEWER)
async def get_run(call: Call[RunTaskPage, None]) -> RunTasks:
    """Get a run with its counts and a page of its tasks."""
    run = await _find(call)
    page = await call.engine.tasks.page(
        namespace=run.namespace, run_id=run.id, after=cursor.to_position(call.query.after), limit=call.query.limit
    )
    return RunTasks(*_fields(run), await list_forms(call, page.tasks), cursor.of_position(page.next))


@table.add("POST", "/api/v1/runs/{run_id}/cancel", Role.SUBMITTER)
async def cancel_run(call: Call[None, RunCancel]) -> RunCancelled:
    """Cancel every task of a run that has not ended."""
    run = await _find(call)
    count = await call.engine.cancel_run(run.id, call.body.reason)
    return RunCancelled(*_fields(await call.engine.runs.get(run.id)), count)


async def _find(call: Call[Any, Any]) -> RunView:
    run = await call.engine.runs.get(call.id("run_id"))
    call.reach(run.namespace)
    return run


def _fields(run: RunView) -> tuple[UUID, str, datetime, dict[str, int]]:
    return run.id, run.namespace, run.created_at, {state.value: count for state, count in run.counts.items()}
