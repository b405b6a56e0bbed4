"""Lease holders in PostgreSQL: claims by id, heartbeats, and reports."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from windlass.contracts.lease import rules
from windlass.core.delivery import Delivery
from windlass.core.queue import QueueConfig, QueueName
from windlass.core.states import State
from windlass.core.task import Cancel, Outcome, Task
from windlass.datasets.rules.events import DatasetContext
from windlass.datasets.rules.writer import Writer
from windlass.datasets.tables.events import load_context
from windlass.store import records
from windlass.store.contexts import register_loader
from windlass.store.pool import Session
from windlass.store.queries import register_queries
from windlass.store.records import WIDTH
from windlass.store.tables.task import Finished
from windlass.store.transaction import Transaction

register_queries(__package__, "table.sql")


class ClaimableTask(msgspec.Struct, frozen=True):
    """A task that a worker wants to claim, with what is needed to run it. `labelled`: it requires a worker with labels.
    `claim_id` is that of the claim that started its attempt."""

    task: Task
    payload: bytes
    wire: bytes | None
    labelled: bool
    claim_id: UUID | None


class ClaimLookup(msgspec.Struct, frozen=True):
    """What a claim by id found: the task unless its row was locked, its queue if the task exists, and whether the
    statement started it."""

    found: ClaimableTask | None
    queue: QueueName | None
    config: QueueConfig
    delivery: Delivery
    begun: bool
    now: datetime


class LeaseState(msgspec.Struct, frozen=True, gc=False):
    """What a heartbeat found: the task, whether the caller holds it, and when the lease expires; None if it is over."""

    state: State
    attempt: int
    holds: bool
    cancel: Cancel | None
    expires_at: datetime | None
    now: datetime


class WritingAttempt(msgspec.Struct, frozen=True):
    """The current attempt of a task that may write datasets. Fulfils `core.attempt.AttemptRow`."""

    id: UUID
    namespace: str
    run_id: UUID | None
    state: State
    attempt: int
    outcome: Outcome | None
    lease_id: UUID | None
    worker: str | None
    wire: bytes | None
    job_id: UUID | None
    live: bool
    now: datetime


class HolderTable:
    """Lease holders within a transaction."""

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session = session

    async def claim_at_once(self, claims: Sequence[rules.ClaimById]) -> list[ClaimLookup]:
        """Start the tasks that need no decision. Returns what was found for each claim, in order; each task once."""
        rows = await self._session.fetch(
            "claim_at_once", [c.task_id for c in claims], [c.lease_id for c in claims], [c.worker for c in claims],
            [c.caller.fingerprint for c in claims], [records.as_json(c.caller.detail) for c in claims],
            [c.claim_id for c in claims],
        )  # fmt: skip
        lookups: dict[UUID, ClaimLookup] = {}
        for row in rows:
            begun, id_, namespace, queue, config, delivery, now = row[WIDTH + 4 :]
            found = None if row[0] is None else _claimable(row)
            place = None if id_ is None else (namespace, queue)
            key = row[0] or id_
            if key is not None:
                lookups[key] = ClaimLookup(
                    found, place, records.config_from(config), records.delivery_from(delivery), bool(begun), now
                )
        missing = ClaimLookup(None, None, QueueConfig(), records.delivery_from(None), False, rows[0][-1])
        return [lookups.get(one.task_id, missing) for one in claims]

    async def lock_wakeup_queue(self, namespace: str, queue: str) -> tuple[QueueConfig, Delivery]:
        rows = await self._session.fetch("lock_wakeup_queue", namespace, queue)
        config, delivery = rows[0] if rows else (None, None)
        return records.config_from(config), records.delivery_from(delivery)

    async def load_claimable(self, ids: Sequence[UUID]) -> dict[UUID, ClaimableTask]:
        return {row[0]: _claimable(row) for row in await self._session.fetch("load_claimable", ids)}

    async def insert_leases(self, begun: Sequence[tuple[UUID, int, str, UUID | None, int]]) -> None:
        """Each entry has task id, attempt, fingerprint of the caller, claim id, and the lease in milliseconds."""
        if begun:
            await self._session.fetch("insert_leases", *map(list, zip(*begun, strict=True)))

    async def extend_held_leases(self, credentials: Sequence[rules.LeaseCredential]) -> list[LeaseState | None]:
        """What each credential found; None if there is no task that the caller may know of."""
        callers = [one.caller for one in credentials]
        rows = await self._session.fetch(
            "extend_held_leases", [one.task_id for one in credentials], [one.attempt for one in credentials],
            [one.token for one in credentials], [caller.fingerprint for caller in callers],
            [records.as_json(caller.detail) for caller in callers], _reaches(callers),
        )  # fmt: skip
        return [None if row[0] is None else _lease_state(row) for row in rows]

    async def holds(self, ids: Collection[UUID]) -> dict[UUID, Writer]:
        """What these tasks may write, each with the attempt whose lease is live."""
        rows = await self._session.fetch("load_live_leases", sorted(ids))
        return {row[0]: Writer.of(*row[1:]) for row in rows}

    async def attempt(self, task_id: UUID) -> WritingAttempt | None:
        """The current attempt of a task, without a lock."""
        rows = await self._session.fetch("load_attempt", task_id)
        if not rows:
            return None
        id_, namespace, run_id, state, attempt, outcome, *rest = rows[0]
        outcome = None if outcome is None else Outcome(outcome)
        return WritingAttempt(id_, namespace, run_id, records.STATES[state], attempt, outcome, *rest)


async def finish_at_once(tx: Transaction, reports: Sequence[rules.LeaseReport]) -> set[UUID]:
    """End the successful attempts that need no decision. Returns the ids of their tasks."""
    shown = [report.credential for report in reports]
    rows = await tx.session.fetch(
        "finish_at_once", [one.task_id for one in shown], [one.attempt for one in shown],
        [one.token for one in shown], [report.result for report in reports],
        [records.as_json(report.kept) for report in reports], _reaches([one.caller for one in shown]),
    )  # fmt: skip
    tx.wakes.queues |= {(namespace, queue) for _, queue, _, _, _, namespace in rows if namespace is not None}
    tx.finished += [Finished(*row[1:5]) for row in rows]
    return {row[0] for row in rows}


async def load_dataset_context(
    session: Session, commands: Sequence[rules.LeaseReport | rules.Emit | rules.PublishBatch | rules.Invalidate]
) -> DatasetContext:
    batches = [command for command in commands if isinstance(command, rules.PublishBatch)]
    invalid = [command for command in commands if isinstance(command, rules.Invalidate)]
    reports = [one for one in commands if isinstance(one, rules.LeaseReport | rules.Emit) and one.events]
    if not batches and not reports and not invalid:
        return DatasetContext()  # most reports have no events
    holds = await HolderTable(session).holds({command.task_id for command in (*batches, *reports, *invalid)})
    return await load_context(
        session,
        holds,
        [(report.task_id, event) for report in reports for event in report.events],
        {c.batch.id_of(c.task_id, c.credential.attempt) for c in batches},
    )


register_loader(DatasetContext, load_dataset_context)


def _reaches(callers: Sequence[rules.Caller]) -> list[str | None]:
    """The namespaces that each caller is bound to; None for all."""
    return [None if caller.namespaces is None else records.as_json(list(caller.namespaces)) for caller in callers]


def _claimable(row: records.Row) -> ClaimableTask:
    return ClaimableTask(records.task_from(row), *row[WIDTH : WIDTH + 4])


def _lease_state(row: records.Row) -> LeaseState:
    _, state, attempt, holds, cancel, expires_at, now = row
    decoded = None if cancel is None else records.decode_cancel(cancel)
    return LeaseState(records.STATES[state], attempt, holds, decoded, expires_at, now)
