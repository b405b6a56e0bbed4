"""Wake-ups in PostgreSQL: which tasks were announced, dead letters, and the messages that PostgreSQL carries."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from windlass.core.fairness import Lane, LanePick
from windlass.core.position import NOWHERE, Position
from windlass.core.queue import Usage
from windlass.store.pool import Session
from windlass.store.queries import register_queries
from windlass.store.tables.retention import register_retention

register_queries(__package__, "table.sql", "message.sql")


class Unannounced(msgspec.Struct, frozen=True):
    """A claimable task without a message in flight. `times` is the number of messages sent before."""

    id: UUID
    attempt: int
    lane: Lane
    times: int


class WakeupState(msgspec.Struct, frozen=True):
    """How often a message was sent for a waiting task, when the next is due, and whether the last is a dead letter."""

    times: int
    again_at: datetime
    dead_at: datetime | None


class DeadMessage(msgspec.Struct, frozen=True):
    """A message that no worker could handle, and the reason. `task_id` is set if it was a wake-up; `message_id` is its
    id at the carrier."""

    id: UUID
    namespace: str
    queue: str
    message_id: str
    task_id: UUID | None
    body: bytes
    deliveries: int
    reason: str
    dead_at: datetime


class Stored(msgspec.Struct, frozen=True):
    """A message in PostgreSQL that a worker received."""

    id: UUID
    deliveries: int
    body: bytes


class WakeupTable:
    """Wake-ups within a transaction."""

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session = session

    # ----------------------------------------------------------------------------------------- announcements

    async def lock_wakeups(self, namespace: str, queue: str) -> None:
        await self._session.fetch("lock_wakeups", namespace, queue)

    async def forget_wakeups(self, namespace: str, queue: str) -> None:
        await self._session.fetch("forget_wakeups", namespace, queue)

    async def announced_tasks(self, namespace: str, queue: str) -> Usage:
        """The tasks with a message in flight, counted like running tasks."""
        by_kind: dict[str, int] = {}
        by_key: dict[str, int] = {}
        for kind, key, count in await self._session.fetch("announced_tasks", namespace, queue):
            by_kind[kind] = by_kind.get(kind, 0) + count
            if key:
                by_key[key] = by_key.get(key, 0) + count
        return Usage(sum(by_kind.values()), by_kind, by_key)

    async def ready_lanes(self, namespace: str, queue: str, after: Lane, lanes_max: int) -> list[Lane]:
        rows = await self._session.fetch("ready_lanes", namespace, queue, after.priority, after.key, lanes_max)
        return [Lane(*row) for row in rows]

    async def unannounced_tasks(
        self, namespace: str, queue: str, picks: Sequence[LanePick], total: int, full_kinds: Sequence[str]
    ) -> list[Unannounced]:
        rows = await self._session.fetch(
            "unannounced_tasks", namespace, queue, [p.priority for p in picks], [p.key for p in picks],
            [p.take for p in picks], total, full_kinds,
        )  # fmt: skip
        return [Unannounced(row[0], row[1], Lane(row[2], row[3]), row[4]) for row in rows]

    async def put_wakeups(self, namespace: str, queue: str, sent: Sequence[tuple[UUID, int, int, float]]) -> None:
        """Each entry has task id, attempt, number of messages with this one, and seconds until the next."""
        await self._session.fetch(
            "put_wakeups", namespace, queue, *(list(column) for column in zip(*sent, strict=True))
        )
        await self._session.fetch("discard_dead_wakeups", [entry[0] for entry in sent])

    async def next_wakeup(self, namespace: str, queue: str, lanes: Sequence[Lane]) -> datetime | None:
        [[at]] = await self._session.fetch(
            "next_wakeup", namespace, queue, [lane.priority for lane in lanes], [lane.key for lane in lanes]
        )
        assert at is None or isinstance(at, datetime), at
        return at

    async def resend_wakeups(self, queues: Sequence[tuple[str, str]]) -> None:
        await self._session.fetch("resend_wakeups", [q[0] for q in queues], [q[1] for q in queues])

    async def resend_wakeup_soon(self, task_id: UUID, delay_s: float) -> tuple[str, str] | None:
        """Returns the queue of the task."""
        rows = await self._session.fetch("resend_wakeup_soon", task_id, delay_s)
        return (rows[0][0], rows[0][1]) if rows else None

    async def resend_lost(self, namespace: str, queue: str, first_s: float, most_s: float) -> int:
        """Make messages due again that are taken for lost: older than `first_s`, doubled with each repeat up to
        `most_s`. Returns their number."""
        return len(await self._session.fetch("resend_lost", namespace, queue, first_s, most_s))

    async def get_wakeup(self, task_id: UUID) -> WakeupState | None:
        rows = await self._session.fetch("get_wakeup", task_id)
        return WakeupState(*rows[0]) if rows else None

    # ----------------------------------------------------------------------------------------- dead letters

    async def dead_letter_message(
        self,
        id_: UUID,
        namespace: str,
        queue: str,
        message_id: str,
        task_id: UUID | None,
        body: bytes,
        deliveries: int,
        reason: str,
    ) -> None:
        """Keep a message for people to look at, and send no other one for its task."""
        if task_id is not None:
            await self._session.fetch("dead_letter_wakeup", task_id, namespace, queue)
        await self._session.fetch(
            "insert_dead_message", id_, namespace, queue, message_id, task_id, body, deliveries, reason
        )

    async def list_dead_messages(
        self, namespace: str, queue: str | None, after: Position | None, limit: int
    ) -> list[DeadMessage]:
        rows = await self._session.fetch("list_dead_messages", namespace, *(after or NOWHERE), queue, limit)
        return [DeadMessage(*row) for row in rows]

    async def count_dead_messages(self) -> int:
        [[count]] = await self._session.fetch("count_dead_messages")
        return int(count)

    async def get_dead_message(self, id_: UUID) -> DeadMessage | None:
        rows = await self._session.fetch("get_dead_message", id_)
        return DeadMessage(*rows[0]) if rows else None

    async def delete_dead_message(self, id_: UUID) -> bool:
        return bool(await self._session.fetch("delete_dead_message", id_))

    async def revive_wakeup(self, task_id: UUID) -> tuple[str, str] | None:
        rows = await self._session.fetch("revive_wakeup", task_id)
        return (rows[0][0], rows[0][1]) if rows else None

    # ----------------------------------------------------------------------------------------- messages of PostgreSQL

    async def put_messages(self, namespace: str, queue: str, messages: Sequence[tuple[UUID, bytes]]) -> None:
        """Each entry has id and body. Sorted, so that concurrent inserts cannot deadlock."""
        ids, bodies = zip(*sorted(messages), strict=True)
        await self._session.fetch("put_messages", namespace, queue, list(ids), list(bodies))

    async def receive_messages(self, namespace: str, queue: str, limit: int, visibility_s: float) -> list[Stored]:
        rows = await self._session.fetch("receive_messages", namespace, queue, limit, visibility_s)
        return [Stored(*row[:3]) for row in sorted(rows, key=lambda row: (row[3], row[0]))]

    async def next_message(self, namespace: str, queue: str) -> float | None:
        """Seconds until the next message can be received."""
        rows = await self._session.fetch("next_message", namespace, queue)
        return max(0.0, (rows[0][0] - rows[0][1]).total_seconds()) if rows else None

    async def message_namespace(self, id_: UUID) -> str | None:
        rows = await self._session.fetch("message_namespace", id_)
        return str(rows[0][0]) if rows else None

    async def extend_message(self, id_: UUID, deliveries: int, visibility_s: float) -> bool:
        return bool(await self._session.fetch("extend_message", id_, deliveries, visibility_s))

    async def ack_messages(self, held: Sequence[tuple[UUID, int]]) -> set[UUID]:
        """Delete these messages. Returns the ids that existed."""
        return {row[0] for row in await self._session.fetch("ack_messages", [h[0] for h in held], [h[1] for h in held])}

    async def nack_message(self, id_: UUID, deliveries: int, delay_s: float) -> tuple[str, str] | None:
        rows = await self._session.fetch("nack_message", id_, deliveries, delay_s)
        return (rows[0][1], rows[0][2]) if rows else None

    async def forget_messages(self, age_s: float) -> None:
        await self._session.fetch("forget_messages", age_s)


async def forget_dead_messages(session: Session, before: datetime, limit: int) -> None:
    await session.fetch("forget_dead_messages", before, limit)


register_retention(forget_dead_messages)
