"""Planted bugs: each a small change of the real code, to prove that the simulation would find it.

A bug is planted for the length of a `with` block and taken out again. What it breaks is a promise of the documentation;
how it is found is the business of the checkers, which know nothing of this file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from msgspec.structs import replace
from tests.sim.stranger import computed_token

from windlass.contracts.session.server import calls as session_call
from windlass.contracts.session.server.namespaces import AttemptAccess
from windlass.core import run as run_rules
from windlass.core import step_command
from windlass.core import task as rules
from windlass.core.ids import derived_id
from windlass.core.lease import Lease
from windlass.core.queue import admit
from windlass.core.states import TABLE, Instant, State, Transition, Verb
from windlass.core.submission import Submission
from windlass.core.task import Task
from windlass.engine.claim import lost_replies, strategies
from windlass.engine.liveness import leases
from windlass.engine.loops import ticks
from windlass.engine.manage import workflows
from windlass.engine.send import outbox
from windlass.engine.submit import submitter
from windlass.store import transaction as store_tx
from windlass.store.notify import PendingNotifications, wakes_of
from windlass.store.queries import QUERIES
from windlass.store.tables.worker import WorkerTable

Plant = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class Bug:
    name: str
    plant: Plant
    says: str
    world: str = "kernel"
    first: int = 0  # the seed at which a hunt for it begins


BUGS: dict[str, Bug] = {}


def bug(plant: Plant) -> Plant:
    """Adds a bug under the name of its function; its docstring says what is wrong."""
    name = getattr(plant, "__name__", "")
    BUGS[name] = Bug(name, plant, (plant.__doc__ or "").strip())
    return plant


@contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def reworded(**changes: tuple[str, str]) -> Iterator[None]:
    """In each of these queries, one text instead of another."""
    before = dict(QUERIES)
    for name, (old, new) in changes.items():
        assert old in QUERIES[name], f"the query {name} no longer contains {old!r}"
        QUERIES[name] = QUERIES[name].replace(old, new)
    try:
        yield
    finally:
        QUERIES.clear()
        QUERIES.update(before)


@contextmanager
def together(*parts: AbstractContextManager[None]) -> Iterator[None]:
    with ExitStack() as stack:
        for part in parts:
            stack.enter_context(part)
        yield


# --------------------------------------------------------------------------------------------- the fence


@bug
def no_fence() -> AbstractContextManager[None]:
    """A report is believed whichever attempt it is about."""
    real = rules._held

    def held(task: Task, attempt: int, lease_id: Any, *args: Any, **more: Any) -> Transition | None:
        return real(task, task.attempt, task.lease_id, *args, **more)  # type: ignore[arg-type]

    return patched(rules, "_held", held)


@bug
def no_fence_at_once() -> AbstractContextManager[None]:
    """A success is written at once whichever attempt it is about."""
    return reworded(complete_at_once=("and h.attempt = u.attempt and h.lease_id = u.lease_id", ""))


@bug
def ended_at_once_again() -> AbstractContextManager[None]:
    """A success is written at once whatever became of its attempt."""
    return reworded(complete_at_once=("h.state = 'running' and", ""))


@bug
def ended_at_once_tells_nobody() -> AbstractContextManager[None]:
    """A success is written at once although others wait for the end of the task."""
    return reworded(complete_at_once=("and not h.waited_for", ""))


@bug
def no_row_lock() -> AbstractContextManager[None]:
    """Tasks are loaded without being locked."""
    return reworded(load_tasks=("for update skip locked", ""))


@bug
def terminal_overwritten() -> AbstractContextManager[None]:
    """A report about an attempt that has ended is applied once more."""
    real = rules._held

    def held(task: Task, attempt: int, lease_id: Any, *args: Any, **more: Any) -> Transition | None:
        return (
            None
            if (attempt, lease_id) == (task.attempt, task.lease_id)
            else real(task, attempt, lease_id, *args, **more)
        )

    everywhere = frozenset((one, other) for one in State for other in State)
    return together(patched(rules, "_held", held), _table({Verb.COMPLETE: everywhere, Verb.FAIL: everywhere}))


@contextmanager
def _table(changes: dict[Verb, frozenset[tuple[State, State]]]) -> Iterator[None]:
    before = dict(TABLE)
    TABLE.update(changes)
    try:
        yield
    finally:
        TABLE.update(before)


@bug
def expiry_clears_token() -> AbstractContextManager[None]:
    """Expiry takes the lease off the row, so that the late reply of its holder is refused."""
    real = rules.expire

    def expire(*args: Any, **more: Any) -> Transition:
        move = real(*args, **more)
        return replace(move, after=replace(move.after, lease_id=None))

    return patched(rules, "expire", expire)


@bug
def token_can_be_guessed() -> AbstractContextManager[None]:
    """The token of a lease is computed from the id of its worker."""
    real = leases.Leases.open

    async def opened(self: Any, *args: Any, **more: Any) -> Lease:
        twin = copy(self)
        twin._randomness = _Computed(self._randomness.new_id())
        return await real(twin, *args, **more)

    return patched(leases.Leases, "open", opened)


@dataclass(frozen=True, slots=True)
class _Computed:
    """Chance whose only id gives its only token."""

    id: UUID

    def new_id(self) -> UUID:
        return self.id

    def new_token(self, delivery: str) -> UUID:
        return computed_token(derived_id("lease", self.id), delivery)


@bug
def worker_is_known_by_its_lease() -> AbstractContextManager[None]:
    """What people see as the id of a worker is the token of its attempts."""
    real = WorkerTable.insert_worker

    async def insert_worker(self: Any, _: Any, lease: Lease, *rest: Any) -> None:
        await real(self, lease.id, lease, *rest)

    return patched(WorkerTable, "insert_worker", insert_worker)


@bug
def token_is_told() -> AbstractContextManager[None]:
    """Whoever asks after a task is told the token of its attempt."""
    return patched(session_call, "replace", lambda told, **_: told)


@bug
def caller_of_another_namespace() -> AbstractContextManager[None]:
    """Who shows the token of an attempt may speak for it, from whichever namespace."""

    async def nothing(*_: Any) -> dict[Any, Any]:
        return {}

    return patched(AttemptAccess, "refusals", nothing)


@bug
def release_takes_attempt_back() -> AbstractContextManager[None]:
    """A released task goes back to the attempt before, whose number is then given out twice."""
    real = rules.release

    def release(*args: Any, **more: Any) -> Transition:
        move = real(*args, **more)
        return replace(move, after=replace(move.after, attempt=move.after.attempt - 1)) if move.changed else move

    return patched(rules, "release", release)


# --------------------------------------------------------------------------------------------- leases and counters


@bug
def heartbeat_revives_lease() -> AbstractContextManager[None]:
    """A heartbeat extends a lease that has run out."""
    return reworded(extend_leases=("and l.expires_at > windlass.now()", ""))


@bug
def claim_under_dead_lease() -> AbstractContextManager[None]:
    """A claim does not hold on to its lease, which may end while the claim is under way."""
    held = ("for key share", "")
    return reworded(open_claim=held, check_claim=held, start_due=held, insert_started_tasks=held)


@bug
def loss_counted_as_failure() -> AbstractContextManager[None]:
    """A worker that dies costs the task one of its attempts."""
    real = rules.expire

    def expire(task: Task, *args: Any, **more: Any) -> Transition:
        move = real(task, *args, **more)
        return replace(move, after=replace(move.after, losses=task.losses, failures=task.failures + 1))

    return patched(rules, "expire", expire)


@bug
def lost_claim_reply_forgotten() -> AbstractContextManager[None]:
    """When the reply to a claim's commit is lost, the worker is told that there was nothing."""

    async def read(*_: Any) -> list[Any]:
        return []

    return patched(lost_replies.LostReplies, "_read", read)


# --------------------------------------------------------------------------------------------- cancel and timers


@bug
def cancel_lost_to_retry() -> AbstractContextManager[None]:
    """A task that is to be cancelled fails, and is tried again."""
    real = rules.fail

    def fail(task: Task, *args: Any, **more: Any) -> Transition:
        move = real(replace(task, cancel=None), *args, **more)
        return replace(move, before=task) if move.changed else real(task, *args, **more)

    return patched(rules, "fail", fail)


@bug
def grace_ignored() -> AbstractContextManager[None]:
    """The grace of a cancel is over as soon as the worker has been told."""
    real = rules._timer

    def timer(task: Task) -> Instant | None:
        told = task.cancel is not None and task.cancel.signalled_at is not None
        return task.cancel.signalled_at if told and task.cancel is not None else real(task)

    def over(task: Task, _now: Instant) -> bool:
        return task.cancel is not None and task.cancel.signalled_at is not None

    return together(patched(rules, "_timer", timer), patched(rules, "_grace_over", over))


# --------------------------------------------------------------------------------------------- limits and the line


@bug
def limit_without_lock() -> AbstractContextManager[None]:
    """What runs in a queue is counted without the queue's lock."""
    return reworded(lock_queue=(" for update", ""))


@bug
def limit_counted_before_lock() -> AbstractContextManager[None]:
    """What runs in a queue is counted, and then the queue is locked."""

    async def admit_under_lock(self: Any, tx: Any, lease: Lease, queue: str, limit: int, view: Any) -> Any:
        usage = await tx.queues.queue_usage(lease.namespace, queue, view.config)
        config = await tx.queues.lock_queue(lease.namespace, queue)
        now = await tx.now()
        return dataclasses.replace(view, config=config, now=now), admit(config, usage, limit, now)

    return patched(strategies.ClaimStrategies, "_admit_under_lock", admit_under_lock)


@bug
def rate_window_forgets() -> AbstractContextManager[None]:
    """Starts are forgotten after half of the window in which they count."""
    return reworded(insert_rate_start=("$5::double precision *", "0.5 * $5::double precision *"))


@bug
def claim_jumps_the_line() -> AbstractContextManager[None]:
    """Of a lane, the youngest task is claimed first."""
    youngest = ("order by t.available_at", "order by t.available_at desc")
    return reworded(claim_tasks=youngest, start_due=youngest)


@bug
def hand_off_jumps_the_line() -> AbstractContextManager[None]:
    """What was just submitted is handed to the one who waits, though older tasks are there."""
    return reworded(insert_started_tasks=("limit 1) waiting) = 0", "limit 1) waiting) >= 0"))


# --------------------------------------------------------------------------------------------- submit


@bug
def batch_rerun_with_new_ids() -> AbstractContextManager[None]:
    """A batch of submissions that is run again after a lost reply gets new ids."""
    real = submitter.Submitter._commit_plain
    seen: set[Any] = set()

    async def commit_plain(self: Any, batch: list[Submission]) -> Any:
        again = [replace(s, id=self._randomness.new_id()) if s.id in seen else s for s in batch]
        seen.update(s.id for s in batch)
        return await real(self, again)

    return patched(submitter.Submitter, "_commit_plain", commit_plain)


@bug
def idempotency_key_without_table() -> AbstractContextManager[None]:
    """Whether a key was used is seen from the tasks, not decided by a row of its own."""
    real = QUERIES["insert_idempotency_keys"]
    looked_up = (
        "select u.namespace, u.key from unnest($1::text[], $2::text[], $3::uuid[]) as u(namespace, key, task_id)"
        " where not exists (select from windlass.task t where t.namespace = u.namespace and t.idempotency_key = u.key)"
    )
    by_table = (
        "join windlass.idempotency i on i.namespace = u.namespace and i.key = u.key\n"
        "  join windlass.task t on t.id = i.task_id"
    )
    by_task = (
        "join windlass.task t on t.namespace = u.namespace and t.idempotency_key = u.key\n"
        "  cross join lateral (select u.namespace, u.key) i"
    )
    return reworded(insert_idempotency_keys=(real, looked_up), find_idempotency_keys=(by_table, by_task))


# --------------------------------------------------------------------------------------------- runs and effects


@bug
def early_fan_in() -> AbstractContextManager[None]:
    """Whoever waits for many is released by the first that ends."""
    real = run_rules.settle
    return patched(run_rules, "settle", lambda task, ended, _open, now: real(task, ended, 0, now))


@bug
@contextmanager
def double_fan_in() -> Iterator[None]:
    """Two engines may settle the same end at once, each without the other's locks."""

    async def load(tx: Any, ids: Any, _patiently: bool) -> tuple[dict[Any, Task], set[Any]]:
        rows = await tx.session.fetch("load_tasks_unlocked", ids)
        return {row[0]: rows.task_from(row) for row in rows}, set()

    unlocked = ("for update skip locked", "")
    with patched(ticks, "_load", load), reworded(lock_effects=unlocked, lock_free_runs=unlocked):
        QUERIES["load_tasks_unlocked"] = QUERIES["load_tasks"].replace(*unlocked)
        yield


@bug
def effect_removed_before_it_is_carried_out() -> AbstractContextManager[None]:
    """An effect is taken off the outbox, and then delivered."""
    real = outbox._carry_out

    async def carry_out(store: Any, randomness: Any, handler: Any, effect: Any, tries: int) -> None:
        async with store.begin() as tx:
            await tx.outbox.delete_effects([effect.id])
        await real(store, randomness, handler, effect, tries)

    return patched(outbox, "_carry_out", carry_out)


@bug
def ended_task_tells_nobody() -> AbstractContextManager[None]:
    """A task that is cancelled does not tell those who wait for it."""
    real = rules._settle
    return patched(rules, "_settle", lambda after: () if after.state is State.CANCELLED else real(after))


# --------------------------------------------------------------------------------------------- wake-ups


@bug
def retry_wakes_nobody() -> AbstractContextManager[None]:
    """A task that goes back in line is not announced."""

    def quiet(moves: Any) -> tuple[PendingNotifications, set[tuple[str, str]]]:
        wakes, freed = wakes_of(moves)
        wakes.queues.clear()
        return wakes, freed

    return patched(store_tx, "wakes_of", quiet)


@bug
def freed_place_wakes_nobody() -> AbstractContextManager[None]:
    """A place that becomes free in a full queue is not announced."""

    def quiet(moves: Any) -> tuple[PendingNotifications, set[tuple[str, str]]]:
        return wakes_of(moves)[0], set()

    at_once = reworded(complete_at_once=("and q.config <> '{}'", "and false"))
    return together(patched(store_tx, "wakes_of", quiet), at_once)


# --------------------------------------------------------------------------------------------- workflows


@bug
def step_without_fence() -> AbstractContextManager[None]:
    """A step is recorded whichever attempt did it."""
    return patched(step_command, "check_fence", lambda *_: None)


@bug
def record_forgotten() -> AbstractContextManager[None]:
    """An attempt is not told what the one before it has recorded."""

    async def load(*_: Any) -> list[Any]:
        return []

    return patched(workflows.Workflows, "load", load)


@bug
def done_step_rewritten() -> AbstractContextManager[None]:
    """A step that is done is recorded once more."""
    unknown = ("where", "where false and")
    return reworded(
        put_steps=("where s.state = 'waiting' or", "where true or"),
        known_steps=("s.task_id = u.task_id", "false"),
        task_steps=unknown,
    )


@bug
def signal_wakes_nobody() -> AbstractContextManager[None]:
    """A signal is kept, and the workflow that waits for it sleeps on."""
    return patched(step_command, "wake", lambda task, _: Transition(Verb.NOTE, task, task))


@bug
def signal_for_two() -> AbstractContextManager[None]:
    """A signal is not used up by the wait that it ends."""
    return reworded(consume_signals=("set consumed = true", "set consumed = g.consumed"))


@bug
def child_ends_in_silence() -> AbstractContextManager[None]:
    """The end of a child task wakes no workflow."""
    real = rules._settle
    return patched(rules, "_settle", lambda after: tuple(effect for effect in real(after) if effect.kind != "wake"))
