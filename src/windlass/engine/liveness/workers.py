"""The workers: which are online, draining, or offline.

The lease of a worker decides whether it is online, so a worker is offline the moment its lease expires. Heartbeats of
many workers share one statement.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from uuid import UUID

import msgspec
from msgspec.structs import replace

from windlass.core import task as rules
from windlass.core.command import Claimed
from windlass.core.delivery import check_claimable
from windlass.core.lease import Extension, Lease
from windlass.core.position import Position
from windlass.core.worker import Registration, Worker, WorkerHeartbeat, WorkerState, check_registration, label_of
from windlass.engine.commit.committer import Committer, Pause
from windlass.engine.liveness.leases import LOSE_MAX, UNKNOWN
from windlass.engine.loops.ticks import log_losses
from windlass.engine.notifications import Notifications
from windlass.engine.randomness import Randomness
from windlass.errors import NotFound, WindlassError
from windlass.store.notify import PendingNotifications
from windlass.store.store import Store
from windlass.store.transaction import Transaction

log = logging.getLogger("windlass.watchdog")

DRAIN_TIMEOUT_S = 300.0
STALE_S = 30.0


class WorkerPage(msgspec.Struct, frozen=True):
    """Newest first. `next` is the position of the next page, None at the end; `total` counts all that match."""

    workers: list[Worker]
    next: Position | None
    total: int


class Workers:
    """The workers of one database, of every contract. `rescue` gives back tasks claimed for a worker that left."""

    def __init__(
        self,
        store: Store,
        randomness: Randomness,
        notifications: Notifications,
        rescue: Callable[[Sequence[Claimed]], None],
        *,
        pause: Pause,
    ) -> None:
        self.rescue = rescue
        self._store, self._randomness, self._notifications = store, randomness, notifications
        self._heartbeats: Committer[WorkerHeartbeat, tuple[UUID, Extension]] = Committer(self._commit, pause=pause)
        self.drain_timeout_s = DRAIN_TIMEOUT_S

    async def close(self) -> None:
        await self._heartbeats.close()

    # ----------------------------------------------------------------------------------------- for workers

    async def register(self, registration: Registration, *, stale_s: float = STALE_S) -> tuple[UUID, Lease]:
        """A worker starts. One that starts again keeps its id and gets a new lease."""
        check_registration(registration)
        host, pid = registration.host, registration.pid
        name = f"{host}:{pid}" if host and pid else host
        lease_id, new_id = self._randomness.new_token("pull"), self._randomness.new_id()
        async with self._store.begin() as tx:
            deliveries = await tx.queues.get_deliveries(registration.namespace, (registration.queue,))
            check_claimable("queue", (registration.queue,), deliveries)
            await _limit(tx, registration)
            worker_id = await tx.workers.register_worker(new_id, lease_id, name or str(new_id), registration)
            labels = tuple(label_of(key, value) for key, value in registration.labels.items())
            lease = Lease(
                lease_id, registration.namespace, str(worker_id), (registration.queue,),
                tuple(dict.fromkeys(registration.kinds)), labels, float(stale_s), UNKNOWN, host, pid,
                registration.version,
            )  # fmt: skip
            expires_at = await tx.leases.open_lease(lease)
        assert expires_at is not None, lease_id
        return worker_id, replace(lease, expires_at=expires_at)

    async def heartbeat(self, heartbeat: WorkerHeartbeat) -> tuple[UUID, Extension]:
        """Record a heartbeat. Returns the worker's lease and its extension. Raises NotFound if the worker is unknown or
        gone."""
        return await self._heartbeats.call(heartbeat)

    async def _commit(self, heartbeats: list[WorkerHeartbeat]) -> list[tuple[UUID, Extension] | WindlassError]:
        """One statement, unless a worker sends more than one heartbeat at a time."""
        answers: dict[int, tuple[UUID, Extension] | WindlassError] = {}
        left = dict(enumerate(heartbeats))
        async with self._store.begin() as tx:
            while left:
                first = {heartbeat.worker_id: number for number, heartbeat in reversed(left.items())}
                turn = {number: left.pop(number) for number in sorted(first.values())}  # one of each worker
                found = await tx.workers.record_worker_heartbeats(list(turn.values()))
                for number, heartbeat in turn.items():
                    answers[number] = found.get(heartbeat.worker_id) or _unknown(heartbeat.worker_id)
            # These workers receive no cancel signals: their cancelled tasks end now, and their next write is refused.
            lease_ids = {answer[0] for answer in answers.values() if isinstance(answer, tuple)}
            tasks, now = await tx.leases.cancelling_tasks(lease_ids) if lease_ids else ((), None)
            if now is not None:
                await tx.apply([rules.cancel(task, "", now, force=True) for task in tasks])
        return [answers[number] for number in range(len(heartbeats))]

    # ----------------------------------------------------------------------------------------- reads

    async def get(self, worker_id: UUID) -> Worker:
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
        async with self._store.begin() as tx:
            found = await tx.workers.list_workers(namespace, after=after, queue=queue, states=states, limit=limit + 1)
            total = await tx.workers.count_workers(namespace, queue, states)
        page = found[:limit]
        return WorkerPage([worker for _, worker in page], page[-1][0] if len(found) > limit else None, total)

    # ----------------------------------------------------------------------------------------- for operators

    async def drain(self, worker_id: UUID, timeout_s: float | None = None) -> Worker:
        """Let a worker finish what it has and give it nothing new; tasks that still run after `timeout_s` are taken
        from it. Calling it again changes nothing."""
        wait_s = self.drain_timeout_s if timeout_s is None else timeout_s
        worker = await self.get(worker_id)
        async with self._store.begin() as tx:
            await tx.workers.drain_lease(worker.lease_id, wait_s)
            await tx.wake(PendingNotifications(leases={worker.lease_id}))
        return await self.get(worker_id)

    async def take_offline(self, worker_id: UUID) -> Worker:
        """Take a worker offline: its attempts are recovered now. Calling it again changes nothing."""
        worker = await self.get(worker_id)
        async with self._store.begin() as tx:
            gone = await tx.workers.workers_offline([worker.lease_id])
            await tx.leases.end_leases([worker.lease_id])
            tasks = await tx.leases.lease_tasks(worker.namespace, worker.queues, worker.lease_id, LOSE_MAX)
            now = await tx.now()
            moves = [rules.expire(task, now, self._randomness.jitter(), "WORKER_OFFLINE") for task in tasks]
            await tx.apply(moves)
            await tx.wake(PendingNotifications(leases={worker.lease_id}))
        if gone:
            log.info("worker %s (%s) was taken offline with %d running tasks", worker.id, worker.name, len(moves))
        log_losses((), moves)
        return await self.get(worker_id)

    async def await_notification(self, lease_id: UUID, timeout_s: float) -> bool:
        """Wait until the worker of this lease is notified of something; False after `timeout_s`."""
        return await self._notifications.wait("lease", lease_id, timeout_s=timeout_s)


async def _limit(tx: Transaction, registration: Registration) -> None:
    """Set the limits that a registration gives for its queue; others stay as they are."""
    if registration.queue_limit is None and not registration.kind_limits:
        return
    known = await tx.queues.lock_queue(registration.namespace, registration.queue)
    limits = replace(
        known,
        max_running=known.max_running if registration.queue_limit is None else registration.queue_limit,
        max_running_per_kind={**known.max_running_per_kind, **registration.kind_limits},
    )
    if limits != known:
        await tx.configure(registration.namespace, registration.queue, limits)


def lease_of_worker(worker: Worker) -> Lease:
    """The lease under which a worker claims."""
    labels = tuple(label_of(key, value) for key, value in worker.labels.items())
    return Lease(
        worker.lease_id, worker.namespace, str(worker.id), worker.queues, worker.kinds, labels, worker.lease_s,
        worker.expires_at, worker.host, worker.pid, worker.version,
    )  # fmt: skip


def _unknown(worker_id: UUID) -> NotFound:
    return NotFound(f"there is no worker {worker_id}, or it is gone", subject="worker", subject_id=worker_id)
