"""What an attempt of a job's task reads and writes, fixed when it begins: where its window starts, how far its
snapshots reach, where the files of its inputs are, and the folders for its outputs."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec

from windlass.core.task import Task
from windlass.datasets.lake import Lake
from windlass.datasets.rules import window as window_rules
from windlass.datasets.rules.window import widen
from windlass.datasets.rules.writer import LAKE
from windlass.datasets.tables.events import DatasetTable
from windlass.datasets.tables.jobs import JobTable
from windlass.engine.engine import Engine
from windlass.store.transaction import Transaction

NOOP = msgspec.json.encode(window_rules.NOOP)
LOCATIONS_MAX = 10_000  # folders of one input that are given


class Reading(msgspec.Struct, frozen=True):
    """The `wire` of a task with its inputs and outputs filled in. `noop`: its job has read up to its cursor already."""

    wire: bytes
    noop: bool = False


class JobInputs:
    """Fills in the inputs and outputs of tasks, for one engine."""

    def __init__(self, engine: Engine) -> None:
        self._store, self._lake = engine.parts.store, engine.service(Lake)

    async def begin(self, task: Task, wire: bytes) -> Reading:
        """Fix what an attempt reads and where it writes. Only one task of a job that reads windows is started at a
        time, so no other task can move the cursor meanwhile."""
        fields: dict[str, Any] = msgspec.json.decode(wire)
        if task.job_id is None:
            return Reading(wire)
        noop = False
        if inputs := fields.get("inputs"):
            async with self._store.begin() as tx:
                if "coalesce" in (fields.get("window") or {}):  # a repeat of this claim may have fixed it
                    kept = await JobTable(tx.session).lock_wire(task.id, task.attempt)
                    fields = fields if kept is None else msgspec.json.decode(kept)
                    inputs = fields["inputs"]
                    await fix_window(tx, task, fields)
                noop = await _fix_cursors(tx, task.job_id, inputs)
                if not noop:
                    await _find_files(tx, [given for given in inputs if given.get("storage") == LAKE])
        for output in fields.get("outputs", ()):
            if output["storage"] == LAKE:
                ids = UUID(output["dataset_uuid"]), UUID(output["dataset_version"]), task.id
                output["staging_uri"] = self._lake.staging(task.namespace, *ids, task.attempt, output["output_index"])
        return Reading(msgspec.json.encode(fields), noop)


async def fix_window(tx: Transaction, task: Task, fields: dict[str, Any]) -> None:
    """Let an attempt of a job that coalesces read up to the newest cursor. The row of its task is locked."""
    window = fields.get("window")
    if window is None or "coalesce" not in window:
        return
    version = UUID(window["dataset_version"])
    high = (await DatasetTable(tx.session).high_waters([version])).get(version)
    if widen(fields, f"{task.id}/{task.attempt}", high):
        await JobTable(tx.session).put_window(task.id, msgspec.json.encode(fields), window["cursor"])


async def _fix_cursors(tx: Transaction, job_id: UUID, inputs: list[dict[str, Any]]) -> bool:
    """Fill in the ends of windows and snapshots. Returns whether there is nothing to read."""
    windows = {UUID(i["dataset_version"]) for i in inputs if i.get("mode") == "cursor"}
    snapshots = {UUID(i["dataset_version"]) for i in inputs if i.get("mode") == "snapshot" and i["dataset_version"]}
    invalid = {UUID(i["dataset_version"]) for i in inputs if i.get("invalidation") and i["dataset_version"]}
    read = windows | invalid
    cursors = await JobTable(tx.session).cursors(job_id, read) if read else {}
    highs = await DatasetTable(tx.session).high_waters(snapshots) if snapshots else {}
    noop = False
    for given in inputs:
        if given.get("mode") == "cursor":
            stored = cursors.get(UUID(given["dataset_version"]))
            given["cursor_from"] = stored
            noop = window_rules.window(stored, given["cursor_to"]) is None
        elif given.get("mode") == "snapshot" and given["dataset_version"]:
            version = UUID(given["dataset_version"])
            given["cursor_to"] = highs.get(version)
            if version in invalid and version in cursors:  # only what the job has read can have become wrong
                given["cursor_to"] = cursors[version]
    return noop


async def _find_files(tx: Transaction, inputs: list[dict[str, Any]]) -> None:
    """Fill in where the files of inputs in the lake are: `location` of a partition, `locations` of everything else."""
    table = DatasetTable(tx.session)
    parts = {place: given for place, given in enumerate(inputs) if given.get("mode") == "partition"}
    wanted = [
        (place, UUID(given["dataset_version"]), given["partition_key"], given["revision"])
        for place, given in parts.items()
        if given["dataset_version"]
    ]
    for place, (location, revision) in (await table.partition_locations(wanted)).items():
        parts[place] |= {"location": location, "revision": revision}
    for given in inputs:
        if given.get("mode") not in ("cursor", "snapshot") or not given["dataset_version"]:
            continue
        version, found = UUID(given["dataset_version"]), list[str]()
        if given["mode"] == "snapshot":
            found += await table.current_locations(version, LOCATIONS_MAX + 1)
        found += await table.cursor_locations(
            version, given.get("cursor_from"), given.get("cursor_to"), LOCATIONS_MAX + 1
        )
        given["locations"] = found[:LOCATIONS_MAX]
        if len(found) > LOCATIONS_MAX:
            given["locations_truncated"] = True
