"""Leases of workers: opened, extended many at a time, ended.

A heartbeat costs one small row however many tasks the worker runs. Its answer carries cancels; the grace of a cancel
begins with the first answer that carries it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from uuid import UUID

import msgspec

from windlass.core import task as rules
from windlass.core.delivery import check_claimable, claimed_types
from windlass.core.lease import IDLE, Activity, CancelSignal, Extension, Lease, check_about, check_lease
from windlass.core.validation import (
    check_count,
    check_ids,
    check_name,
    check_names,
    check_seconds,
    check_type,
    clean_text,
)
from windlass.engine.commit.committer import Committer, Pause
from windlass.engine.randomness import Randomness
from windlass.errors import Invalid, LeaseLost, NotFound, WindlassError
from windlass.store.store import Store
from windlass.store.transaction import Transaction

DEFAULT_TTL_S = 30.0
OUTPUT_MAX = 8192
LOSE_MAX = 10_000
ENDED_MAX = 2**31 - 1
TTL_MIN_S, TTL_MAX_S = 0.5, 7 * 86400.0
UNKNOWN = datetime.max.replace(tzinfo=UTC)  # until the database answers


class LeaseHeartbeat(msgspec.Struct, frozen=True):
    """A worker extends its lease. With `active`, tasks that it does not name are taken from it. `received_s` is when
    the heartbeat came, by the event loop's clock: the list may be old when it is compared with the database."""

    lease: Lease
    active: tuple[UUID, ...] | None = None
    received_s: float = 0.0
    activity: Activity = IDLE


class Leases:
    """The leases that workers hold through this engine."""

    def __init__(self, store: Store, randomness: Randomness, *, pause: Pause) -> None:
        self._store, self._randomness = store, randomness
        self._heartbeats: Committer[LeaseHeartbeat, Extension] = Committer(self._commit, pause=pause)

    async def open(
        self,
        worker: str,
        queues: Sequence[str],
        *,
        kinds: Sequence[str] | None = None,
        labels: Sequence[str] = (),
        namespace: str = "default",
        ttl_s: float = DEFAULT_TTL_S,
        host: str = "",
        pid: int = 0,
        version: str = "",
        delivery: str = "pull",
        concurrency: int = 0,
    ) -> Lease:
        """Open the lease of a worker: it may claim until the lease expires. A worker that starts again gets another
        lease. `host`, `pid` and `version` describe the worker; `concurrency` is the number of tasks that it runs at the
        same time. It claims from those of its queues whose delivery is of this type; raises Invalid if there are
        none."""
        check_name("worker", worker)
        check_name("namespace", namespace)
        check_names("queues", queues)
        check_names("labels", labels)
        if kinds is not None:
            check_names("kinds", kinds)
        if not queues:
            raise Invalid("must name at least one queue", field="queues")
        check_seconds("ttl_s", ttl_s, least=TTL_MIN_S, most=TTL_MAX_S)
        check_about(host, pid, version)
        if delivery not in claimed_types():
            raise Invalid(f"must be one of {', '.join(claimed_types())}", field="delivery")
        check_count("concurrency", concurrency)
        wanted = Lease(
            self._randomness.new_token(delivery), namespace, worker, tuple(dict.fromkeys(queues)),
            None if kinds is None else tuple(kinds), tuple(labels), float(ttl_s), UNKNOWN, host, pid, version,
            delivery,
        )  # fmt: skip
        async with self._store.begin() as tx:
            if delivery == "pull":
                check_claimable("queues", wanted.queues, await tx.queues.get_deliveries(namespace, wanted.queues))
            expires_at = await tx.leases.open_lease(wanted)
            await tx.workers.insert_worker(self._randomness.new_id(), wanted, concurrency)
        assert expires_at is not None, wanted.id
        return msgspec.structs.replace(wanted, expires_at=expires_at)

    async def get(self, lease_id: UUID) -> Lease:
        """A lease by its id, live or not, while its row exists."""
        async with self._store.begin() as tx:
            lease = await tx.leases.get_lease(lease_id)
        if lease is None:
            raise NotFound("there is no such lease", lease_id=lease_id)
        return lease

    async def resume(self, lease: Lease, active: Sequence[UUID]) -> Lease:
        """A worker reconnects under its lease. Tasks that it does not name never reached it: they are queued again at
        once and use no budget. Raises LeaseLost if the lease has expired."""
        async with self._store.begin() as tx:
            extended = await tx.leases.extend_leases([lease.id])
            if lease.id not in extended:
                raise LeaseLost("the lease has run out or was ended", lease_id=lease.id)
            tasks, now = await tx.leases.forgotten_tasks(lease, active, 0.0)
            if now is not None:
                await tx.apply([rules.release(task, task.attempt, lease.id, now) for task in tasks])
        return msgspec.structs.replace(lease, expires_at=extended[lease.id][0])

    async def extend(
        self,
        lease: Lease,
        active: Sequence[UUID] | None = None,
        activity: Activity = IDLE,
        *,
        received_s: float | None = None,
    ) -> Extension:
        """`received_s` is when the heartbeat came, if that was not just now."""
        check_lease(lease)
        check_type("activity", activity, Activity)
        check_count("completed", activity.completed, most=ENDED_MAX)
        check_count("failed", activity.failed, most=ENDED_MAX)
        if active is not None:
            check_ids("active", active)
        received_s = asyncio.get_running_loop().time() if received_s is None else received_s
        return await self._heartbeats.call(
            LeaseHeartbeat(lease, None if active is None else tuple(active), received_s, activity)
        )

    async def end(self, lease: Lease) -> None:
        """The worker stops. Attempts that it still runs count as lost and are recovered by the next tick."""
        check_lease(lease)
        async with self._store.begin() as tx:
            await tx.workers.workers_offline([lease.id])
            await tx.leases.end_leases([lease.id])

    async def lose(self, lease: Lease, last_output: str = "") -> int:
        """The worker died: recover its attempts now, and keep its last output with them. Returns the number of
        attempts. Locked rows are left to the next tick."""
        output = clean_text("last_output", last_output, OUTPUT_MAX)
        async with self._store.begin() as tx:
            await tx.leases.end_leases([lease.id])
            await tx.workers.workers_offline([lease.id])
            tasks = await tx.leases.lease_tasks(lease.namespace, lease.queues, lease.id, LOSE_MAX)
            now = await tx.now()
            jitter = self._randomness.jitter
            await tx.apply([rules.expire(task, now, jitter(), "WORKER_DIED", output) for task in tasks])
        return len(tasks)

    async def close(self) -> None:
        await self._heartbeats.close()

    async def _commit(self, heartbeats: list[LeaseHeartbeat]) -> list[Extension | WindlassError]:
        ids = {heartbeat.lease.id for heartbeat in heartbeats}
        async with self._store.begin() as tx:
            await self._count_activity(tx, heartbeats)
            extended = await tx.leases.extend_leases(ids)
            await self._take_forgotten(tx, [h for h in heartbeats if h.active is not None and h.lease.id in extended])
            lost = {h.lease.id: await tx.leases.lost_tasks(h.lease.id, h.active) for h in heartbeats if h.active}
            cancels = await self._signal(tx, extended)
        return [
            Extension(extended[id_][0], tuple(cancels.get(id_, ())), tuple(lost.get(id_, ())), extended[id_][1])
            if (id_ := heartbeat.lease.id) in extended
            else LeaseLost("the lease has run out or was ended", lease_id=id_)
            for heartbeat in heartbeats
        ]

    async def _count_activity(self, tx: Transaction, heartbeats: list[LeaseHeartbeat]) -> None:
        """Most heartbeats carry no activity, and cost nothing for it."""
        draining = {heartbeat.lease.id for heartbeat in heartbeats if heartbeat.activity.draining}
        if draining:
            await tx.workers.drain_leases(draining)
        ended: dict[UUID, tuple[int, int]] = {}
        for heartbeat in heartbeats:
            lease_id, activity = heartbeat.lease.id, heartbeat.activity
            if activity.completed or activity.failed:
                completed, failed = ended.get(lease_id, (0, 0))
                ended[lease_id] = completed + activity.completed, failed + activity.failed
        if ended:
            await tx.workers.count_work(dict(sorted(ended.items())))

    async def _signal(self, tx: Transaction, extended: Collection[UUID]) -> dict[UUID, list[CancelSignal]]:
        """Every answer carries all cancels; the grace of each begins with the first answer."""
        tasks, now = await tx.leases.cancelling_tasks(extended) if extended else ((), None)
        if now is not None:
            await tx.apply([rules.signal_cancel(task, now) for task in tasks])
        signals: dict[UUID, list[CancelSignal]] = {}
        for task in tasks:
            assert task.lease_id is not None, task.id
            assert task.cancel is not None, task.id
            signals.setdefault(task.lease_id, []).append(CancelSignal(task.id, task.attempt, task.cancel.reason))
        return signals

    async def _take_forgotten(self, tx: Transaction, heartbeats: list[LeaseHeartbeat]) -> None:
        """Take tasks from workers that do not name them: the reply to the claim was lost, and the task would otherwise
        count as running for as long as the worker lives."""
        for heartbeat in heartbeats:
            waited_s = asyncio.get_running_loop().time() - heartbeat.received_s
            older_s = heartbeat.lease.ttl_s + waited_s
            tasks, now = await tx.leases.forgotten_tasks(heartbeat.lease, heartbeat.active or (), older_s)
            if now is not None:
                jitter = self._randomness.jitter
                await tx.apply([rules.expire(task, now, jitter(), "FORGOTTEN_BY_WORKER") for task in tasks])
