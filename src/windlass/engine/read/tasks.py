"""Reads of tasks: lists with exact paging, counts, the timeline of a task, and why it waits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from windlass.core.delivery import PULL, Delivery, QueueSettings, outgoing_effects, type_of
from windlass.core.lease import Lease
from windlass.core.outgoing import effect_of
from windlass.core.position import Position, check_position
from windlass.core.queue import admit
from windlass.core.states import Entry, State
from windlass.core.step import Step, StepKind
from windlass.core.task import Task
from windlass.core.validation import check_count, check_ids, check_instant, check_list, check_name, check_type
from windlass.errors import Invalid, NotFound
from windlass.store.store import Store
from windlass.store.tables.view import ALWAYS, LISTED_PAYLOAD_MAX_BYTES, Created, TaskRow, TaskView, Views

__all__ = [
    "LISTED_PAYLOAD_MAX_BYTES",
    "NO_REPORT",
    "Created",
    "LastReport",
    "Page",
    "TaskRow",
    "TaskView",
    "TaskViews",
    "Waiting",
]  # fmt: skip

PAGE_DEFAULT, PAGE_MAX = 50, 1000


class Page(msgspec.Struct, frozen=True):
    """Newest first. `next` is the position of the next page, None at the end."""

    tasks: list[TaskRow]
    next: Position | None


class Waiting(msgspec.Struct, frozen=True):
    """Why a task does not run: a stable word, a sentence, and when that ends, if known."""

    reason: str
    message: str
    until: datetime | None = None


Explanation = Callable[[Views, UUID], Awaitable[Waiting]]
_EXPLANATIONS: dict[str, Explanation] = {}  # by type of delivery


def register_explanation(delivery: str, explain: Explanation) -> None:
    """Let a contract explain why a queued task was not claimed, if the live workers do not explain it."""
    _EXPLANATIONS[delivery] = explain


class LastReport(msgspec.Struct, frozen=True):
    """The last report of a worker that calls back about a task, and the time of its last heartbeat."""

    report: Entry | None = None
    last_heartbeat_at: datetime | None = None


NO_REPORT = LastReport()


class TaskViews:
    """Reads for people; takes no locks."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def time(self) -> datetime:
        """The time by the database's clock, the only one that counts."""
        async with self._store.views() as views:
            return await views.now()

    async def get(self, task_id: UUID) -> TaskView:
        async with self._store.views() as views:
            return await _known(views, task_id)

    async def get_many(self, task_ids: Sequence[UUID]) -> list[TaskView]:
        """Those of these tasks that exist, in the given order."""
        check_ids("task_ids", task_ids)
        async with self._store.views() as views:
            found = {view.task.id: view for view in await views.get_tasks(task_ids)}
        return [found[id_] for id_ in task_ids if id_ in found]

    async def namespaces(self, ids: Sequence[UUID]) -> dict[UUID, str]:
        """The namespaces of those of these tasks that exist."""
        check_ids("ids", ids)
        async with self._store.views() as views:
            return await views.task_namespaces(ids)

    async def results(self, ids: Sequence[UUID], namespace: str | None = None) -> dict[UUID, bytes]:
        """The results, as JSON text, of those of these tasks that succeeded; in one namespace, or in all."""
        check_ids("ids", ids)
        async with self._store.views() as views:
            return await views.task_results(ids, namespace)

    async def page(
        self,
        *,
        namespace: str = "default",
        states: Sequence[State] | None = None,
        queue: str | None = None,
        kind: str | None = None,
        run_id: UUID | None = None,
        after: Position | None = None,
        limit: int = PAGE_DEFAULT,
        created: Created = ALWAYS,
    ) -> Page:
        """A page of tasks; `after` is the `next` of the page before."""
        _check_filter(namespace, states, queue, kind, run_id, after, limit)
        check_type("created", created, Created)
        for field, at in (("created_since", created.since), ("created_before", created.before)):
            if at is not None:
                check_instant(field, at)
        async with self._store.views() as views:
            rows = await views.list_tasks(
                namespace, after=after, states=states, queue=queue, kind=kind, run_id=run_id, limit=limit + 1,
                created=created,
            )  # fmt: skip
        page = rows[:limit]
        return Page(page, (page[-1].created_at, page[-1].task.id) if len(rows) > limit else None)

    async def counts(self, namespace: str = "default") -> dict[str, dict[State, int]]:
        """Tasks by queue and state, without successes: those are most of the table, and `totals` counts them."""
        check_name("namespace", namespace)
        async with self._store.views() as views:
            return await views.count_unfinished(namespace)

    async def totals(self, namespace: str = "default") -> dict[State, int]:
        """All stored tasks by state."""
        check_name("namespace", namespace)
        async with self._store.views() as views:
            return await views.count_tasks(namespace)

    async def workers(self, namespace: str = "default") -> list[tuple[Lease, int]]:
        """The live workers, and the number of tasks that each runs."""
        check_name("namespace", namespace)
        async with self._store.views() as views:
            leases = await views.list_leases(namespace)
            loads = await views.lease_loads(namespace)
        return [(lease, loads.get(lease.id, 0)) for lease in leases]

    async def run_totals(self, run_id: UUID) -> dict[State, int]:
        check_type("run_id", run_id, UUID)
        async with self._store.views() as views:
            return await views.run_counts(run_id)

    async def timeline(self, task_id: UUID) -> list[Entry]:
        """What happened, in order. The submission and the last attempt come from the task's own row."""
        async with self._store.views() as views:
            view = await _known(views, task_id)
            entries = await views.task_history(task_id)
            steps = await views.task_steps(task_id)
        return timeline_of(view, [*entries, *map(_step_entry, steps)])

    async def last_report(self, task_id: UUID) -> LastReport:
        """The last report of the task's worker; empty if the worker does not call back."""
        check_type("task_id", task_id, UUID)
        async with self._store.views() as views:
            return LastReport(await views.task_report(task_id), await views.last_heartbeat(task_id))

    async def steps(self, task_id: UUID) -> list[Step]:
        """The recorded steps of a workflow, in the order in which its code runs them."""
        async with self._store.views() as views:
            await _known(views, task_id)
            return await views.task_steps(task_id)

    async def why_waiting(self, task_id: UUID) -> list[Waiting]:
        """All reasons why this task does not run now; empty if it runs or has ended. An attempt that was sent to
        a worker waits until its first heartbeat."""
        async with self._store.views() as views:
            view = await _known(views, task_id)
            return await _why(views, view, await views.now())


def timeline_of(view: TaskView, entries: Sequence[Entry]) -> list[Entry]:
    """The timeline: the beginning and the end come from the task's row, the history entries are between them."""
    task = view.task
    lines = [Entry(task.id, view.created_at, 0, "submitted"), *entries]
    if task.state is State.RUNNING and task.started_at is not None:
        what = "started" if task.worker is not None else "sent_out"
        lines.append(Entry(task.id, task.started_at, task.attempt, what, task.worker))
    if task.finished_at is not None:
        detail: dict[str, object] = {} if task.started_at is None else {"started_at": task.started_at}
        if task.error is not None:
            detail |= {"category": task.error.category, "reason": task.error.reason, "error": task.error.message}
            if task.error.trace:
                detail["trace"] = task.error.trace
        lines.append(Entry(task.id, task.finished_at, task.attempt, task.state, task.worker, detail or None))
    return sorted(lines, key=lambda line: line.at)


def _step_entry(step: Step) -> Entry:
    """The timeline entry of a step, from its record. The result stays in the record."""
    detail: dict[str, object] = {"step": step.name, "occurrence": step.occurrence, "kind": step.kind}
    if step.failures:
        detail["failures"] = step.failures
    if step.wake_at is not None:
        detail["until"] = step.wake_at
    if step.child_id is not None:
        detail["child_id"] = step.child_id
    if step.error is not None:
        detail["error"] = step.error.message
    return Entry(step.task_id, step.recorded_at, step.attempt, f"step_{step.state}", None, detail)


async def _why(views: Views, view: TaskView, now: datetime) -> list[Waiting]:
    task = view.task
    if task.state is State.BLOCKED:
        upstream = await views.waiting_for(task.id)
        return [Waiting("dependency", f"waits for task {id_}") for id_ in upstream]
    if task.state is State.SLEEPING:
        waits = [_waiting_step(step) for step in await views.task_steps(task.id) if _still_waits(step, now)]
        return waits or [Waiting("sleeping", "waits for a time or a signal", task.timer_at)]
    if task.state is State.PARKED:
        return [Waiting("parked", task.error.message if task.error else "a person has to resume it")]
    if task.state is State.RUNNING and task.worker is None:
        return [await _why_sent_out(views, task)]
    if task.state is not State.QUEUED:
        return []
    return await _why_queued(views, view, now)


async def _why_sent_out(views: Views, task: Task) -> Waiting:
    """Why an attempt that was sent has not started. It counts as running from the moment that it is sent."""
    for kind in sorted(outgoing_effects()):
        effect = await views.get_effect(effect_of(task, kind))
        if effect is not None and effect.error is not None:
            return Waiting("not_delivered", f"its worker did not accept it: {effect.error}", effect.available_at)
        if effect is not None:
            return Waiting("not_delivered", "it is on its way to its worker")
    return Waiting("not_started", "its worker has accepted it and has sent no heartbeat yet")


def _still_waits(step: Step, now: datetime) -> bool:
    """The record of a sleep does not change when the sleep is over."""
    return not step.done and not (step.kind is StepKind.SLEEP and step.wake_at is not None and step.wake_at <= now)


def _waiting_step(step: Step) -> Waiting:
    match step.kind:
        case StepKind.SIGNAL:
            return Waiting("signal", f"waits for the {step.name.replace(':', ' ', 1)}", step.wake_at)
        case StepKind.TASK:
            return Waiting("child", f"waits for the end of task {step.child_id}")
        case StepKind.STEP:
            return Waiting("step_retry", f"step {step.name} has failed and will be tried again", step.wake_at)
    return Waiting("sleeping", "sleeps", step.wake_at)


async def _why_queued(views: Views, view: TaskView, now: datetime) -> list[Waiting]:
    task = view.task
    reasons = []
    if task.available_at > now:
        reasons.append(Waiting("scheduled", "it is not available yet", task.available_at))
    config, usage = await views.queue_state(task.namespace, task.queue)
    admission = admit(config, usage, 1, now)
    if admission.total == 0 and admission.reason is not None:
        reasons.append(Waiting(admission.reason, f"the queue {task.queue} starts no tasks now", admission.next_at))
    elif task.kind in admission.full_kinds:
        reasons.append(Waiting("concurrency_limit", f"the limit of running tasks of kind {task.kind} is reached"))
    elif task.concurrency_key and admission.room_by_key.get(task.concurrency_key, admission.room_per_key) == 0:
        message = f"the limit of running tasks with the key {task.concurrency_key} is reached"
        reasons.append(Waiting("concurrency_limit", message))
    settings = (await views.queue_settings(task.namespace, [task.queue])).get(task.queue, QueueSettings())
    delivery, by = settings.delivery, type_of(settings.delivery)
    explain = _EXPLANATIONS.get(by)
    if explain is not None and not reasons and not view.requires:
        return [await explain(views, task.id)]
    if (problem := await _no_capable_worker(views, view, delivery)) is not None:
        reasons.append(Waiting("no_capable_worker", problem))
    if reasons:
        return reasons
    if delivery.claimed:
        return [Waiting("in_line", "other tasks are before it in line")]
    return [Waiting("in_line", f"it is sent out by {by} when its turn comes; workers that claim do not get it")]


async def _no_capable_worker(views: Views, view: TaskView, delivery: Delivery) -> str | None:
    """Why no worker can get this task, as far as that is known."""
    task, outgoing, by = view.task, delivery.outgoing, type_of(delivery)
    if outgoing is not None:
        missing = ", ".join(sorted(set(view.requires) - set(outgoing.labels)))
        if not missing:
            return None
        return f"it requires {missing}, which the queue {task.queue} does not list for its {outgoing.effect} workers"
    if by in _EXPLANATIONS or await views.capable_workers(task, view.requires, by):
        return None
    problem = f"no live worker takes {task.kind} from the queue {task.queue}"
    if delivery != PULL:
        return f"{problem}; its tasks are delivered by {by}, and workers that claim do not get them"
    # Workers that run the task's kind, but from another queue or without a label.
    leases = [lease for lease in await views.list_leases(task.namespace) if task.kind in (lease.kinds or ())]
    if any(task.queue in lease.queues for lease in leases):
        return f"{problem} with what it requires: {', '.join(sorted(view.requires))}" if view.requires else problem
    queues = sorted({queue for lease in leases for queue in lease.queues})
    return f"{problem}; there are workers that take it from {', '.join(queues)}" if queues else problem


async def _known(views: Views, task_id: UUID) -> TaskView:
    check_type("task_id", task_id, UUID)
    view = await views.get_task(task_id)
    if view is None:
        raise NotFound(f"there is no task {task_id}", task_id=task_id)
    return view


def _check_filter(
    namespace: object, states: object, queue: object, kind: object, run_id: object, after: object, limit: object
) -> None:
    check_name("namespace", namespace)
    for field, name in (("queue", queue), ("kind", kind)):
        if name is not None:
            check_name(field, name)
    if run_id is not None:
        check_type("run_id", run_id, UUID)
    check_position("after", after)
    for state in () if states is None else check_list("states", states):
        if not isinstance(state, str) or state not in State.__members__.values():
            raise Invalid(f"{state!r} is not a state", field="states")
    check_count("limit", limit, least=1, most=PAGE_MAX)
