"""Queues: their settings, what runs in them, and the claim of tasks from their lanes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from uuid import UUID

from windlass.core.command import Claimed
from windlass.core.delivery import Delivery, QueueSettings
from windlass.core.fairness import Lane, LanePick
from windlass.core.lease import Lease
from windlass.core.queue import QueueConfig, QueueName, Usage
from windlass.core.task import Task
from windlass.store import records
from windlass.store.records import Row
from windlass.store.table import Table

_VIEW = 6  # columns of start_due that describe the claim, before those of the tasks that it began
_AVAILABLE_AT = attrgetter("task.available_at")


@dataclass(frozen=True, slots=True)
class ClaimView(Table):
    """The state of a queue when a claim begins."""

    live: bool
    limited: bool
    config: QueueConfig
    lanes: list[Lane]
    now: datetime
    draining: bool = False
    elsewhere: bool = False  # its delivery is not the one that this lease claims for


class QueueTable(Table):
    """Queues and claims within a transaction."""

    async def lock_queue(self, namespace: str, queue: str) -> QueueConfig:
        rows = await self.session.fetch("lock_queue", namespace, queue)
        return records.config_from(rows[0][0] if rows else None)

    async def get_queue(self, namespace: str, queue: str) -> QueueConfig:
        rows = await self.session.fetch("get_queue", namespace, queue)
        return records.config_from(rows[0][0] if rows else None)

    async def queue_secrets(self) -> list[tuple[str, str, str | None, str | None]]:
        """Namespace, queue, the secret that signs, and the one before it."""
        return [(row[0], row[1], row[2], row[3]) for row in await self.session.fetch("queue_secrets")]

    async def set_queue_secrets(self, namespace: str, queue: str, signing: str | None, previous: str | None) -> None:
        await self.session.fetch("set_queue_secrets", namespace, queue, signing, previous)

    async def put_queue(self, namespace: str, queue: str, config: QueueConfig) -> None:
        await self.session.fetch("put_queue", namespace, queue, records.as_json(config))

    async def queue_usage(self, namespace: str, queue: str, config: QueueConfig) -> Usage:
        """Counts with statements that begin after the lock was taken, so that they see every commit before it."""
        rows = await self.session.fetch("queue_running", namespace, queue)
        by_kind: dict[str, int] = {}
        by_key: dict[str, int] = {}
        for kind, key, count in rows:
            by_kind[kind] = by_kind.get(kind, 0) + count
            if key:
                by_key[key] = by_key.get(key, 0) + count
        starts: Sequence[Row] = ()
        if config.rate is not None:
            starts = await self.session.fetch("rate_starts", namespace, queue, config.rate.period_s)
        return Usage(sum(by_kind.values()), by_kind, by_key, tuple((row[0], row[1]) for row in starts))

    async def insert_rate_start(self, namespace: str, queue: str, at: datetime, count: int, period_s: float) -> None:
        await self.session.fetch("insert_rate_start", namespace, queue, at, count, period_s)

    async def get_settings(self, namespace: str, names: Sequence[str] | None) -> dict[str, QueueSettings]:
        rows = await self.session.fetch("get_settings", namespace, names)
        return {row[0]: records.settings_from(row[1:]) for row in rows}

    async def queues_delivered(self, types: Sequence[str]) -> dict[QueueName, QueueSettings]:
        """The settings of all queues with one of these deliveries."""
        rows = await self.session.fetch("queues_delivered", types)
        return {(row[0], row[1]): records.settings_from(row[2:]) for row in rows}

    async def get_deliveries(self, namespace: str, names: Sequence[str]) -> dict[str, Delivery]:
        """The deliveries of these queues; a queue that was never configured is left out."""
        return {name: known.delivery for name, known in (await self.get_settings(namespace, names)).items()}

    async def put_settings(self, namespace: str, queue: str, settings: QueueSettings) -> None:
        await self.session.fetch(
            "put_settings", namespace, queue, records.as_json(settings.config), records.as_json(settings.delivery),
            records.policy_as_json(settings.policy), settings.signing_secret,
        )  # fmt: skip

    # ----------------------------------------------------------------------------------------- claims

    async def open_claim(self, lease: Lease, queue: str, after: Lane, lanes_max: int) -> ClaimView:
        """The state of a queue before a claim; keeps the lease alive until the commit."""
        [[live, config, elsewhere, priorities, keys, now]] = await self.session.fetch(
            "open_claim", lease.id, lease.namespace, queue, after.priority, after.key, lanes_max, lease.delivery
        )
        return _claim_view(live, config, elsewhere, [*map(Lane, priorities, keys)], now)

    async def check_claim(self, lease: Lease, queue: str, lanes: list[Lane]) -> ClaimView:
        """The same for lanes that are known already."""
        args = lease.id, lease.namespace, queue, lease.delivery
        [[live, config, elsewhere, now]] = await self.session.fetch("check_claim", *args)
        return _claim_view(live, config, elsewhere, lanes, now)

    async def start_due(
        self, lease: Lease, queue: str, limit: int, claim_id: UUID, lane: Lane | None, floor_at: datetime
    ) -> tuple[ClaimView, list[Claimed]]:
        """Begin the oldest due tasks of the given lane, or of the only one, if the queue has no limits. Also returns
        the state of the queue."""
        priority, key = (None, None) if lane is None else (lane.priority, lane.key)
        rows = await self.session.fetch(
            "start_due", lease.id, lease.worker, lease.namespace, queue, claim_id, priority, key, floor_at, limit,
            lease.kinds, lease.labels, lease.delivery,
        )  # fmt: skip
        [view_row] = [row for row in rows if row[0] is not None]
        live, config, elsewhere, priorities, keys, now = view_row[:_VIEW]
        lanes = [*map(Lane, priorities, keys)]
        started = [
            Claimed(records.started_from(row[_VIEW:-1], lease, queue, lanes[0], now), row[-1])
            for row in rows
            if row is not view_row
        ]
        return _claim_view(live, config, elsewhere, lanes, now), sorted(started, key=_AVAILABLE_AT)

    async def claimed_at_once(self, lease: Lease, queue: str, claim_id: UUID) -> list[tuple[Task, bytes]]:
        """The attempts that one claim began under this lease."""
        rows = await self.session.fetch("claimed_at_once", lease.namespace, queue, lease.id, claim_id)
        return [(records.task_from(row), row[-1]) for row in rows]

    async def claim_tasks(
        self, lease: Lease, queue: str, picks: Sequence[LanePick], total: int, full_kinds: Sequence[str]
    ) -> list[tuple[Task, bytes]]:
        """Lock the tasks to claim, with their payloads."""
        rows = await self.session.fetch(
            "claim_tasks", lease.namespace, queue, [p.priority for p in picks], [p.key for p in picks],
            [p.take for p in picks], [p.floor_at for p in picks], total, lease.kinds, full_kinds, lease.labels,
        )  # fmt: skip
        return [(records.task_from(row), row[-1]) for row in rows]

    async def claimed_tasks(self, lease_id: UUID, attempts: dict[UUID, int]) -> list[tuple[Task, bytes]]:
        """Those of these attempts, by task, that run under this lease."""
        rows = await self.session.fetch("claimed_tasks", lease_id, list(attempts), list(attempts.values()))
        return [(records.task_from(row), row[-1]) for row in rows]

    async def next_due(
        self, lease: Lease, queue: str, picks: Sequence[LanePick], full_kinds: Sequence[str]
    ) -> tuple[datetime | None, bool]:
        """When the next task of these lanes becomes due, and whether one is due that this lease could claim."""
        [[due, locked]] = await self.session.fetch(
            "next_due", lease.namespace, queue, [p.priority for p in picks], [p.key for p in picks],
            lease.kinds, full_kinds, lease.labels,
        )  # fmt: skip
        return due, locked


def _claim_view(live: int, config: str | None, elsewhere: bool, lanes: list[Lane], now: datetime) -> ClaimView:
    """`live` is 2 for a lease that drains. A queue is limited if anything is set, since defaults are not stored."""
    limited = config is not None and config != "{}"
    return ClaimView(live > 0, limited, records.config_from(config), lanes, now, live > 1, elsewhere)
