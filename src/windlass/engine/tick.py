"""The loops of the engine, each as one `tick` that does what is due now and says how much it did.

Any number of engines may run any of them on one database: rows are taken with SKIP LOCKED, and what follows for each
is a rule. A tick that did a full batch has more to do; the runner calls it again at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from windlass.core import run as run_rules
from windlass.core import task as rules
from windlass.core.run import Edge
from windlass.core.transition import Transition
from windlass.engine.chance import Chance
from windlass.store.store import Store
from windlass.store.tx import Tx

BATCH = 500
LEASES_BATCH = 20


async def expire_leases(store: Store, chance: Chance) -> int:
    """Recover what ran under leases that have run out; a lease that covers nothing any more is removed."""
    done = 0
    async with store.begin() as tx:
        leases = await tx.leases.expired_leases(LEASES_BATCH)
        for lease_id, namespace, queues, now in leases:
            tasks = await tx.leases.lease_tasks(namespace, queues, lease_id, BATCH)
            await tx.apply([rules.expire(task, now, chance.jitter()) for task in tasks])
            done += len(tasks)
            if not await tx.leases.lease_holds_tasks(namespace, queues, lease_id):
                await tx.leases.delete_leases([lease_id])
    return done


async def ring_timers(store: Store, chance: Chance) -> int:
    """Deadlines, timeouts, ends of sleeps, ends of graces."""
    async with store.begin() as tx:
        tasks, now = await tx.tasks.due_timers(BATCH)
        if now is not None:
            await tx.apply([rules.elapse(task, now, chance.jitter()) for task in tasks])
    return len(tasks)


async def settle_runs(store: Store) -> int:
    """Tell the tasks that wait what became of those they waited for, run by run, under the run's lock."""
    async with store.begin() as tx:
        effects = await tx.outbox.lock_effects("settle", BATCH)
        if not effects:
            return 0
        await tx.runs.lock_runs({UUID(str(effect.body["run_id"])) for effect in effects})
        await _settle(tx, await tx.runs.ended_edges({effect.task_id for effect in effects}))
        await tx.outbox.delete_effects([effect.id for effect in effects])
    return len(effects)


async def _settle(tx: Tx, edges: Sequence[Edge]) -> None:
    if not edges:
        return
    ended: dict[UUID, list[Edge]] = {}
    for edge in edges:
        ended.setdefault(edge.task_id, []).append(edge)
    tasks = await tx.tasks.load_tasks_patiently(sorted(ended))
    await tx.runs.delete_edges(edges)
    still_open = await tx.runs.open_edges(tasks)
    now = await tx.now()
    moves: list[Transition] = [
        run_rules.settle(task, ended[task.id], still_open.get(task.id, 0), now) for task in tasks.values()
    ]
    await tx.apply(moves)
