"""Batches that are refused: by the server when they are published, or by the sink, with nothing written."""

from __future__ import annotations

import io
import random
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.contracts.lease.world import SCRATCH, Holder
from tests.datasets.sink_world import ALERTS, SinkWorld, rows_of
from tests.datasets.world import output
from tests.kit.world import ok

from windlass.contracts.lease.wakeups.planner import Wakeups
from windlass.datasets import columnar
from windlass.datasets.scratch import Scratch
from windlass.datasets.sink import DELIVERIES_MAX, Sink
from windlass.errors import InvalidState
from windlass.serve import open_blobs

ORG = "6f2c1a7e-54d0-4a30-9d3d-0a6f0f5c9b11"


def folder_of(holder: Holder, **other: Any) -> str:
    """The folder of the batches of an attempt."""
    ids = {
        "dataset": output(holder)["dataset_uuid"],
        "task": holder.task_id,
        "attempt": holder.reply["attempt"],
        **other,
    }
    return f"{SCRATCH}/buffers/{ids['dataset']}/{ids['task']}/{ids['attempt']}"


async def test_a_batch_of_another_task_dataset_or_attempt_is_not_taken(sinks: SinkWorld) -> None:
    holder = await sinks.holder()
    other = await sinks.world.emit("evaluate", "alerts")
    mine = folder_of(holder)
    for uri in (
        f"{folder_of(other)}/b.jsonl", f"{folder_of(holder, dataset=uuid4())}/b.jsonl",
        f"{folder_of(holder, attempt=2)}/b.jsonl",
        f"{folder_of(holder, attempt=11)}/b.jsonl", f"{mine}1/b.jsonl", f"{mine}-evil/b.jsonl", f"{mine}/../2/b.jsonl",
        f"{mine}/./b.jsonl", f"{mine}//b.jsonl", f"{mine}/", f"{SCRATCH}/b.jsonl",
        f"{SCRATCH}-evil{mine.removeprefix(SCRATCH)}/b.jsonl",
        mine.replace("s3://", "file://") + "/b.jsonl", f"file://{sinks.folder}/b.jsonl", "s3://other/b.jsonl",
        f"{mine}/..%2f2/b.jsonl", f"{mine}\\..\\b.jsonl", f"{mine.upper()}/b.jsonl",
    ):  # fmt: skip
        sinks.write(f"{mine}/b.jsonl", b'{"dedupe_key": "k"}')
        answer = await sinks.say(holder, uri)
        assert answer.status_code in (400, 403), (uri, answer.text)
        assert answer.json()["field"] == "batch_uri", (uri, answer.text)
    await sinks.send()
    await sinks.drain()
    assert await sinks.state("select * from windlass.publish") == []
    await sinks.nothing_written(holder)


async def test_a_dataset_that_is_no_output_of_the_task_is_not_written(sinks: SinkWorld) -> None:
    holder = await sinks.holder()
    page = await sinks.world.deploy(ALERTS.replace("alerts", "other").replace("alert_events", "other_events"), "other")
    assert page.state == "active"
    foreign = await sinks.world.emit("evaluate", "other")
    name = "batch.jsonl"
    for wrong in (
        {"dataset_uuid": str(uuid4())}, {"dataset_version": str(uuid4())}, output(foreign),
        {"dataset_version": output(foreign)["dataset_version"]},
    ):  # fmt: skip
        uri = f"{folder_of(holder, dataset=wrong.get('dataset_uuid', output(holder)['dataset_uuid']))}/{name}"
        sinks.write(uri, b'{"dedupe_key": "k"}')
        answer = await sinks.say(holder, uri, **wrong)
        assert answer.status_code == 403, answer.text
    await sinks.send()
    await sinks.drain()
    await sinks.nothing_written(holder)
    await sinks.nothing_written(foreign)


async def test_a_task_that_was_submitted_by_hand_does_not_write_the_dataset_of_a_dag(sinks: SinkWorld) -> None:
    holder = await sinks.holder()
    await sinks.world.leases.queue()
    by_hand = await sinks.world.leases.held(wire={"outputs": [output(holder)]})
    uri = f"{SCRATCH}/buffers/{output(holder)['dataset_uuid']}/{by_hand.task_id}/1/batch.jsonl"
    sinks.write(uri, b'{"dedupe_key": "k"}')
    answer = await by_hand.publish(**output(holder), batch_uri=uri, record_count=1)
    assert answer.status_code == 403, answer.text
    await sinks.send()
    await sinks.drain()
    await sinks.nothing_written(holder)


@pytest.mark.parametrize("name", ["batch", "batch.json", "batch.jsonl.gz", "batch.csv", "x.jsonl/y"])
async def test_other_kinds_of_files_are_not_taken(sinks: SinkWorld, name: str) -> None:
    holder = await sinks.holder()
    answer = await sinks.say(holder, f"{folder_of(holder)}/{name}")
    assert (answer.status_code, answer.json()["field"]) == (400, "batch_uri")
    assert await sinks.state("select * from windlass.publish") == []


async def test_a_buffered_dataset_has_no_location(sinks: SinkWorld) -> None:
    holder = await sinks.holder()
    answer = await holder.complete(outputs=[{**output(holder), "cursor": 1, "location": f"{folder_of(holder)}/x"}])
    assert (answer.status_code, answer.json()["error"], answer.json()["field"]) == (
        400, "output_invalid", "outputs[0].location",
    )  # fmt: skip
    assert (await holder.task()).state == "running"
    assert await sinks.events() == []


async def test_the_tenant_in_a_row_is_not_believed(sinks: SinkWorld) -> None:
    holder = await sinks.holder()
    lies = {"org_id": ORG, "producer_task_id": ORG, "producer_attempt": 7, "seq": 99, "ingested_at": "1999-01-01"}
    await sinks.publish(holder, [{"dedupe_key": "k", **lies}, {"dedupe_key": "k", "org_id": None}])
    await sinks.drain()
    [row] = await sinks.rows(holder)
    assert (row["org_id"], row["producer_task_id"], row["producer_attempt"], row["seq"]) == (
        "default", holder.task_id, 1, 1,
    )  # fmt: skip
    assert row["ingested_at"].year > 2000


# --------------------------------------------------------------------------------------------- wrong content

POISON = [
    (b'{"dedupe_key": "a"}\n{"dedupe_key": "b", "o": 1}', 2, "line 2, column o: is not a column of the dataset"),
    (b'{"dedupe_key": "a"}\n{"dedupe_key": 7}', 2, "line 2, column dedupe_key: Expected `str`, got `int`"),
    (b'{"dedupe_key": "a"}\n{"severity": "b"}', 2, "line 2, column dedupe_key: is missing"),
    (b'{"dedupe_key": "a"}\n{"dedupe_key": null}', 2, "line 2, column dedupe_key: Expected `str`, got `null`"),
    (b'{"dedupe_key": "a"}\n{"dedupe_key": "\\u0000"}', 2,
     "line 2, column dedupe_key: must not contain the character NUL"),
    (b'{"dedupe_key": "a"}', 2, "has 1 records, and 2 were published"),
    (b"not json", 1, "line 1: JSON is malformed: invalid character (byte 4)"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "count", "reason"), POISON)
async def test_a_wrong_batch_is_a_dead_letter_at_once_and_none_of_it_is_written(
    sinks: SinkWorld, content: bytes, count: int, reason: str
) -> None:
    holder = await sinks.holder()
    publish_id = await sinks.publish(holder, content, count=count)
    await sinks.drain()
    await sinks.nothing_written(holder)
    [dead] = await sinks.dead_letters()
    assert (dead["reason"], dead["deliveries"], dead["message_id"]) == (reason, 1, str(publish_id))
    assert dead["queue"] == f"buffer.{output(holder)['dataset_uuid']}"
    assert msgspec.json.decode(dead["body"])["publish_id"] == str(publish_id)
    [publish] = await sinks.state("select * from windlass.publish")
    assert (publish["problem"], publish["sunk_at"]) == (reason, None)
    assert await sinks.state("select * from windlass.message where queue like 'buffer.%'") == []
    await sinks.world.leases.clock.advance(3600)
    assert await sinks.sink.reconcile_tick() == 0  # a dead letter is not a lost message


async def test_a_wrong_batch_holds_up_no_other(sinks: SinkWorld) -> None:
    holder = await sinks.holder()
    await sinks.publish(holder, rows_of(1), name="a.jsonl")
    await sinks.publish(holder, b"{}", name="b.jsonl", count=1)
    await sinks.publish(holder, rows_of(3), name="c.jsonl")
    await sinks.drain()
    assert [row["dedupe_key"] for row in await sinks.rows(holder)] == ["k1", "k2", "k3", "k4"]
    assert await sinks.events() == [1, 2]
    assert len(await sinks.dead_letters()) == 1


async def test_a_value_that_only_the_database_refuses_harms_its_own_batch_alone(sinks: SinkWorld) -> None:
    numbers = ", ".join(f"{{name: n{place}, type: numeric}}" for place in range(3))
    file = ALERTS.replace("{name: payload,", f"{numbers}, {{name: payload,").replace(
        "unique: [org_id, dedupe_key]", "unique: [org_id, dedupe_key]\n      indexes: [[n0, n1, n2]]"
    )
    holder = await sinks.holder(file)
    await sinks.publish(holder, rows_of(1), name="a.jsonl")
    randomness = random.Random(1)
    long = {
        f"n{place}": "1"
        + "".join(randomness.choices("0123456789", k=999))
        + "."
        + "".join(randomness.choices("123456789", k=1000))
        for place in range(3)
    }
    await sinks.publish(holder, [{"dedupe_key": "long", **long}], name="b.jsonl")
    await sinks.publish(holder, rows_of(3), name="c.jsonl")
    await sinks.drain()
    assert [row["dedupe_key"] for row in await sinks.rows(holder)] == ["k1", "k2", "k3", "k4"]
    [dead] = await sinks.dead_letters()
    assert "index row" in dead["reason"]
    assert await sinks.events() == [1, 2]


async def test_a_dead_letter_that_is_replayed_after_the_object_was_repaired_is_written_once(sinks: SinkWorld) -> None:
    holder = await sinks.holder()
    publish_id = await sinks.publish(holder, b'{"dedupe_key": 1}', count=1)
    await sinks.drain()
    wakeups = sinks.world.engine.service(Wakeups)
    [dead] = await wakeups.dead_messages()
    await wakeups.replay(dead)
    await sinks.drain()  # nothing was repaired
    [dead] = await wakeups.dead_messages()
    assert "column dedupe_key" in dead.reason
    sinks.write(f"{folder_of(holder)}/batch.jsonl", b'{"dedupe_key": "k1"}')
    await wakeups.replay(dead)
    [publish] = await sinks.state("select * from windlass.publish where id = $1", publish_id)
    assert publish["problem"] is None
    await sinks.drain()
    assert [row["dedupe_key"] for row in await sinks.rows(holder)] == ["k1"]
    assert await sinks.events() == [1]
    assert await wakeups.dead_messages() == []
    with pytest.raises(InvalidState):  # the same once more: its batch is written
        await wakeups.replay(dead)


async def test_a_dead_letter_names_a_batch_of_its_own_namespace_and_queue(sinks: SinkWorld) -> None:
    holder = await sinks.holder()
    publish_id = await sinks.publish(holder, b"{}", count=1)
    await sinks.drain()
    wakeups = sinks.world.engine.service(Wakeups)
    queue = f"buffer.{output(holder)['dataset_uuid']}"
    for namespace, name, message_id in (
        ("other", queue, str(publish_id)), ("default", "buffer.x", str(publish_id)), ("default", queue, "no-uuid"),
        ("default", queue, str(uuid4())),
    ):  # fmt: skip
        await wakeups.dead_letter(
            namespace, name, message_id=message_id, task_id=None, body=b"forged", deliveries=1, reason="forged"
        )
        [dead] = [one for one in await wakeups.dead_messages(namespace) if one.reason == "forged"]
        with pytest.raises(InvalidState):
            await wakeups.replay(dead)
        await wakeups.discard(dead)


async def test_a_missing_object_is_tried_ten_times_and_then_a_dead_letter(sinks: SinkWorld) -> None:
    holder = await sinks.holder()
    uri = f"{folder_of(holder)}/missing.jsonl"
    ok(await sinks.say(holder, uri, 2))
    await sinks.send()
    for delivery in range(1, DELIVERIES_MAX + 1):
        assert await sinks.dead_letters() == [], delivery
        assert await sinks.sink.tick() == 1
        assert await sinks.sink.tick() == 0  # it waits
        await sinks.deliver_again()
    [dead] = await sinks.dead_letters()
    assert dead["deliveries"] == DELIVERIES_MAX
    assert dead["reason"].startswith("after 10 deliveries: ")
    await sinks.nothing_written(holder)


async def test_an_object_that_comes_late_is_written(sinks: SinkWorld) -> None:
    holder = await sinks.holder()
    uri = f"{folder_of(holder)}/late.jsonl"
    ok(await sinks.say(holder, uri, 1))
    await sinks.send()
    assert await sinks.sink.tick() == 1
    sinks.write(uri, b'{"dedupe_key": "k1"}')
    await sinks.world.leases.clock.advance(1)
    assert await sinks.sink.tick() == 1
    assert len(await sinks.rows(holder)) == 1


async def test_an_object_that_is_too_large_is_not_read(sinks: SinkWorld) -> None:
    holder = await sinks.holder()
    await sinks.publish(holder, [{"dedupe_key": "x" * 2000}])
    await sinks.drain(Sink(sinks.world.engine, Scratch(SCRATCH, open_blobs(str(sinks.folder)), batch_max_bytes=1000)))
    [dead] = await sinks.dead_letters()
    assert "the limit is 1000" in dead["reason"]
    await sinks.nothing_written(holder)


# --------------------------------------------------------------------------------------------- Parquet and Arrow


def parquet(table: pa.Table, **options: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(table, file, **options)
    return file.getvalue()


def arrow(table: pa.Table, *, stream: bool = False) -> bytes:
    file = io.BytesIO()
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(file, table.schema) as writer:
        writer.write_table(table)
    return file.getvalue()


ROWS = pa.table(
    {
        "dedupe_key": ["a", "b", "c"], "severity": pa.array(["high", None, "high"]).dictionary_encode(),
        "payload": [{"n": 1}, None, {"n": 3}], "org_id": [ORG] * 3, "seq": [7, 7, 7],
    }
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content"),
    [("b.parquet", parquet(ROWS)), ("b.arrow", arrow(ROWS)), ("b.arrow", arrow(ROWS, stream=True)),
     ("b.parquet", parquet(ROWS, compression="zstd", row_group_size=1))],
)  # fmt: skip
async def test_parquet_and_arrow_batches_are_written(sinks: SinkWorld, name: str, content: bytes) -> None:
    holder = await sinks.holder()
    await sinks.publish(holder, content, name=name, count=3)
    await sinks.drain()
    found = await sinks.rows(holder)
    assert [(row["dedupe_key"], row["severity"], row["payload"]) for row in found] == [
        ("a", "high", '{"n": 1}'), ("b", None, None), ("c", "high", '{"n": 3}'),
    ]  # fmt: skip
    assert {(row["org_id"], row["seq"]) for row in found} == {("default", 1)}


BOMB = pa.table({"dedupe_key": pa.array(["x" * 20_000_000] * 200).dictionary_encode()})


@pytest.mark.parametrize(
    ("content", "count", "reason"),
    [
        (parquet(pa.table({"dedupe_key": [1, 2]})), 2, "column dedupe_key: Expected text, got int64"),
        (parquet(pa.table({"dedupe_key": ["a", None]})), 2, "line 2, column dedupe_key: Expected `str`, got `null`"),
        (parquet(pa.table({"dedupe_key": ["a"], "other": [1]})), 1, "column other: is not a column of the dataset"),
        (parquet(pa.table({"dedupe_key": ["a"], "payload": ['1, "severity": 2']})), 1, "column payload: is not JSON"),
        (parquet(ROWS), 2, "has more than 2 records"),
        (parquet(ROWS), 4, "has 3 records, and 4 were published"),
        (parquet(ROWS)[:-30], 3, "cannot be decoded"),
        (b"PAR1" + b"\x00" * 1000 + b"PAR1", 3, "cannot be decoded"),
        (b"", 1, "cannot be decoded"),
        (parquet(BOMB), 200, "cannot be decoded"),
    ],
)  # fmt: skip
async def test_a_wrong_parquet_file_is_a_dead_letter_and_no_sink_dies(
    sinks: SinkWorld, content: bytes, count: int, reason: str
) -> None:
    holder = await sinks.holder()
    await sinks.publish(holder, content, name="b.parquet", count=count)
    await sinks.drain()
    [dead] = await sinks.dead_letters()
    assert reason in dead["reason"]
    await sinks.nothing_written(holder)


async def test_a_file_that_decodes_to_much_more_than_its_size_is_not_read_to_the_end(sinks: SinkWorld) -> None:
    holder = await sinks.holder()
    table = pa.table({"dedupe_key": pa.array(["x" * 1000] * 1000).dictionary_encode()})
    await sinks.publish(holder, parquet(table), name="b.parquet", count=1000)
    await sinks.drain(Sink(sinks.world.engine, Scratch(SCRATCH, open_blobs(str(sinks.folder)), batch_max_bytes=50_000)))
    [dead] = await sinks.dead_letters()
    assert "decodes to more than 200000 bytes" in dead["reason"]
    await sinks.nothing_written(holder)


async def test_a_file_that_kills_the_process_that_decodes_it_kills_no_sink(
    sinks: SinkWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = sinks.folder / "dies.py"
    program.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    monkeypatch.setattr(columnar, "PROGRAM", program)
    holder = await sinks.holder()
    await sinks.publish(holder, parquet(ROWS), name="b.parquet", count=3)
    await sinks.drain()
    [dead] = await sinks.dead_letters()
    assert "the file is damaged" in dead["reason"]


async def test_a_sink_without_pyarrow_leaves_the_batch_to_others(
    sinks: SinkWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = sinks.folder / "lacks.py"
    program.write_text(columnar.PROGRAM.read_text().replace("import pyarrow as pa", "import pyarrow_is_missing as pa"))
    monkeypatch.setattr(columnar, "PROGRAM", program)
    holder = await sinks.holder()
    await sinks.publish(holder, parquet(ROWS), name="b.parquet", count=3)
    assert await sinks.sink.tick() == 1
    assert await sinks.dead_letters() == []
    monkeypatch.undo()
    await sinks.deliver_again()
    await sinks.drain()
    assert len(await sinks.rows(holder)) == 3


async def test_the_process_that_decodes_has_no_credentials(monkeypatch: pytest.MonkeyPatch, sinks: SinkWorld) -> None:
    program = sinks.folder / "tells.py"
    program.write_text(
        "import os, sys\nsys.stderr.write('{\"message\": \"%s\"}' % ' '.join(os.environ))\nsys.exit(3)\n"
    )
    monkeypatch.setattr(columnar, "PROGRAM", program)
    monkeypatch.setenv("DATABASE_URL", "postgresql://secret")
    holder = await sinks.holder()
    await sinks.publish(holder, parquet(ROWS), name="b.parquet", count=3)
    await sinks.drain()
    [dead] = await sinks.dead_letters()
    assert set(dead["reason"].split()) <= {"ARROW_DEFAULT_MEMORY_POOL", "OMP_NUM_THREADS", "PATH", "LC_CTYPE"}


async def test_a_batch_of_a_purged_version_is_a_dead_letter(sinks: SinkWorld) -> None:
    holder = await sinks.holder()
    version = UUID(output(holder)["dataset_version"])
    await sinks.publish(holder, rows_of(1))
    await sinks.state(
        "update windlass.dataset_version set purged_at = windlass.now() where id = $1 returning id", version
    )
    await sinks.drain()
    [dead] = await sinks.dead_letters()
    assert "purged" in dead["reason"]
