"""Leases of workers: opened, extended many at a time, ended.

A heartbeat costs one small row however many tasks the worker runs. Its answer tells of cancels; that is the moment from
which their grace runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from uuid import UUID

import msgspec

from windlass.core import task as rules
from windlass.core.check import check_count, check_list, check_name, check_names, check_seconds, check_type, clean_text
from windlass.core.delivery import CLAIMED_TYPES, check_claimable
from windlass.core.error import Invalid, LeaseLost, NotFound, WindlassError
from windlass.core.lease import IDLE, Activity, CancelSignal, Extension, Lease, check_about, check_lease
from windlass.core.task import Task
from windlass.core.transition import Transition
from windlass.engine.chance import Chance
from windlass.engine.committer import Committer, Pause
from windlass.store.store import Store
from windlass.store.tx import Tx

DEFAULT_TTL_S = 30.0
OUTPUT_MAX = 8192
LOSE_MAX = 10_000
CONCURRENCY_MAX, ENDED_MAX = 1_000_000, 2**31 - 1
TTL_MIN_S, TTL_MAX_S = 0.5, 7 * 86400.0
UNKNOWN = datetime.max.replace(tzinfo=UTC)  # until the database has said


class Beat(msgspec.Struct, frozen=True):
    """A sign of life. With `active`, what the worker does not name is taken from it. `asked_s` is when it came, on the
    event loop's clock: the list may be old by the time that the database is asked."""

    lease: Lease
    active: tuple[UUID, ...] | None = None
    asked_s: float = 0.0
    activity: Activity = IDLE


class Leases:
    """The leases that workers hold through this engine."""

    def __init__(self, store: Store, chance: Chance, *, pause: Pause) -> None:
        self._store, self._chance = store, chance
        self._beats: Committer[Beat, Extension] = Committer(self._commit, pause=pause)

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
        """A new incarnation: the same name again is another lease, and keeps nothing of the former one. It takes tasks
        of those of its queues whose delivery is of this type; Invalid if there is nothing that it could ever claim."""
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
        if delivery not in CLAIMED_TYPES:
            raise Invalid(f"must be one of {', '.join(CLAIMED_TYPES)}", field="delivery")
        check_count("concurrency", concurrency, most=CONCURRENCY_MAX)
        wanted = Lease(
            self._chance.new_token(delivery), namespace, worker, tuple(dict.fromkeys(queues)),
            None if kinds is None else tuple(kinds), tuple(labels), float(ttl_s), UNKNOWN, host, pid, version,
            delivery,
        )  # fmt: skip
        async with self._store.begin() as tx:
            if delivery == "pull":
                check_claimable("queues", wanted.queues, await tx.queues.get_deliveries(namespace, wanted.queues))
            expires_at = await tx.leases.open_lease(wanted)
            await tx.workers.insert_worker(self._chance.new_id(), wanted, concurrency)
        assert expires_at is not None, wanted.id
        return msgspec.structs.replace(wanted, expires_at=expires_at)

    async def get(self, lease_id: UUID) -> Lease:
        """A lease by its id, live or not, for as long as its row is there."""
        check_type("lease_id", lease_id, UUID)
        async with self._store.begin() as tx:
            lease = await tx.leases.get_lease(lease_id)
        if lease is None:
            raise NotFound("there is no such lease", lease_id=lease_id)
        return lease

    async def resume(self, lease: Lease, active: Sequence[UUID]) -> Lease:
        """A worker comes back under its lease after it was cut off. What it does not hold never reached it: back in
        line at once, no budget used. Raises LeaseLost if it came too late."""
        check_lease(lease)
        for task_id in check_list("active", active):
            check_type("active", task_id, UUID)
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
        asked_s: float | None = None,
    ) -> Extension:
        """`asked_s` is when the worker was heard, if that was not just now."""
        check_lease(lease)
        check_type("activity", activity, Activity)
        check_count("completed", activity.completed, most=ENDED_MAX)
        check_count("failed", activity.failed, most=ENDED_MAX)
        for task_id in check_list("active", active) if active is not None else ():
            check_type("active", task_id, UUID)
        asked_s = asyncio.get_running_loop().time() if asked_s is None else asked_s
        return await self._beats.call(Beat(lease, None if active is None else tuple(active), asked_s, activity))

    async def end(self, lease: Lease) -> None:
        """The worker goes. What it still holds counts as lost and is recovered by the next tick."""
        check_lease(lease)
        async with self._store.begin() as tx:
            await tx.workers.workers_offline([lease.id])
            await tx.leases.end_leases([lease.id])

    async def lose(self, lease: Lease, last_output: str = "") -> int:
        """Somebody saw the worker die: what it ran is recovered now, and keeps what the worker wrote last. Returns how
        many attempts that were; what somebody holds is left to the next tick."""
        check_lease(lease)
        output = clean_text("last_output", last_output, OUTPUT_MAX)
        async with self._store.begin() as tx:
            await tx.leases.end_leases([lease.id])
            await tx.workers.workers_offline([lease.id])
            tasks = await tx.leases.lease_tasks(lease.namespace, lease.queues, lease.id, LOSE_MAX)
            now = await tx.now()
            await tx.apply([rules.expire(task, now, self._chance.jitter(), "WORKER_DIED", output) for task in tasks])
        return len(tasks)

    async def close(self) -> None:
        await self._beats.close()

    async def _commit(self, beats: list[Beat]) -> list[Extension | WindlassError]:
        ids = {beat.lease.id for beat in beats}
        async with self._store.begin() as tx:
            await self._note_activity(tx, beats)
            extended = await tx.leases.extend_leases(ids)
            await self._take_forgotten(tx, [b for b in beats if b.active is not None and b.lease.id in extended])
            lost = {b.lease.id: await tx.leases.lost_tasks(b.lease.id, b.active) for b in beats if b.active}
            cancels = await self._signal(tx, extended)
        return [
            Extension(extended[id_][0], tuple(cancels.get(id_, ())), tuple(lost.get(id_, ())), extended[id_][1])
            if (id_ := beat.lease.id) in extended
            else LeaseLost("the lease has run out or was ended", lease_id=id_)
            for beat in beats
        ]

    async def _note_activity(self, tx: Tx, beats: list[Beat]) -> None:
        """Most heartbeats say nothing of it, and cost nothing for it."""
        draining = {beat.lease.id for beat in beats if beat.activity.draining}
        if draining:
            await tx.workers.drain_leases(draining)
        ended: dict[UUID, tuple[int, int]] = {}
        for beat in beats:
            if beat.activity.completed or beat.activity.failed:
                completed, failed = ended.get(beat.lease.id, (0, 0))
                ended[beat.lease.id] = (completed + beat.activity.completed, failed + beat.activity.failed)
        if ended:
            await tx.workers.count_work(dict(sorted(ended.items())))

    async def _signal(self, tx: Tx, extended: Collection[UUID]) -> dict[UUID, list[CancelSignal]]:
        """Tell of every cancel each time; the grace begins with the first."""
        if not extended:
            return {}
        tasks, now = await tx.leases.cancelling_tasks(extended)
        if now is None:
            return {}
        await tx.apply([rules.signal_cancel(task, now) for task in tasks])
        signals: dict[UUID, list[CancelSignal]] = {}
        for task in tasks:
            assert task.lease_id is not None, task.id
            assert task.cancel is not None, task.id
            signals.setdefault(task.lease_id, []).append(CancelSignal(task.id, task.attempt, task.cancel.reason))
        return signals

    async def _take_forgotten(self, tx: Tx, beats: list[Beat]) -> None:
        """A claim whose reply never reached its worker would otherwise run for as long as the worker lives."""
        for beat in beats:
            waited_s = asyncio.get_running_loop().time() - beat.asked_s
            tasks, now = await tx.leases.forgotten_tasks(beat.lease, beat.active or (), beat.lease.ttl_s + waited_s)
            if now is not None:
                await tx.apply([self._forgotten(task, now) for task in tasks])

    def _forgotten(self, task: Task, now: datetime) -> Transition:
        return rules.expire(task, now, self._chance.jitter(), "FORGOTTEN_BY_WORKER")
