"""The registry of workers: who is here, who takes no more, who is gone.

Whether a worker is here is said by its lease, and so is known the moment it runs out. Heartbeats of many workers share
one statement.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from uuid import UUID

import msgspec
from msgspec.structs import replace

from windlass.core import task as rules
from windlass.core.check import check_count, check_name, check_seconds, check_type
from windlass.core.command import Claimed
from windlass.core.delivery import check_claimable
from windlass.core.error import Invalid, NotFound, WindlassError
from windlass.core.lease import Lease
from windlass.core.position import Position, check_position
from windlass.core.queue import QueueConfig
from windlass.core.worker import Beat, Registration, Worker, WorkerState, check_registration, label_of
from windlass.engine.chance import Chance
from windlass.engine.committer import Committer, Pause
from windlass.engine.hub import Hub
from windlass.engine.lease import LOSE_MAX, UNKNOWN
from windlass.engine.tick import log_losses
from windlass.store.store import Store
from windlass.store.tx import Tx
from windlass.store.wake import Wakes

log = logging.getLogger("windlass.watchdog")

DRAIN_TIMEOUT_S = 300.0
STALE_S = 30.0
PAGE_MAX = 10_000


class Beaten(msgspec.Struct, frozen=True):
    """The answer to a heartbeat."""

    lease_id: UUID
    expires_at: datetime
    draining: bool


class WorkerPage(msgspec.Struct, frozen=True):
    """Newest first. `next` is the position to go on from, None at the end; `total` counts all that match."""

    workers: list[Worker]
    next: Position | None
    total: int


class Workers:
    """The workers of one database, of every kind. `rescue` gives back what was claimed for a worker that is gone."""

    def __init__(
        self, store: Store, chance: Chance, hub: Hub, rescue: Callable[[Sequence[Claimed]], None], *, pause: Pause
    ) -> None:
        self.rescue = rescue
        self._store, self._chance, self._hub = store, chance, hub
        self._beats: Committer[Beat, Beaten] = Committer(self._commit, pause=pause)
        self.drain_timeout_s = DRAIN_TIMEOUT_S

    async def close(self) -> None:
        await self._beats.close()

    # ----------------------------------------------------------------------------------------- what workers say

    async def register(self, said: Registration, *, stale_s: float = STALE_S) -> tuple[UUID, Lease]:
        """A worker begins, or begins again: then it has its id from before and a new lease."""
        check_registration(said)
        check_seconds("stale_s", stale_s, least=0.5)
        name = f"{said.host}:{said.pid}" if said.host and said.pid else said.host
        lease_id, new_id = self._chance.new_token("pull"), self._chance.new_id()
        async with self._store.begin() as tx:
            deliveries = await tx.queues.get_deliveries(said.namespace, (said.queue,))
            check_claimable("queue", (said.queue,), deliveries)
            await _limit(tx, said)
            worker_id = await tx.workers.register_worker(new_id, lease_id, name or str(new_id), said)
            labels = tuple(label_of(key, value) for key, value in said.labels.items())
            lease = Lease(
                lease_id, said.namespace, str(worker_id), (said.queue,), tuple(dict.fromkeys(said.kinds)), labels,
                float(stale_s), UNKNOWN, said.host, said.pid, said.version,
            )  # fmt: skip
            expires_at = await tx.leases.open_lease(lease)
        assert expires_at is not None, lease_id
        return worker_id, replace(lease, expires_at=expires_at)

    async def beat(self, said: Beat) -> Beaten:
        """Raises NotFound if the worker is unknown or gone."""
        check_type("worker_id", said.worker_id, UUID)
        return await self._beats.call(said)

    async def _commit(self, beats: list[Beat]) -> list[Beaten | WindlassError]:
        """One statement, unless one worker beats more than once at a time."""
        answers: dict[int, Beaten | WindlassError] = {}
        left = list(enumerate(beats))
        async with self._store.begin() as tx:
            while left:
                turn, left = _once_each(left)
                found = await tx.workers.beat_workers([beat for _, beat in turn])
                for number, beat in turn:
                    known = found.get(beat.worker_id)
                    answers[number] = _unknown(beat.worker_id) if known is None else Beaten(*known)
            await self._end_cancelled(tx, [said.lease_id for said in answers.values() if isinstance(said, Beaten)])
        return [answers[number] for number in range(len(beats))]

    async def _end_cancelled(self, tx: Tx, lease_ids: Sequence[UUID]) -> None:
        """Whom no signal reaches: what was asked to stop is over at once, and its worker's next write is refused."""
        tasks, now = await tx.leases.cancelling_tasks(set(lease_ids)) if lease_ids else ([], None)
        if now is not None:
            await tx.apply([rules.cancel(task, "", now, force=True) for task in tasks])

    # ----------------------------------------------------------------------------------------- what people ask

    async def get(self, worker_id: UUID) -> Worker:
        check_type("worker_id", worker_id, UUID)
        async with self._store.single() as tx:
            worker = await tx.workers.get_worker(worker_id)
        if worker is None:
            raise _unknown(worker_id)
        return worker

    async def page(
        self,
        namespace: str = "default",
        *,
        queue: str | None = None,
        states: Sequence[WorkerState] | None = None,
        after: Position | None = None,
        limit: int = 100,
    ) -> WorkerPage:
        check_name("namespace", namespace)
        if queue is not None:
            check_name("queue", queue)
        for state in states or ():
            if state not in WorkerState.__members__.values():
                raise Invalid(f"{state!r} is not a state of a worker", field="states")
        check_count("limit", limit, least=1, most=PAGE_MAX)
        check_position("after", after)
        async with self._store.begin() as tx:
            found = await tx.workers.list_workers(namespace, after=after, queue=queue, states=states, limit=limit + 1)
            total = await tx.workers.count_workers(namespace, queue, states)
        page = found[:limit]
        return WorkerPage([worker for _, worker in page], page[-1][0] if len(found) > limit else None, total)

    # ----------------------------------------------------------------------------------------- what operators do

    async def drain(self, worker_id: UUID, timeout_s: float | None = None) -> Worker:
        """It finishes what it has and gets nothing new; what still runs after `timeout_s` is taken from it. Asked
        again, nothing changes."""
        wait_s = self.drain_timeout_s if timeout_s is None else timeout_s
        check_seconds("timeout_s", wait_s)
        worker = await self.get(worker_id)
        async with self._store.begin() as tx:
            await tx.workers.drain_lease(worker.lease_id, wait_s)
            await tx.wake(Wakes(leases={worker.lease_id}))
        return await self.get(worker_id)

    async def take_offline(self, worker_id: UUID) -> Worker:
        """It is gone, whatever it says: what it ran is recovered now. Asked again, nothing changes."""
        worker = await self.get(worker_id)
        async with self._store.begin() as tx:
            gone = await tx.workers.workers_offline([worker.lease_id])
            await tx.leases.end_leases([worker.lease_id])
            tasks = await tx.leases.lease_tasks(worker.namespace, worker.queues, worker.lease_id, LOSE_MAX)
            now = await tx.now()
            moves = [rules.expire(task, now, self._chance.jitter(), "WORKER_OFFLINE") for task in tasks]
            await tx.apply(moves)
            await tx.wake(Wakes(leases={worker.lease_id}))
        if gone:
            log.info("worker %s (%s) went, with %d runs under way", worker.id, worker.name, len(moves))
        log_losses((), moves)
        return await self.get(worker_id)

    async def await_news(self, lease_id: UUID, timeout_s: float) -> bool:
        """Wait until something is to be heard about the worker of this lease; False after `timeout_s`."""
        ticket = self._hub.ticket("lease", lease_id)
        try:
            return await ticket.wait(self._hub.timers, timeout_s)
        finally:
            self._hub.leave(ticket)


async def _limit(tx: Tx, said: Registration) -> None:
    """What a registration says of its queue holds for all; what it does not say stays as it is."""
    if said.queue_limit is None and not said.kind_limits:
        return
    known = await tx.queues.lock_queue(said.namespace, said.queue)
    limits = QueueConfig(
        known.paused,
        known.max_running if said.queue_limit is None else said.queue_limit,
        {**known.max_running_per_kind, **said.kind_limits},
        known.max_running_per_key,
        known.rate,
    )
    if limits != known:
        await tx.configure(said.namespace, said.queue, limits)


def _once_each(beats: Sequence[tuple[int, Beat]]) -> tuple[list[tuple[int, Beat]], list[tuple[int, Beat]]]:
    """The first beat of each worker, and those that are left."""
    turn: dict[UUID, tuple[int, Beat]] = {}
    left = []
    for number, beat in beats:
        if beat.worker_id in turn:
            left.append((number, beat))
        else:
            turn[beat.worker_id] = (number, beat)
    return list(turn.values()), left


def lease_of(worker: Worker) -> Lease:
    """The lease under which a worker claims, as the registry knows it."""
    labels = tuple(label_of(key, value) for key, value in worker.labels.items())
    return Lease(
        worker.lease_id, worker.namespace, str(worker.id), worker.queues, worker.kinds, labels, worker.lease_s,
        worker.expires_at, worker.host, worker.pid, worker.version,
    )  # fmt: skip


def _unknown(worker_id: UUID) -> NotFound:
    return NotFound(f"there is no worker {worker_id}, or it is gone", subject="worker", subject_id=worker_id)
