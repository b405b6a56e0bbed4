"""Runs and the edges between their tasks: which task waits for which. `core.run` decides; this reads and writes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from windlass.core.position import NOWHERE, Position
from windlass.core.run import Edge
from windlass.core.states import State
from windlass.store.table import Table


class RunTable(Table):
    """Runs and edges within a transaction."""

    async def insert_runs(self, runs: dict[UUID, str]) -> None:
        await self.session.fetch("insert_runs", list(runs), list(runs.values()))

    async def lock_runs(self, ids: Iterable[UUID]) -> dict[UUID, str]:
        return {row[0]: row[1] for row in await self.session.fetch("lock_runs", sorted(ids))}

    async def lock_free_runs(self, ids: Iterable[UUID]) -> set[UUID]:
        """Lock those that can be locked at once."""
        return {row[0] for row in await self.session.fetch("lock_free_runs", sorted(ids))}

    async def mark_upstream(self, ids: Iterable[UUID]) -> set[UUID]:
        """Mark the tasks that have not ended as having dependents, and return their ids."""
        return {row[0] for row in await self.session.fetch("mark_upstream", sorted(ids))}

    async def upstream_states(self, ids: Iterable[UUID]) -> dict[UUID, tuple[State, UUID | None]]:
        rows = await self.session.fetch("upstream_states", sorted(ids))
        return {row[0]: (State(row[1]), row[2]) for row in rows}

    async def insert_edges(self, edges: Sequence[tuple[UUID, UUID, UUID, bool]]) -> None:
        """An edge is (task, upstream, run, any outcome)."""
        await self.session.fetch("insert_edges", *map(list, zip(*edges, strict=True)))

    async def ended_edges(self, upstream_ids: Iterable[UUID]) -> list[Edge]:
        rows = await self.session.fetch("ended_edges", sorted(upstream_ids))
        return [Edge(row[0], row[1], State(row[2]), row[3]) for row in rows]

    async def delete_edges(self, edges: Sequence[Edge]) -> None:
        await self.session.fetch("delete_edges", [e.task_id for e in edges], [e.upstream_id for e in edges])

    async def open_edges(self, task_ids: Iterable[UUID]) -> dict[UUID, int]:
        return {row[0]: row[1] for row in await self.session.fetch("open_edges", sorted(task_ids))}

    async def run_task_ids(self, run_id: UUID, after: Position | None, limit: int) -> list[Position]:
        """The time of creation and the id of each task."""
        rows = await self.session.fetch("run_task_ids", run_id, *(after or NOWHERE), limit)
        return [(row[0], row[1]) for row in rows]
