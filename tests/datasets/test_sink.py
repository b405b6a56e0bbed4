"""The sink: each batch of a buffered dataset is in its table once, also after a crash and a repeat."""

from __future__ import annotations

from uuid import UUID

from tests.datasets.sink_world import SinkWorld, rows_of
from tests.datasets.world import output
from tests.kit.world import ok


async def test_a_batch_is_in_its_table_with_the_tenant_and_the_producer_of_its_publish(sinks: SinkWorld) -> None:
    holder = await sinks.holder()
    publish_id = await sinks.publish(holder, rows_of(1))
    await sinks.drain()
    found = await sinks.rows(holder)
    assert [(row["dedupe_key"], row["severity"], row["payload"]) for row in found] == [
        ("k1", "high", '{"n": 1}'),
        ("k2", "high", '{"n": 2}'),
    ]
    for row in found:
        assert (row["org_id"], row["producer_task_id"], row["producer_attempt"]) == ("default", holder.task_id, 1)
        assert row["seq"] == 1
    [publish] = await sinks.state("select * from windlass.publish where id = $1", publish_id)
    assert publish["sunk_at"] is not None
    [task] = await sinks.state("select * from windlass.task where id = $1", publish["sink_task_id"])
    assert (task["kind"], task["state"], task["namespace"]) == ("windlass.sink", "succeeded", "default")
    assert await sinks.state("select * from windlass.message where queue like 'buffer.%'") == []
    assert await sinks.events() == [1]
    assert [row["dedupe_key"] for row in await sinks.shown(holder)] == ["k1", "k2"]


async def test_the_event_of_a_batch_wakes_the_jobs_that_read_the_dataset(sinks: SinkWorld) -> None:
    holder = await sinks.holder()
    await sinks.publish(holder, rows_of(1))
    await sinks.drain()
    page = await sinks.world.hold("page")
    [given] = page.reply["task"]["inputs"]
    assert (given["mode"], given["cursor_from"], given["cursor_to"]) == ("cursor", None, 1)


async def test_a_cursor_that_a_writer_reports_does_not_hide_the_batches_that_follow(sinks: SinkWorld) -> None:
    holder = await sinks.holder()
    lie = {**output(holder), "cursor": 1000}
    ok(await holder.events(lie))
    await sinks.publish(holder, rows_of(1))
    await sinks.drain()
    assert await sinks.state("select cursor from windlass.high_water") == [{"cursor": 1}]
    [given] = (await sinks.world.hold("page")).reply["task"]["inputs"]
    assert (given["cursor_from"], given["cursor_to"]) == (None, 1)
    routings = await sinks.state("select routing, cursor from windlass.event order by cursor")
    assert [tuple(row.values()) for row in routings] == [("routed", 1), ("uncommitted", 1000)]

    ok(await holder.complete(outputs=[lie]))
    await sinks.drain()
    assert await sinks.state("select cursor from windlass.high_water") == [{"cursor": 1}]


async def test_batches_of_a_dataset_share_a_transaction_and_have_one_cursor_each(sinks: SinkWorld) -> None:
    holder = await sinks.holder()
    for number in range(3):
        await sinks.publish(holder, rows_of(2 * number), name=f"batch-{number}.jsonl")
    assert await sinks.sink.tick() == 3
    assert sorted(row["seq"] for row in await sinks.rows(holder)) == [1, 1, 2, 2, 3, 3]
    assert await sinks.events() == [1, 2, 3]
    commits = await sinks.data("select cursor, rows_in, rows_new from windlass_data.sink_commit order by cursor")
    assert [tuple(commit.values()) for commit in commits] == [(1, 2, 2), (2, 2, 2), (3, 2, 2)]


async def test_a_row_that_is_there_is_not_written_again(sinks: SinkWorld) -> None:
    holder = await sinks.holder()
    await sinks.publish(holder, rows_of(1, 2))
    await sinks.world.leases.clock.advance(1)
    await sinks.publish(holder, rows_of(2, 2), name="again.jsonl")
    await sinks.drain()
    assert [(row["dedupe_key"], row["seq"]) for row in await sinks.rows(holder)] == [("k1", 1), ("k2", 1), ("k3", 2)]
    commits = await sinks.data("select rows_in, rows_new from windlass_data.sink_commit order by cursor")
    assert [tuple(commit.values()) for commit in commits] == [(2, 2), (2, 1)]


async def test_an_empty_batch_raises_the_cursor(sinks: SinkWorld) -> None:
    holder = await sinks.holder()
    await sinks.publish(holder, [])
    await sinks.drain()
    assert await sinks.rows(holder) == []
    assert await sinks.events() == [1]


async def test_a_publish_that_is_repeated_is_the_same_batch(sinks: SinkWorld) -> None:
    holder = await sinks.holder()
    first = await sinks.publish(holder, rows_of(1))
    await sinks.drain()
    assert await sinks.publish(holder, rows_of(1)) == first
    await sinks.drain()
    assert len(await sinks.rows(holder)) == 2
    assert await sinks.events() == [1]


async def test_view_and_table_have_the_names_that_other_tools_read(sinks: SinkWorld) -> None:
    holder = await sinks.holder()
    await sinks.shown(holder)
    [output] = holder.reply["task"]["outputs"]
    dataset, version = UUID(output["dataset_uuid"]), UUID(output["dataset_version"])
    names = await sinks.data("select table_name from information_schema.tables where table_schema = 'windlass_data'")
    assert {f"v_{version.hex}", f"dataset_{dataset}"} <= {row["table_name"] for row in names}
