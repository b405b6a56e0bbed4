"""What holders write: batches of rows and files in the lake, in an object store that is away now and then.

What was written is kept here beside the store, so that the checkers know what must come out of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec
from tests.sim.seed import Stream

from windlass.engine.payloads.blob_port import Blob
from windlass.errors import Conflict, NotFound, Unavailable

if TYPE_CHECKING:
    from tests.sim.dag import DagSimulation

SCRATCH, LAKE_ROOT = "mem://scratch", "mem://lake"
KEYS = 25  # of rows: few, so that many batches have the same


class SimulatedBlobs:
    """An object store in memory. It takes its time, and is away now and then until the world is calm."""

    def __init__(self, world: DagSimulation, url: str) -> None:
        self.world, self.url = world, url
        self.objects: dict[str, bytes] = {}
        self._stream = world.seed.stream("blobs", url)
        self._unavailable = self._stream.pick({0.0: 3, 0.02: 2, 0.15: 1})

    async def put(self, key: str, content: bytes | AsyncIterable[bytes], *, new: bool = False) -> int:
        await self._travel()
        assert isinstance(content, bytes), key
        if new and key in self.objects:
            raise Conflict(f"there is {key} already")
        self.objects[key] = content
        return len(content)

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> Blob:
        await self._travel()
        if key not in self.objects:
            raise NotFound(f"there is no {key}")
        content = self.objects[key]
        return Blob(key, len(content), len(content), _pieces(content))

    async def size(self, key: str) -> int | None:
        await self._travel()
        return len(self.objects[key]) if key in self.objects else None

    async def sizes(self, keys: Sequence[str]) -> list[int | None]:
        return [await self.size(key) for key in keys]

    async def delete(self, keys: Sequence[str]) -> None:
        await self._travel()
        for key in keys:
            self.objects.pop(key, None)
            self.world.data_checker.deleted(f"{self.url}/{key}")

    async def _travel(self) -> None:
        await asyncio.sleep(self.world.weather.latency(self._stream))
        if not self.world.calm and self._stream.often(self._unavailable):
            raise Unavailable("the simulated store is away")


async def _pieces(content: bytes) -> AsyncIterator[bytes]:
    yield content


@dataclass(frozen=True, slots=True)
class WrittenBatch:
    """A batch as its holder wrote it. `doubtful`: its rows have a column that is the engine's, so that it may be
    refused, and must not be believed. One without an object is published all the same."""

    uri: str
    rows: list[dict[str, Any]]
    content: bytes
    count: int
    poison: bool = False
    doubtful: bool = False
    uploaded: bool = True


def drawn_batch(stream: Stream, uri: str, numbers: range) -> WrittenBatch:
    rows: list[dict[str, Any]] = [{"dedupe_key": f"k{stream.randint(0, KEYS)}", "n": n} for n in numbers]
    way = stream.pick({"good": 8, "type": 0.5, "count": 0.5, "column": 0.4, "json": 0.3, "org_id": 0.5, "absent": 0.3})
    match way:
        case "type":
            rows[-1]["n"] = "three"
        case "column":
            rows[0]["surprise"] = 1
        case "org_id":
            rows = [{**row, "org_id": "somebody"} for row in rows]
    content = b"".join(msgspec.json.encode(row) + b"\n" for row in rows) + (b"{" if way == "json" else b"")
    return WrittenBatch(
        uri, rows, content, len(rows) + (way == "count"), poison=way in ("type", "count", "column", "json"),
        doubtful=way == "org_id", uploaded=way != "absent",
    )  # fmt: skip


def lake_files(output: dict[str, Any], task_id: UUID, attempt: int, partition_key: str) -> dict[str, bytes]:
    """What an attempt writes for one output: its file, the manifest, and the marker last."""
    data = f"{task_id}/{attempt}/{partition_key}".encode()
    manifest = msgspec.json.encode(
        {
            "version": 1, "dataset_uuid": output["dataset_uuid"], "dataset_version": output["dataset_version"],
            "task_id": str(task_id), "attempt": attempt, "partition_key": partition_key, "rows": 3,
            "files": [{"path": "part.parquet", "bytes": len(data), "rows": 3}],
        }
    )  # fmt: skip
    marker = sha256(manifest).hexdigest().encode()
    return {"part.parquet": data, "_manifest.json": manifest, "_SUCCESS": marker}
