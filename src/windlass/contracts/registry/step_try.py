"""Step attempts: their table, and the loader of their context.

The rules of this contract decide what is written, under the lock of the task's row.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from uuid import UUID

import msgspec

from windlass.contracts.registry.commands import StepTry, WorkflowSleep
from windlass.contracts.registry.rules import AttemptState, StepAttempt, StepAttemptContext
from windlass.core.failure import Failure
from windlass.core.retry import Policy
from windlass.store.pool import Session
from windlass.store.queries import register_queries
from windlass.store.records import LABELS, Row, as_json
from windlass.store.tables.step import Key, StepTable

register_queries(__package__, "step_try.sql")

_decode_policy = msgspec.json.Decoder(Policy).decode
_decode_failure = msgspec.json.Decoder(Failure).decode


class StepAttemptTable:
    """The table of step attempts within a transaction."""

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session = session

    async def put_attempts(self, attempts: Sequence[StepAttempt]) -> None:
        """Writes step attempts. The last one per id wins."""
        last = list({attempt.id: attempt for attempt in attempts}.values())
        await self._session.fetch(
            "put_attempts", [a.id for a in last], [a.task_id for a in last], [a.name for a in last],
            [a.occurrence for a in last], [a.number for a in last], [a.attempt for a in last],
            [a.tries for a in last], [a.state for a in last], [a.begun_at for a in last],
            [a.ended_at for a in last], [as_json(a.policy) for a in last],
            [LABELS.join(a.final) or None for a in last], [as_json(a.error) for a in last],
            [a.given for a in last],
        )  # fmt: skip

    async def latest_attempts(self, keys: Collection[Key]) -> list[StepAttempt]:
        if not keys:
            return []
        rows = await self._session.fetch(
            "latest_attempts", [k[0] for k in keys], [k[1] for k in keys], [k[2] for k in keys]
        )
        return [_attempt(row) for row in rows]

    async def open_attempts(self, task_ids: Collection[UUID]) -> list[StepAttempt]:
        if not task_ids:
            return []
        return [_attempt(row) for row in await self._session.fetch("open_attempts", list(task_ids))]

    async def next_positions(self, task_ids: Collection[UUID]) -> dict[UUID, int]:
        if not task_ids:
            return {}
        return {row[0]: row[1] for row in await self._session.fetch("next_positions", list(task_ids))}

    async def task_attempts(self, task_id: UUID) -> list[StepAttempt]:
        return [_attempt(row) for row in await self._session.fetch("task_attempts", task_id)]

    async def get_attempt(self, attempt_id: UUID) -> StepAttempt | None:
        rows = await self._session.fetch("get_attempt", attempt_id)
        return _attempt(rows[0]) if rows else None


def _attempt(row: Row) -> StepAttempt:
    (
        id_, task_id, name, occurrence, number, attempt, tries, state, begun_at, ended_at, policy, final, error, given,
    ) = row  # fmt: skip
    return StepAttempt(
        id_, task_id, name, occurrence, number, attempt, tries, AttemptState(state), begun_at, ended_at,
        None if policy is None else _decode_policy(policy), tuple(final or ()),
        None if error is None else _decode_failure(error), given,
    )  # fmt: skip


async def load_step_attempt_context(
    session: Session, commands: Sequence[StepTry | WorkflowSleep]
) -> StepAttemptContext:
    sleeps = {command.task_id for command in commands if isinstance(command, WorkflowSleep)}
    tries = {(c.task_id, c.name, c.occurrence) for c in commands if not isinstance(c, WorkflowSleep)}
    table = StepAttemptTable(session)
    return StepAttemptContext(
        await StepTable(session).known_steps(tries),
        [*await table.latest_attempts(tries), *await table.open_attempts(sleeps)],
        await table.next_positions(sleeps | {key[0] for key in tries}),
    )
