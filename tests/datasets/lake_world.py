"""A DAG whose data is in the lake, and a worker that writes files, a manifest and a marker."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import msgspec
from tests.contracts.lease.world import Holder
from tests.datasets.world import World

from windlass.blobs.object_store import ObjectStore
from windlass.datasets.lake import LAKE_MARKER, Lake
from windlass.datasets.rules.manifest import MANIFEST, MARKER, digest

COLD = """\
name: cold
jobs:
  - name: load
    activation: source
    runtime: ecs_platform
    operator: loader
    source: {kind: manual}
    outputs: 1
    update_strategy: replace
    max_attempts: 5
  - name: report
    activation: reactive
    runtime: ecs_platform
    operator: reporter
    execution_strategy: PerPartition
    inputs: [{from: {dataset: blocks}}]
    outputs: 0
publish:
  blocks: {from: {job: load}, storage: s3}
"""
KEY = "0-99"
SCOPE = {"partition_key": KEY, "start": 0, "end": 99}


@dataclass
class LakeWorld(World):
    """A world with a lake. `root` is its URL as workers know it."""

    blobs: ObjectStore
    root: str

    async def load(self) -> Holder:
        """A worker that holds a task of `load`."""
        return await self.emit("load", "cold")

    async def write(
        self, holder: Holder, content: dict[str, bytes] | None = None, *, below: str = "", **changed: Any
    ) -> str:
        """Write an output as a worker does; returns its location. `changed` are fields of the manifest."""
        output = holder.reply["task"]["outputs"][0]
        folder = self.key(output["staging_uri"]) + below
        content = {"part.parquet": b"rows"} if content is None else content
        manifest = msgspec.json.encode(manifest_of(holder, content) | changed)
        for path, text in content.items():
            await self.blobs.put(f"{folder}{path}", text)
        await self.blobs.put(folder + MANIFEST, manifest)
        await self.blobs.put(folder + MARKER, digest(manifest).encode())
        return f"{self.root}/{folder}"

    async def finish(self, holder: Holder, **changed: Any) -> Any:
        """Complete a task with its output."""
        return await holder.complete(outputs=[output_of(holder) | changed])

    def key(self, location: str) -> str:
        assert location.startswith(f"{self.root}/"), location
        return location.removeprefix(f"{self.root}/")

    async def keys(self) -> list[str]:
        return [found.key for found in await self.blobs.page("", 10_000) if found.key != LAKE_MARKER]

    async def revisions(self) -> list[tuple[Any, ...]]:
        return await self.select(
            "select key, revision, attempt, location, rows, bytes from windlass.partition_revision"
        )

    async def select(self, query: str) -> list[tuple[Any, ...]]:
        async with self.engine.store.begin() as tx:
            return [tuple(row) for row in await tx.session.connection.fetch(query)]

    @property
    def lake(self) -> Lake:
        return self.engine.service(Lake)


def manifest_of(holder: Holder, files: dict[str, bytes]) -> dict[str, Any]:
    output, task = holder.reply["task"]["outputs"][0], holder.reply["task"]
    return {
        "version": 1, "dataset_uuid": output["dataset_uuid"], "dataset_version": output["dataset_version"],
        "task_id": task["task_id"], "attempt": holder.reply["attempt"], "partition_key": KEY, "rows": 10 * len(files),
        "files": [
            {"path": path, "bytes": len(text), "rows": 10, "sha256": hashlib.sha256(text).hexdigest()}
            for path, text in files.items()
        ],
    }  # fmt: skip


def output_of(holder: Holder) -> dict[str, Any]:
    output = holder.reply["task"]["outputs"][0]
    own = {name: output[name] for name in ("output_index", "dataset_uuid", "dataset_version")}
    return {**own, "location": output["staging_uri"], **SCOPE}


async def retried(world: LakeWorld, holder: Holder) -> Holder:
    """The next attempt of a task whose lease has expired."""
    await world.leases.expire()
    await world.leases.clock.advance(3600)
    await world.engine.parts.loops.timer_tick()
    return await world.leases.hold(holder.task_id)
