"""Reads of runs. `core.run` decides how tasks of a run wait for each other."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec

from windlass.core.position import Position
from windlass.core.states import State
from windlass.errors import NotFound
from windlass.store.store import Store


class RunView(msgspec.Struct, frozen=True):
    """A run, and the number of its tasks in each state."""

    id: UUID
    namespace: str
    created_at: datetime
    counts: dict[State, int]


class Runs:
    """The runs of one database; takes no locks."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def get(self, run_id: UUID) -> RunView:
        async with self._store.views() as views:
            found = await views.get_run(run_id)
            if found is None:
                raise NotFound(f"there is no run {run_id}", run_id=run_id)
            return RunView(*found, await views.run_counts(run_id))

    async def list(
        self, namespace: str = "default", *, after: Position | None = None, limit: int = 50
    ) -> list[RunView]:
        """Newest first; runs without a task are left out."""
        async with self._store.views() as views:
            found = await views.list_runs(namespace, after, limit)
            counts = await views.runs_counts([id_ for id_, _, _ in found])
        return [RunView(*run, counts.get(run[0], {})) for run in found]

    async def find(self, namespace: str, idempotency_key: str | None) -> UUID | None:
        """The run of the task that was submitted with this key, so that a repeat joins it."""
        if idempotency_key is None:
            return None
        async with self._store.views() as views:
            return await views.run_of_key(namespace, idempotency_key)
