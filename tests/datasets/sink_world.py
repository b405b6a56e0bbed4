"""A DAG with a buffered dataset, a scratch folder, and a sink whose ticks a test calls by hand."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import httpx
from tests.contracts.lease.world import SCRATCH, Holder
from tests.datasets.world import World

from windlass.datasets.data.database import DataDatabase
from windlass.datasets.data.tables import DataTables
from windlass.datasets.rules.table_sql import table_of, view_of
from windlass.datasets.scratch import Scratch
from windlass.datasets.sink import Sink
from windlass.serve import open_blobs

ALERTS = """\
name: alerts
jobs:
  - {name: evaluate, activation: source, runtime: ecs_udf, operator: alert_evaluate, source: {kind: manual}, outputs: 1,
     update_strategy: append, unique_key: [dedupe_key]}
  - {name: page, activation: reactive, runtime: ecs_platform, operator: pager, execution_strategy: PerUpdate,
     inputs: [{from: {dataset: alert_events}}], outputs: 0}
publish:
  alert_events:
    from: {job: evaluate}
    storage: postgres
    write_mode: buffered
    schema:
      columns: [{name: org_id, type: uuid}, {name: dedupe_key, type: text, nullable: false},
                {name: severity, type: text}, {name: payload, type: jsonb}]
      unique: [org_id, dedupe_key]
      on_conflict: ignore
"""


def rows_of(first: int, number: int = 2) -> list[dict[str, Any]]:
    return [{"dedupe_key": f"k{n}", "severity": "high", "payload": {"n": n}} for n in range(first, first + number)]


@dataclass
class SinkWorld:
    """The world of a DAG, its scratch folder, and sinks."""

    world: World
    folder: Path
    sink: Sink

    @classmethod
    def of(cls, world: World, folder: Path) -> SinkWorld:
        return cls(world, folder, make_sink(world, folder))

    def another(self) -> Sink:
        """A second sink on the same database."""
        return make_sink(self.world, self.folder)

    async def holder(self, yaml: str = ALERTS) -> Holder:
        """A task of the job that writes the dataset, held by us."""
        await self.world.deploy(yaml, "alerts")
        return await self.world.emit("evaluate", "alerts")

    def write(self, uri: str, content: bytes) -> None:
        file = self.folder / uri.removeprefix(f"{SCRATCH}/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)

    async def publish(
        self, holder: Holder, rows: Sequence[Any] | bytes, *, name: str = "batch.jsonl", count: int | None = None
    ) -> UUID:
        """Write a batch and publish it."""
        [output] = holder.reply["task"]["outputs"]
        content = rows if isinstance(rows, bytes) else b"".join(json.dumps(row).encode() + b"\n" for row in rows)
        uri = f"{SCRATCH}/buffers/{output['dataset_uuid']}/{holder.task_id}/{holder.reply['attempt']}/{name}"
        self.write(uri, content)
        answer = await self.say(holder, uri, len(rows) if count is None else count)
        assert answer.status_code == 200, answer.text
        await self.send()
        return UUID(answer.json()["publish_id"])

    async def say(self, holder: Holder, uri: str, count: int = 1, **more: Any) -> httpx.Response:
        [output] = holder.reply["task"]["outputs"]
        ids = {name: output[name] for name in ("dataset_uuid", "dataset_version")}
        return await holder.publish(**{**ids, "batch_uri": uri, "record_count": count, **more})

    async def deliver_again(self) -> None:
        """Make all messages visible, as if their time was over."""
        await self.state("update windlass.message set visible_at = windlass.now() returning id")

    @asynccontextmanager
    async def other_data(self, dsn: str = "postgresql://nobody@127.0.0.1:9/nothing") -> AsyncIterator[None]:
        """Another data database: one that does not answer."""
        data = self.world.engine.service(DataDatabase)
        before = data.dsn
        await data.close()
        data.use(dsn)
        try:
            yield
        finally:
            await data.close()
            data.use(before)

    async def send(self) -> None:
        """Carry out the effects of publishes."""
        await self.world.engine.loops.effects_tick()

    async def drain(self, sink: Sink | None = None) -> None:
        """Let a sink write all that waits, and route the events."""
        while await (sink or self.sink).tick():
            pass
        await self.world.settle()

    # ----------------------------------------------------------------------------------------- reads

    async def state(self, sql: str, *args: object) -> list[dict[str, Any]]:
        async with self.world.engine.store.begin() as tx:
            return [dict(row) for row in await tx.session.connection.fetch(sql, *args)]

    async def data(self, sql: str, *args: object) -> list[dict[str, Any]]:
        connection = await asyncpg.connect(self.world.engine.service(DataDatabase).dsn)
        try:
            return [dict(row) for row in await connection.fetch(sql, *args)]
        finally:
            await connection.close()

    async def rows(self, holder: Holder) -> list[dict[str, Any]]:
        """The rows of the version that a task writes."""
        [output] = holder.reply["task"]["outputs"]
        table = table_of(UUID(output["dataset_version"]))
        return await self.data(f"select * from windlass_data.{table} order by dedupe_key")

    async def shown(self, holder: Holder) -> list[dict[str, Any]]:
        """The rows of the view, which other tools read."""
        await self.world.engine.service(DataTables).tick()
        [output] = holder.reply["task"]["outputs"]
        view = view_of(UUID(output["dataset_uuid"]))
        return await self.data(f'select * from windlass_data."{view}" order by dedupe_key')

    async def dead_letters(self) -> list[dict[str, Any]]:
        return await self.state("select * from windlass.dead_message where queue like 'buffer.%'")

    async def events(self) -> list[int]:
        """The cursors of the events that sinks reported."""
        found = await self.state("select cursor from windlass.event where caller = 'windlass.sink' order by cursor")
        return [row["cursor"] for row in found]

    async def nothing_written(self, holder: Holder) -> None:
        assert await self.rows(holder) == []
        assert await self.data("select * from windlass_data.sink_commit") == []
        assert await self.events() == []


def make_sink(world: World, folder: Path) -> Sink:
    return Sink(world.engine, Scratch(SCRATCH, open_blobs(str(folder))))
