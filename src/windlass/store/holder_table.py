"""Tasks that are held one by one: claimed by their ids, kept alive by whoever holds them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from windlass.core.dataset import Outputs, outputs_of
from windlass.core.delivery import Delivery
from windlass.core.holder import Caller, ClaimOne, Fence, Finish
from windlass.core.queue import QueueConfig, QueueName
from windlass.core.task import Cancel, Task
from windlass.core.transition import State
from windlass.store import record
from windlass.store.record import WIDTH
from windlass.store.session import Session
from windlass.store.task_table import Finished

NO_ATTEMPT = 0


class Holdable(msgspec.Struct, frozen=True):
    """A task that somebody wants to hold, with what it needs to be run; `labelled` if it wants a worker with labels.
    `claim_id` is kept of the claim that began its attempt."""

    task: Task
    payload: bytes
    wire: bytes | None
    labelled: bool
    claim_id: UUID | None


class Looked(msgspec.Struct, frozen=True):
    """What a claim by id found: the task if its row could be had, the queue that it is in if there is one, and whether
    it was begun at once."""

    found: Holdable | None
    queue: QueueName | None
    config: QueueConfig
    delivery: Delivery
    begun: bool
    now: datetime


class Hold(msgspec.Struct, frozen=True, gc=False):
    """What a holder's sign of life met: the task, whether it is the holder's, and until when that is good; None if the
    lease is over."""

    state: State
    attempt: int
    holds: bool
    cancel: Cancel | None
    expires_at: datetime | None
    now: datetime


class HolderTable:
    """Holders within a transaction."""

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session = session

    async def claim_at_once(self, said: Sequence[ClaimOne]) -> list[Looked]:
        """Begin those about which there is nothing to weigh; in their order, each task once."""
        rows = await self._session.fetch(
            "claim_at_once", [c.task_id for c in said], [c.lease_id for c in said], [c.worker for c in said],
            [c.caller.fingerprint for c in said], [record.as_json(c.caller.detail) for c in said],
            [c.claim_id for c in said],
        )  # fmt: skip
        looked: dict[UUID, Looked] = {}
        for row in rows:
            begun, id_, namespace, queue, config, delivery, now = row[WIDTH + 4 :]
            found = None if row[0] is None else _holdable(row)
            place = None if id_ is None else (namespace, queue)
            key = row[0] or id_
            if key is not None:
                looked[key] = Looked(
                    found, place, record.config_from(config), record.delivery_from(delivery), bool(begun), now
                )
        missing = Looked(None, None, QueueConfig(), record.delivery_from(None), False, rows[0][-1])
        return [looked.get(one.task_id, missing) for one in said]

    async def lock_wakeup_queue(self, namespace: str, queue: str) -> tuple[QueueConfig, Delivery]:
        rows = await self._session.fetch("lock_wakeup_queue", namespace, queue)
        config, delivery = rows[0] if rows else (None, None)
        return record.config_from(config), record.delivery_from(delivery)

    async def load_holdable(self, ids: Sequence[UUID]) -> dict[UUID, Holdable]:
        return {row[0]: _holdable(row) for row in await self._session.fetch("load_holdable", ids)}

    async def begin_holds(self, begun: Sequence[tuple[UUID, int, str, UUID | None]], lease_ms: int) -> None:
        """Each with its attempt, the fingerprint of who claimed it, and what is kept of the claim."""
        if begun:
            await self._session.fetch("begin_holds", *map(list, zip(*begun, strict=True)), lease_ms)

    async def extend_holds(self, said: Sequence[tuple[Fence, Caller]]) -> list[Hold | None]:
        """Each with who said it; None where there is no task that the caller may know of."""
        fences, callers = [s[0] for s in said], [s[1] for s in said]
        rows = await self._session.fetch(
            "extend_holds", [f.task_id for f in fences], [f.attempt for f in fences], [f.lease_id for f in fences],
            [c.fingerprint for c in callers], [record.as_json(c.detail) for c in callers], _reaches(callers),
        )  # fmt: skip
        return [None if row[0] is None else _hold(row) for row in rows]

    async def finish_at_once(self, said: Sequence[Finish]) -> tuple[dict[UUID, Finished], set[QueueName]]:
        """End those of these attempts about which there is nothing to decide; returns also the queues that it woke."""
        rows = await self._session.fetch(
            "finish_at_once", [f.fence.task_id for f in said], [f.fence.attempt for f in said],
            [f.fence.lease_id for f in said], [f.result for f in said], [record.as_json(f.detail) for f in said],
            _reaches([f.caller for f in said]),
        )  # fmt: skip
        woken = {(namespace, queue) for _, queue, _, _, _, namespace in rows if namespace is not None}
        return {row[0]: Finished(*row[1:5]) for row in rows}, woken

    async def holds(self, ids: Collection[UUID]) -> dict[UUID, tuple[int, Outputs]]:
        """The attempt of each task whose lease is live, and the datasets that it may write."""
        rows = await self._session.fetch("load_holds", sorted(ids))
        return {id_: (attempt or NO_ATTEMPT, outputs_of(wire)) for id_, attempt, wire in rows}


def _reaches(callers: Sequence[Caller]) -> list[str | None]:
    """The namespaces that each of them is bound to; None where that is no matter."""
    return [None if caller.namespaces is None else record.as_json(list(caller.namespaces)) for caller in callers]


def _holdable(row: record.Row) -> Holdable:
    return Holdable(record.task_from(row), *row[WIDTH : WIDTH + 4])


def _hold(row: record.Row) -> Hold:
    _, state, attempt, holds, cancel, expires_at, now = row
    told = None if cancel is None else record.decode_cancel(cancel)
    return Hold(record.STATES[state], attempt, holds, told, expires_at, now)
