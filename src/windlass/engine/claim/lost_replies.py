"""Finds the outcome of a claim whose commit got no reply.

The attempts that the claim tried to begin are read from the database once the claim can no longer be under way. If they
run under the lease, they belong to the worker and must reach it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

from windlass.core.command import Claimed
from windlass.core.lease import Lease
from windlass.core.task import Task
from windlass.engine.commit.committer import Pause
from windlass.errors import StoreBusy
from windlass.store.store import Store
from windlass.store.transaction import Transaction

TRIES, PAUSE_S = 60, 0.5


class LostReplies:
    """Reads what claims have begun, for one engine."""

    def __init__(self, store: Store, *, pause: Pause) -> None:
        self._store, self._pause = store, pause

    async def find_attempts(self, lease: Lease, tried: Sequence[Claimed]) -> list[Claimed]:
        """Those of these attempts of new tasks that began under the lease. Attempts of other tasks are found by their
        claim, since another claim of the same lease may have begun them meanwhile."""
        attempts = {one.task.id: one.task.attempt for one in tried}
        return await self._read(lease, lambda tx: tx.queues.claimed_tasks(lease.id, attempts))

    async def find_claim(self, lease: Lease, queue: str, claim_id: UUID) -> list[Claimed]:
        """The attempts that began with this claim."""
        return await self._read(lease, lambda tx: tx.queues.claimed_at_once(lease, queue, claim_id))

    async def _read(
        self, lease: Lease, query: Callable[[Transaction], Awaitable[Sequence[tuple[Task, bytes]]]]
    ) -> list[Claimed]:
        """Waits until no claim of the lease is under way; tries again until the database answers."""
        for _ in range(TRIES):
            with contextlib.suppress(StoreBusy):
                async with self._store.begin() as tx:
                    await tx.leases.outwait_claims(lease.id)
                    rows = await query(tx)
                return [Claimed(task, payload) for task, payload in rows]
            await self._pause(PAUSE_S)
        raise StoreBusy("the database did not answer in time, so it is not known which tasks were claimed")
