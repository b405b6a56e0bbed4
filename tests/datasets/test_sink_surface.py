"""What people see of sinks: dead letters and batches by command, metrics, and the findings of the doctor."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import asyncpg
from tests.cli.command import windlass
from tests.datasets.sink_world import SinkWorld, rows_of
from tests.datasets.test_sink_refusals import folder_of
from tests.datasets.world import output
from tests.kit.world import ROOT

from windlass.api.metrics import metrics_text
from windlass.datasets.data.database import DataDatabase
from windlass.datasets.doctor import examine_data
from windlass.datasets.sink_metrics import SinkLag
from windlass.engine.read.metrics import Tally
from windlass.serve import open_server


async def test_a_dead_letter_is_listed_and_replayed_by_command(sinks: SinkWorld) -> None:
    holder = await sinks.holder()
    publish_id = await sinks.publish(holder, b'{"dedupe_key": 7}', count=1)
    await sinks.drain()
    async with open_server(sinks.world.engine, http="127.0.0.1:0", api_key=ROOT) as url:

        async def run(*command: str) -> str:
            variables = {"WINDLASS_URL": url, "WINDLASS_API_KEY": ROOT}
            done = await asyncio.to_thread(windlass, *command, **variables)
            assert done.returncode == 0, done.stderr
            return done.stdout

        reason = "line 1, column dedupe_key: Expected `str`, got `int`"
        [dead] = json.loads(await run("dead-letters", "list", "--json"))
        assert (dead["reason"], dead["queue"]) == (reason, f"buffer.{output(holder)['dataset_uuid']}")
        [batch] = json.loads(await run("tasks", "events", str(holder.task_id), "--json"))["publishes"]
        assert (batch["problem"], batch["sunk_at"], batch["sink_task_id"]) == (reason, None, None)
        assert reason in " ".join((await run("tasks", "events", str(holder.task_id))).split())
        sinks.write(f"{folder_of(holder)}/batch.jsonl", b'{"dedupe_key": "k"}')
        assert f"Sent again for batch {publish_id}" in await run("dead-letters", "replay", dead["id"])
        await sinks.drain()
        [batch] = json.loads(await run("tasks", "events", str(holder.task_id), "--json"))["publishes"]
        assert (batch["problem"], batch["sunk_at"] is None, batch["sink_task_id"] is None) == (None, False, False)
    assert len(await sinks.rows(holder)) == 1


async def test_rows_are_counted_by_dataset_and_outcome_and_the_oldest_batch_has_its_age(sinks: SinkWorld) -> None:
    engine = sinks.world.engine
    engine.count(Tally())
    holder = await sinks.holder()
    await sinks.publish(holder, rows_of(1, 3), name="a.jsonl")
    await sinks.world.leases.clock.advance(1)
    await sinks.publish(holder, rows_of(2, 3), name="b.jsonl")
    await sinks.publish(holder, b"{}", name="c.jsonl", count=5)
    await sinks.world.leases.clock.advance(30)
    shown = (await metrics_text(engine)).decode()
    assert "windlass_dataset_sink_lag_seconds 31.0" in shown
    await sinks.drain()
    shown = (await metrics_text(engine)).decode()
    for outcome, count in (("written", 4.0), ("duplicate", 2.0), ("refused", 5.0)):
        assert f'windlass_dataset_sink_rows_total{{dataset="alert_events",outcome="{outcome}"}} {count}' in shown
    assert await SinkLag(engine).read() == 0.0  # a dead dead waits for a person, not for a sink


async def findings(sinks: SinkWorld, dsn: str | None = None) -> dict[str, Any]:
    dsn = dsn or sinks.world.engine.service(DataDatabase).dsn
    found = await examine_data(sinks.world.engine.store, dsn, pooled=False)
    return {one.name: one for one in found}


async def test_the_doctor_tells_of_a_data_database_that_is_unavailable_or_old(
    sinks: SinkWorld, bare_database: str
) -> None:
    assert {name: str(one.level) for name, one in (await findings(sinks)).items()} == {"data_database": "ok"}
    unavailable = (await findings(sinks, "postgresql://nobody:secret@127.0.0.1:9/nothing"))["data_database"]
    assert (str(unavailable.level), "does not answer" in unavailable.message, "secret" in unavailable.message) == (
        "wrong",
        True,
        False,
    )
    empty = (await findings(sinks, bare_database))["data_database"]
    assert (str(empty.level), "has no schema" in empty.message) == ("wrong", True)
    await sinks.data("update windlass_data.migration set checksum = 'older'")
    old = (await findings(sinks))["data_database"]
    assert (str(old.level), "not the one of this version" in old.message, bool(old.advice)) == ("wrong", True, True)


async def test_the_doctor_tells_of_batches_that_no_sink_receives(sinks: SinkWorld) -> None:
    holder = await sinks.holder()
    await sinks.publish(holder, rows_of(1))
    assert "sinks" not in await findings(sinks)
    await sinks.world.leases.clock.advance(timedelta(seconds=61).total_seconds())
    waits = (await findings(sinks))["sinks"]
    assert (str(waits.level), waits.message.split()[0]) == ("wrong", "1")
    assert await sinks.sink.tick() == 1
    assert "sinks" not in await findings(sinks)


async def test_a_database_without_its_schema_is_no_data_database(sinks: SinkWorld, bare_database: str) -> None:
    connection = await asyncpg.connect(bare_database)
    try:
        await connection.execute("create schema windlass_data")
    finally:
        await connection.close()
    assert str((await findings(sinks, bare_database))["data_database"].level) == "wrong"
