"""The inputs of a job's task when an attempt begins: where its window starts, and how far its snapshots reach."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec

from windlass.core.task import Task
from windlass.datasets.tables.events import DatasetTable
from windlass.datasets.tables.jobs import JobTable
from windlass.engine.engine import Engine

NOOP = b'{"noop":true}'  # the result of a task whose window was read before it began


class Reading(msgspec.Struct, frozen=True):
    """The `wire` of a task with its inputs filled in. `noop`: its job has read up to its cursor already."""

    wire: bytes
    noop: bool = False


class JobInputs:
    """Fills in the inputs of tasks, for one engine."""

    def __init__(self, engine: Engine) -> None:
        self._store = engine.parts.store

    async def begin(self, task: Task, wire: bytes) -> Reading:
        """Fix what an attempt reads. Only one task of a job that reads windows is started at a time, so no other task
        can move the cursor meanwhile."""
        fields: dict[str, Any] = msgspec.json.decode(wire)
        inputs = fields.get("inputs")
        if task.job_id is None or not inputs:
            return Reading(wire)
        windows = {UUID(i["dataset_version"]) for i in inputs if i.get("mode") == "cursor"}
        snapshots = {UUID(i["dataset_version"]) for i in inputs if i.get("mode") == "snapshot" and i["dataset_version"]}
        async with self._store.begin() as tx:
            cursors = await JobTable(tx.session).cursors(task.job_id, windows) if windows else {}
            highs = await DatasetTable(tx.session).high_waters(snapshots) if snapshots else {}
        noop = False
        for given in inputs:
            if given.get("mode") == "cursor":
                stored = cursors.get(UUID(given["dataset_version"]))
                given["cursor_from"] = stored
                noop = stored is not None and given["cursor_to"] <= stored
            elif given.get("mode") == "snapshot" and given["dataset_version"]:
                given["cursor_to"] = highs.get(UUID(given["dataset_version"]))
        return Reading(msgspec.json.encode(fields), noop)
