"""Attempts that the engine delivers: their heartbeats, and the keys that sign their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from windlass.core.states import State
from windlass.core.task import Cancel, Outcome
from windlass.store import records
from windlass.store.table import Table


class AttemptStatus(msgspec.Struct, frozen=True, gc=False):
    """What the answer to a heartbeat needs of a task. `alive`: the attempt was not found silent. `covered`: the stored
    expiry is late enough, so that the heartbeat need not be written."""

    id: UUID
    namespace: str
    run_id: UUID | None
    state: State
    attempt: int
    outcome: Outcome | None
    lease_id: UUID | None
    worker: str | None
    cancel: Cancel | None
    alive: bool
    covered: bool


class HeartbeatTable(Table):
    """Heartbeats within a transaction."""

    async def open_dispatch(self, lease_id: UUID) -> None:
        await self.session.fetch("open_dispatch", lease_id)

    async def insert_heartbeats(self, attempts: Sequence[tuple[UUID, int, int]], slack_ms: int) -> None:
        """Each entry has task id, attempt, and timeout in milliseconds."""
        await self.session.fetch("insert_heartbeats", *map(list, zip(*attempts, strict=True)), slack_ms)

    async def delivered(self, task_id: UUID, attempt: int, dispatch_timeout_s: float) -> None:
        await self.session.fetch("delivered", task_id, attempt, dispatch_timeout_s)

    async def attempt_statuses(
        self, attempts: Sequence[tuple[UUID, int]]
    ) -> tuple[list[AttemptStatus | None], datetime | None]:
        """The status of each attempt in order, None if there is no such task; and the time."""
        rows = await self.session.fetch("attempt_statuses", [a[0] for a in attempts], [a[1] for a in attempts])
        return [None if row[1] is None else _attempt_status(row) for row in rows], rows[0][-1] if rows else None

    async def keep_alive(self, attempts: Sequence[tuple[UUID, int]]) -> set[tuple[UUID, int]]:
        """Write a heartbeat of each attempt. Returns the attempts that are still alive."""
        rows = await self.session.fetch("keep_alive", [a[0] for a in attempts], [a[1] for a in attempts])
        return {(row[0], row[1]) for row in rows}

    async def silent_attempts(self, limit: int) -> list[tuple[UUID, int]]:
        return [(row[0], row[1]) for row in await self.session.fetch("silent_attempts", limit)]

    async def forget_heartbeats(self, attempts: Sequence[tuple[UUID, int]]) -> None:
        if attempts:
            await self.session.fetch("forget_heartbeats", [a[0] for a in attempts], [a[1] for a in attempts])

    async def undelivered(self, effect: str, namespace: str, queue: str, limit: int) -> int:
        return int(await self.session.fetchval("undelivered", effect, namespace, queue, limit))

    async def shortest_lease_ms(self) -> int | None:
        """The shortest lease of tasks that workers claim by id."""
        shortest: int | None = await self.session.fetchval("shortest_lease")
        return shortest

    async def rotate_secret(self, namespace: str, queue: str, secret: str, overlap_s: float) -> None:
        await self.session.fetch("rotate_secret", namespace, queue, secret, overlap_s)

    async def token_keys(self, life_s: float) -> list[tuple[UUID, bytes]]:
        """The key that signs, and the one before it if its tokens may still be valid."""
        return [(row[0], row[1]) for row in await self.session.fetch("token_keys", life_s)]

    async def lock_token_keys(self) -> None:
        await self.session.fetch("lock_token_keys")

    async def insert_token_key(self, id_: UUID, secret: bytes) -> None:
        await self.session.fetch("insert_token_key", id_, secret)

    async def token_secrets(self) -> list[tuple[UUID, bytes]]:
        return [(row[0], row[1]) for row in await self.session.fetch("token_secrets")]

    async def set_token_secret(self, id_: UUID, secret: bytes) -> None:
        await self.session.fetch("set_token_secret", id_, secret)


def _attempt_status(row: records.Row) -> AttemptStatus:
    id_, namespace, run_id, state, attempt, outcome, lease_id, worker, cancel, alive, covered, _ = row
    return AttemptStatus(
        id_, namespace, run_id, records.STATES[state], attempt, records.OUTCOMES[outcome], lease_id, worker,
        None if cancel is None else records.decode_cancel(cancel), alive, covered,
    )  # fmt: skip
