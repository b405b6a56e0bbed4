"""The loops of the engine, each as one `tick` that does what is due now and returns how much it did.

Any number of engines may run any of them on one database: rows are taken with SKIP LOCKED, and a rule decides each.
A tick that did a full batch has more to do; the runner calls it again at once.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from uuid import UUID

from windlass.core import run as run_rules
from windlass.core import task as rules
from windlass.core.run import Edge
from windlass.core.states import Effect, State, Transition
from windlass.core.task import Task
from windlass.engine.randomness import Randomness
from windlass.errors import StoreBusy
from windlass.store.store import Store
from windlass.store.transaction import Transaction

log = logging.getLogger("windlass.watchdog")

BATCH = 500
NAMED_MAX = 10  # tasks in one line of the log
LEASES_BATCH = 20
HELD_WAIT_MS, HELD_DELAY_S = 200, 1.0


async def expire_leases(store: Store, randomness: Randomness) -> int:
    """Recover the attempts under expired leases. A lease that covers no attempt is deleted."""
    stale: list[tuple[UUID, str]] = []
    lost: list[Transition] = []
    async with store.begin() as tx:
        leases = await tx.leases.expired_leases(LEASES_BATCH)
        for lease_id, namespace, queues, now in leases:
            tasks = await tx.leases.lease_tasks(namespace, queues, lease_id, BATCH)
            moves = [rules.expire(task, now, randomness.jitter()) for task in tasks]
            await tx.apply(moves)
            lost += moves
            stale += await tx.workers.workers_offline([lease_id])
            if not await tx.leases.lease_holds_tasks(namespace, queues, lease_id):
                await tx.leases.delete_leases([lease_id])
    log_losses(stale, lost)
    return len(lost)


def log_losses(stale: Sequence[tuple[UUID, str]], lost: Sequence[Transition]) -> None:
    """Log for operators which workers are gone, which tasks run again, and which have used up their losses."""
    for worker_id, name in stale:
        log.warning("worker %s (%s) is stale: its heartbeats stopped", worker_id, name)
    by_worker: dict[str, list[Transition]] = {}
    for move in lost:
        by_worker.setdefault(move.before.worker or "", []).append(move)
    for worker, moves in by_worker.items():
        back = [move.after for move in moves if move.after.state is not State.FAILED]
        if back:
            named = ", ".join(str(task.id) for task in back[:NAMED_MAX])
            more = f" and {len(back) - NAMED_MAX} more" if len(back) > NAMED_MAX else ""
            log.warning("recovered %d runs of worker %s: %s%s", len(back), worker, named, more)
        for task in (move.after for move in moves if move.after.state is State.FAILED):
            log.error("gave up run %s (%s): its worker was lost %d times", task.id, task.kind, task.losses)


async def fire_timers(store: Store, randomness: Randomness) -> int:
    """Decide what follows from deadlines, timeouts, and the ends of sleeps and of cancel graces."""
    async with store.begin() as tx:
        tasks, now = await tx.tasks.due_timers(BATCH)
        if now is not None:
            await tx.apply([rules.elapse(task, now, randomness.jitter()) for task in tasks])
    return len(tasks)


async def settle_runs(store: Store) -> int:
    """Settle the edges of ended tasks, which may release tasks that wait: run by run, under the run's lock.

    Locked runs and tasks are skipped, then tried run by run. Those still locked are delayed, so that they do not stay
    at the head of the line.
    """
    async with store.begin() as tx:
        effects = await tx.outbox.lock_effects("settle", BATCH)
        if not effects:
            return 0
        free = await tx.runs.lock_free_runs({_run_of(effect) for effect in effects})
        done = await _settle(tx, [effect for effect in effects if _run_of(effect) in free])
    left: dict[UUID, list[Effect]] = {}
    for effect in effects:
        if effect.id not in done:
            left.setdefault(_run_of(effect), []).append(effect)
    return len(done) + sum([await _settle_alone(store, run_id, held) for run_id, held in left.items()])


async def wake_parents(store: Store) -> int:
    """Wake the workflows whose child tasks have ended. Locked ones are delayed, not dropped: a workflow that is just
    going to sleep may not have seen the end."""
    async with store.begin() as tx:
        effects = await tx.outbox.lock_effects("wake", BATCH)
        if not effects:
            return 0
        parents, held = await _load(tx, sorted({_parent_of(effect) for effect in effects}), patiently=False)
        if parents:
            now = await tx.now()
            await tx.apply([rules.wake_parent(parent, now) for parent in parents.values()])
        left = [effect.id for effect in effects if _parent_of(effect) in held]
        if left:
            await tx.outbox.delay_effects(left, HELD_DELAY_S)
        done = [effect.id for effect in effects if _parent_of(effect) not in held]
        await tx.outbox.delete_effects(done)
    return len(done)


async def _settle_alone(store: Store, run_id: UUID, effects: Sequence[Effect]) -> int:
    try:
        async with store.begin() as tx:
            await tx.limit_waits(HELD_WAIT_MS)
            await tx.runs.lock_runs([run_id])
            return len(await _settle(tx, effects, patiently=True))
    except StoreBusy:
        async with store.begin() as tx:
            await tx.outbox.delay_effects([effect.id for effect in effects], HELD_DELAY_S)
        return 0


async def _settle(tx: Transaction, effects: Sequence[Effect], *, patiently: bool = False) -> set[UUID]:
    """Settle edges of runs that are locked. Returns the effects that were carried out, which are deleted."""
    edges = await tx.runs.ended_edges({effect.task_id for effect in effects}) if effects else []
    ended: dict[UUID, list[Edge]] = {}
    for edge in edges:
        ended.setdefault(edge.task_id, []).append(edge)
    tasks, held = await _load(tx, sorted(ended), patiently) if ended else ({}, set())
    await tx.runs.delete_edges([edge for edge in edges if edge.task_id not in held])
    if tasks:
        still_open = await tx.runs.open_edges(tasks)
        now = await tx.now()
        await tx.apply([run_rules.settle(t, ended[t.id], still_open.get(t.id, 0), now) for t in tasks.values()])
    unsettled = {edge.upstream_id for edge in edges if edge.task_id in held}
    done = {effect.id for effect in effects if effect.task_id not in unsettled}
    await tx.outbox.delete_effects(done)
    return done


async def _load(tx: Transaction, ids: Sequence[UUID], patiently: bool) -> tuple[dict[UUID, Task], set[UUID]]:
    """Lock these tasks. Returns them, and the ids of those that another transaction has locked."""
    if patiently:
        return await tx.tasks.lock_tasks(ids, HELD_WAIT_MS), set()
    tasks, _ = await tx.tasks.load_tasks(ids)
    missing = [id_ for id_ in ids if id_ not in tasks]
    return tasks, await tx.tasks.existing_tasks(missing) if missing else set()


def _run_of(effect: Effect) -> UUID:
    return UUID(str(effect.body["run_id"]))


def _parent_of(effect: Effect) -> UUID:
    return UUID(str(effect.body["parent_id"]))
