"""Sinks and databases that fail: nothing is lost, nothing is written twice, and the rest of the engine goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from tests.contracts.lease.world import SCRATCH
from tests.datasets.sink_world import ALERTS, SinkWorld, rows_of
from tests.datasets.test_sink_refusals import folder_of
from tests.datasets.world import World, output
from tests.kit import database as databases
from tests.kit.world import ok

from windlass.datasets.data.database import DataDatabase
from windlass.datasets.data.tables import DataTables
from windlass.datasets.rules.table_sql import table_of, view_of
from windlass.datasets.sink import Sink
from windlass.datasets.tables.dags import DeploymentRow
from windlass.errors import Unavailable
from windlass.store.pool import Session

CHANGED = ALERTS.replace("{name: severity, type: text}", "{name: severity, type: text}, {name: note, type: text}")


class Killed(BaseException):
    """The sink dies."""


class Deaths:
    """Kills the sink at its nth statement, before it is run or after."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left, self.after, self.died = 0, False, False
        for name in ("fetch", "execute", "run", "copy"):
            monkeypatch.setattr(Session, name, self._dying(getattr(Session, name)))

    def at(self, statement: int, *, after: bool) -> None:
        self.left, self.after, self.died = statement, after, False

    def _dying(self, method: Any) -> Any:
        async def run(session: Session, *args: Any) -> Any:
            self.left -= 1
            if self.left == 0 and not self.after:
                self._die()
            found = await method(session, *args)
            if self.left == 0 and self.after:
                self._die()
            return found

        return run

    def _die(self) -> None:
        self.died = True
        raise Killed


@pytest.fixture
async def apart(sinks: SinkWorld, postgres: databases.Server) -> AsyncIterator[SinkWorld]:
    """A data database of its own."""
    dsn = await databases.fresh_database(postgres)
    sinks.world.engine.service(DataDatabase).use(dsn)
    yield sinks
    await databases.drop_database(postgres, dsn)


async def exact(sinks: SinkWorld, version: UUID, batches: int) -> None:
    """Each batch has its two rows, its commit and its event, and cursors have no gap."""
    found = await sinks.data(f"select seq, count(*) from windlass_data.{table_of(version)} group by seq order by seq")
    assert [tuple(row.values()) for row in found] == [(cursor, 2) for cursor in range(1, batches + 1)]
    assert await sinks.events() == list(range(1, batches + 1))
    commits = await sinks.data("select cursor from windlass_data.sink_commit order by cursor")
    assert [row["cursor"] for row in commits] == list(range(1, batches + 1))
    publishes = await sinks.state(
        """select p.sunk_at is not null as sunk, t.state
             from windlass.publish p join windlass.task t on t.id = p.sink_task_id"""
    )
    assert [(row["sunk"], row["state"]) for row in publishes] == [(True, "succeeded")] * batches
    assert await sinks.state("select id from windlass.message where queue like 'buffer.%'") == []
    assert await sinks.dead_letters() == []


async def test_a_sink_that_dies_at_any_statement_of_either_database_loses_and_doubles_nothing(
    apart: SinkWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = await apart.holder()
    deaths, places, number = Deaths(monkeypatch), 0, 0
    for after in (False, True):
        for statement in range(1, 100):
            for _ in range(2):
                await apart.publish(holder, rows_of(2 * number), name=f"{number}.jsonl")
                number += 1
            deaths.at(statement, after=after)
            with suppress(Killed):
                await apart.another().tick()
            died = deaths.died
            deaths.at(0, after=False)
            await apart.deliver_again()
            await apart.another().tick()
            if not died:
                break
            places += 1
    await apart.world.settle()
    assert places > 40
    await exact(apart, UUID(output(holder)["dataset_version"]), number)


@pytest.mark.parametrize("lost", ["state", "answer"])
async def test_a_sink_that_fails_between_data_and_state_repeats_the_same_event(
    apart: SinkWorld, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    holder = await apart.holder()
    await apart.publish(holder, rows_of(1))
    record = Sink._record

    async def fails(self: Sink, *given: Any) -> None:
        if lost == "answer":
            await record(self, *given)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Sink, "_record", fails)
        with pytest.raises(Killed):
            await apart.sink.tick()
    assert len(await apart.rows(holder)) == 2
    assert await apart.events() == ([1] if lost == "answer" else [])
    await apart.deliver_again()
    apart.write(f"{folder_of(holder)}/batch.jsonl", b"gone wrong meanwhile")  # it is not read again
    await apart.drain(apart.another())
    await exact(apart, UUID(output(holder)["dataset_version"]), 1)


async def test_two_sinks_at_once_write_each_batch_once(apart: SinkWorld) -> None:
    holder = await apart.holder()
    for number in range(12):
        await apart.publish(holder, rows_of(2 * number), name=f"{number}.jsonl")
    for _ in range(3):  # and both have the same messages
        first, second = apart.another(), apart.another()
        await asyncio.gather(first.tick(), second.tick(), _again(apart))
    await apart.deliver_again()
    await apart.drain()
    await exact(apart, UUID(output(holder)["dataset_version"]), 12)


async def _again(sinks: SinkWorld) -> None:
    for _ in range(3):
        await sinks.deliver_again()


async def test_tasks_of_several_jobs_write_one_dataset(sinks: SinkWorld) -> None:
    two = ALERTS.replace("    from: {job: evaluate}", "    from: [{job: evaluate}, {job: second}]").replace(
        "publish:",
        """  - {name: second, activation: source, runtime: ecs_platform, operator: second, source: {kind: manual},
     outputs: 1, update_strategy: append, unique_key: [dedupe_key]}
publish:""",
    )
    holder = await sinks.holder(two)
    other = await sinks.world.emit("second", "alerts")
    assert output(holder) == output(other)
    await sinks.publish(holder, rows_of(1))
    await sinks.world.leases.clock.advance(1)
    await sinks.publish(other, rows_of(2))
    await sinks.drain()
    found = {row["dedupe_key"]: row["producer_task_id"] for row in await sinks.rows(holder)}
    assert found == {"k1": holder.task_id, "k2": holder.task_id, "k3": other.task_id}


PARTS = """
name: alerts
jobs:
  - {name: load, activation: source, runtime: dispatcher, operator: manual_source, source: {kind: manual}, outputs: 1,
     update_strategy: replace}
  - {name: evaluate, activation: reactive, runtime: ecs_platform, operator: evaluate, execution_strategy: PerPartition,
     inputs: [{from: {job: load}}], outputs: 1, update_strategy: append, unique_key: [dedupe_key],
     on_change: rebuild, config: {limit: 1}}
publish:
"""


async def building(world: World, file: str, sinks: SinkWorld | None = None) -> DeploymentRow:
    """The second version of a file, which builds one partition. With `sinks`, the first one has a batch of it."""
    await world.deploy(file, "alerts")
    await world.sources.emit("alerts", "load", partition_key="0-9", start=0, end=9)
    await world.settle()
    first = await world.hold("evaluate")
    if sinks is not None:
        await sinks.publish(first, rows_of(0))
        await sinks.drain()
    ok(await first.complete())
    await world.settle()
    made = await world.deploy(file.replace("limit: 1", "limit: 2"), "alerts")
    assert made.state == "building"
    return made


async def test_a_version_is_ready_when_its_batches_are_in_their_table(sinks: SinkWorld) -> None:
    world, file = sinks.world, PARTS.lstrip() + ALERTS.partition("publish:\n")[2]
    made = await building(world, file)
    build = await world.hold("evaluate")
    await sinks.publish(build, rows_of(1))
    assert (await build.complete()).status_code == 200
    await world.settle()
    assert (await world.dags.deployment("alerts", made.id)).state == "building"
    await sinks.drain()
    assert (await world.dags.deployment("alerts", made.id)).state == "active"
    assert [row["dedupe_key"] for row in await sinks.shown(build)] == ["k1", "k2"]


async def test_a_batch_that_is_a_dead_letter_holds_up_no_version(sinks: SinkWorld) -> None:
    world, file = sinks.world, PARTS.lstrip() + ALERTS.partition("publish:\n")[2]
    made = await building(world, file)
    build = await world.hold("evaluate")
    await sinks.publish(build, b"not json\n", count=1)
    assert (await build.complete()).status_code == 200
    await sinks.drain()
    assert len(await sinks.dead_letters()) == 1
    assert (await world.dags.deployment("alerts", made.id)).state == "active"


# ------------------------------------------------------------------------------------------- without the data database


async def test_messages_lose_no_delivery_while_the_data_database_is_unavailable(apart: SinkWorld) -> None:
    holder = await apart.holder()
    await apart.publish(holder, rows_of(1))
    late = apart.another()  # a sink that starts while it is away
    async with apart.other_data():
        for _ in range(20):
            await late.tick()
            await apart.deliver_again()
            await apart.world.leases.clock.advance(2)
        [message] = await apart.state("select deliveries from windlass.message where queue like 'buffer.%'")
        assert message["deliveries"] == 0
        assert await apart.dead_letters() == []
    await apart.world.leases.clock.advance(60)
    await apart.deliver_again()
    await apart.drain(late)
    await exact(apart, UUID(output(holder)["dataset_version"]), 1)


async def test_a_data_database_without_its_schema_is_waited_for(sinks: SinkWorld, bare_database: str) -> None:
    holder = await sinks.holder()
    await sinks.publish(holder, rows_of(1))
    async with sinks.other_data(bare_database):
        for _ in range(12):
            await sinks.sink.tick()
            await sinks.deliver_again()
            await sinks.world.leases.clock.advance(20)
        assert await sinks.dead_letters() == []
    await sinks.world.leases.clock.advance(20)
    await sinks.deliver_again()
    await sinks.drain()
    await exact(sinks, UUID(output(holder)["dataset_version"]), 1)


async def test_claims_completions_routing_cutover_and_rollback_do_without_the_data_database(apart: SinkWorld) -> None:
    world = apart.world
    holder = await apart.holder()
    await apart.publish(holder, rows_of(1))
    await apart.drain()
    first = await world.dags.get("alerts")
    second = await world.deploy(ALERTS.replace("operator: pager", "operator: pager, operator_version: two"), "alerts")
    assert second.state == "active"
    await apart.shown(holder)
    async with apart.other_data():
        page = await world.hold("page")  # routed
        ok(await page.complete())
        other = await world.emit("evaluate", "alerts")
        await apart.publish(other, rows_of(3), name="away.jsonl")
        ok(await other.complete())
        assert (await world.dags.rollback("alerts")).active_version == first.active_version
        assert (await world.dags.activate("alerts", second.id)).active_version == second.id
        await world.settle()
        with pytest.raises(Unavailable):
            await world.engine.service(DataTables).tick()
        assert await apart.sink.tick() == 1
    await world.leases.clock.advance(60)
    await apart.drain()
    assert [row["dedupe_key"] for row in await apart.shown(holder)] == ["k1", "k2", "k3", "k4"]
    assert await apart.events() == [1, 2]


async def test_a_deploy_is_taken_and_builds_until_its_tables_can_be_made(apart: SinkWorld) -> None:
    world = apart.world
    async with apart.other_data():
        made = await world.deploy(ALERTS, "alerts")
        assert made.state == "building"
        with pytest.raises(Unavailable):
            await world.engine.service(DataTables).tick()
        await world.settle()
        assert (await world.dags.deployment("alerts", made.id)).state == "building"
    assert await world.engine.service(DataTables).tick() >= 1
    await world.settle()
    assert (await world.dags.deployment("alerts", made.id)).state == "active"
    holder = await world.emit("evaluate", "alerts")
    await apart.publish(holder, rows_of(1))
    await apart.drain()
    assert len(await apart.shown(holder)) == 2


# --------------------------------------------------------------------------------------------- messages and objects


async def test_a_lost_message_is_sent_again(sinks: SinkWorld) -> None:
    holder = await sinks.holder()
    await sinks.publish(holder, rows_of(1))
    await sinks.state("delete from windlass.message returning id")
    assert await sinks.sink.reconcile_tick() == 0  # it may be on its way
    await sinks.world.leases.clock.advance(61)
    assert await sinks.sink.reconcile_tick() == 1
    assert await sinks.sink.reconcile_tick() == 0
    await sinks.drain()
    await exact(sinks, UUID(output(holder)["dataset_version"]), 1)


async def test_objects_are_deleted_after_a_time_and_only_if_the_commit_record_has_them(apart: SinkWorld) -> None:
    holder = await apart.holder()
    for name in ("sunk", "forged", "wrong", "waits"):
        await apart.publish(
            holder, b"{}" if name == "wrong" else rows_of(1), name=f"{name}.jsonl", count=1 if name == "wrong" else 2
        )
        if name != "waits":
            await apart.drain()
    files = {file.stem for file in apart.folder.rglob("*.jsonl")}
    assert files == {"sunk", "forged", "wrong", "waits"}
    await apart.data("delete from windlass_data.sink_commit where cursor = 2 returning cursor")
    assert await apart.sink.clean_up_tick() == 0  # younger than buffer_keep_s
    await apart.world.leases.clock.advance(3601)
    assert await apart.sink.clean_up_tick() == 1
    assert {file.stem for file in apart.folder.rglob("*.jsonl")} == {"forged", "wrong", "waits"}
    assert await apart.sink.clean_up_tick() == 0
    async with apart.other_data():
        with pytest.raises(Unavailable):
            await apart.sink.clean_up_tick()
    assert {file.stem for file in apart.folder.rglob("*.jsonl")} == {"forged", "wrong", "waits"}


# --------------------------------------------------------------------------------------------- versions


async def test_each_version_has_its_table_and_the_view_follows_cutover_and_rollback(sinks: SinkWorld) -> None:
    world = sinks.world
    old = await sinks.holder()
    await sinks.publish(old, rows_of(1))
    await sinks.drain()
    assert (await world.deploy(CHANGED, "alerts")).state == "active"
    new = await world.emit("evaluate", "alerts")
    assert output(new)["dataset_uuid"] == output(old)["dataset_uuid"]
    assert output(new)["dataset_version"] != output(old)["dataset_version"]
    await sinks.publish(new, [{"dedupe_key": "k9", "note": "n"}])
    await sinks.drain()
    assert [(row["dedupe_key"], row["note"]) for row in await sinks.shown(new)] == [("k9", "n")]
    await world.dags.rollback("alerts")
    shown = await sinks.shown(new)
    assert [row["dedupe_key"] for row in shown] == ["k1", "k2"]
    assert "note" not in shown[0]
    assert [row["dedupe_key"] for row in await sinks.rows(new)] == ["k9"]  # the other version keeps its data


async def test_a_reader_that_continues_gets_every_batch_of_a_version_whose_cursors_begin_again(
    sinks: SinkWorld,
) -> None:
    world = sinks.world
    old = await sinks.holder()
    for number in range(3):
        await sinks.publish(old, rows_of(number), name=f"batch-{number}.jsonl")
        await sinks.drain()
        await read_page(world)
    await sinks.publish(old, rows_of(3), name="late.jsonl")
    await sinks.drain()  # its window waits when the version changes

    assert (await world.deploy(CHANGED, "alerts")).state == "active"
    await world.leases.clock.advance(1)
    new = await world.emit("evaluate", "alerts")
    await sinks.publish(new, [{"dedupe_key": "k9", "note": "n"}])
    await sinks.drain()

    assert await read_page(world) == (output(old)["dataset_version"], 3, 4)
    await world.settle()
    assert await read_page(world) == (output(new)["dataset_version"], None, 1)
    assert await world.tasks("page", "queued") == []


async def test_a_reader_that_continues_gets_no_batch_again_that_was_built_before_the_cutover(sinks: SinkWorld) -> None:
    page = "  - {name: page" + ALERTS.partition("  - {name: page")[2]
    world, file = sinks.world, PARTS.lstrip().replace("publish:\n", page)
    made = await building(world, file, sinks)
    assert (await read_page(world))[1:] == (None, 1)
    build = await world.hold("evaluate")
    for number in range(3):
        await sinks.publish(build, rows_of(number), name=f"batch-{number}.jsonl")
    ok(await build.complete())
    await sinks.drain()
    assert (await world.dags.deployment("alerts", made.id)).state == "active"
    assert await world.tasks("page", "queued") == []

    await world.sources.emit("alerts", "load", partition_key="10-19", start=10, end=19)
    await world.settle()
    await sinks.publish(await world.hold("evaluate"), rows_of(9))
    await sinks.drain()

    assert await read_page(world) == (output(build)["dataset_version"], 3, 4)


async def read_page(world: World) -> tuple[str, int | None, int]:
    """Complete the task of the reader. Returns the version and the window that it was given."""
    holder = await world.hold("page")
    [given] = holder.reply["task"]["inputs"]
    ok(await holder.complete())
    await world.settle()
    return given["dataset_version"], given["cursor_from"], given["cursor_to"]


async def test_a_batch_of_a_version_that_is_no_longer_live_is_written_and_wakes_nobody(sinks: SinkWorld) -> None:
    world = sinks.world
    old = await sinks.holder()
    await sinks.publish(old, rows_of(1))
    assert (await world.deploy(CHANGED, "alerts")).state == "active"
    before = await world.tasks("page")
    await sinks.drain()
    assert [row["dedupe_key"] for row in await sinks.rows(old)] == ["k1", "k2"]
    [event] = await sinks.state("select * from windlass.event where caller = 'windlass.sink'")
    assert (event["cursor"], event["routing"]) == (1, "old_version")
    assert await world.tasks("page") == before
    assert await sinks.shown(old) == []


async def test_a_purge_drops_table_and_view(sinks: SinkWorld) -> None:
    old = await sinks.holder()
    await sinks.publish(old, rows_of(1))
    await sinks.drain()
    await sinks.shown(old)
    assert (await sinks.world.deploy(CHANGED, "alerts")).state == "active"
    version = UUID(output(old)["dataset_version"])
    await sinks.state(
        "update windlass.dataset_version set purged_at = windlass.now() where id = $1 returning id", version
    )
    tables = sinks.world.engine.service(DataTables)
    assert await tables.tick() >= 1
    assert await tables.tick() == 0
    with pytest.raises(asyncpg.UndefinedTableError):
        await sinks.rows(old)
    assert await sinks.shown(old) == []  # the view is that of the current version


async def test_a_view_that_people_have_built_on_stays_and_holds_up_nothing(
    sinks: SinkWorld, caplog: pytest.LogCaptureFixture
) -> None:
    old = await sinks.holder()
    await sinks.publish(old, rows_of(1))
    await sinks.drain()
    await sinks.shown(old)
    view = f'windlass_data."{view_of(UUID(output(old)["dataset_uuid"]))}"'
    await sinks.data(f"create view mine as select * from {view}")
    assert (await sinks.world.deploy(CHANGED, "alerts")).state == "active"
    assert [row["dedupe_key"] for row in await sinks.shown(old)] == ["k1", "k2"]
    assert "stays on its version" in caplog.text
    version = UUID(output(old)["dataset_version"])
    purge = "update windlass.dataset_version set purged_at = windlass.now() where id = $1 returning id"
    await sinks.state(purge, version)
    assert await sinks.world.engine.service(DataTables).tick() == 0
    await sinks.data("drop view mine")
    assert await sinks.world.engine.service(DataTables).tick() == 1


async def test_with_update_the_batch_that_was_published_last_wins_also_if_it_is_written_first(sinks: SinkWorld) -> None:
    holder = await sinks.holder(ALERTS.replace("on_conflict: ignore", "on_conflict: update"))
    ok(await sinks.say(holder, f"{folder_of(holder)}/late.jsonl", 2))
    await sinks.send()
    await sinks.sink.tick()  # its object is missing
    await sinks.world.leases.clock.advance(timedelta(seconds=0.5).total_seconds())
    await sinks.publish(holder, [{"dedupe_key": "k1", "severity": "new"}], name="new.jsonl")
    assert await sinks.sink.tick() == 1
    sinks.write(f"{SCRATCH}/{folder_of(holder).removeprefix(SCRATCH + '/')}/late.jsonl",
                b'{"dedupe_key": "k1", "severity": "old"}\n{"dedupe_key": "k2", "severity": "old"}')  # fmt: skip
    await sinks.deliver_again()
    await sinks.drain()
    found = {row["dedupe_key"]: (row["severity"], row["seq"]) for row in await sinks.rows(holder)}
    assert found == {"k1": ("new", 1), "k2": ("old", 2)}


async def test_with_update_the_last_line_of_a_batch_wins(sinks: SinkWorld) -> None:
    holder = await sinks.holder(ALERTS.replace("on_conflict: ignore", "on_conflict: update"))
    lines = [{"dedupe_key": f"k{n % 3}", "severity": str(n)} for n in range(10)]
    await sinks.publish(holder, lines)
    await sinks.drain()
    assert {row["dedupe_key"]: row["severity"] for row in await sinks.rows(holder)} == {"k0": "9", "k1": "7", "k2": "8"}
