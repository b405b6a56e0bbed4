"""The model of a DAG file: identities, queues of runtimes, and what a change means by default."""

from __future__ import annotations

from uuid import UUID

import msgspec
import pytest

from windlass.datasets.rules.dag import (
    BUILT_IN,
    QUEUES,
    QUEUES_MADE,
    Activation,
    Dag,
    Input,
    Job,
    OnChange,
    Output,
    Publication,
    Runtime,
    Storage,
    WriteMode,
    buffered_uuid,
    output_uuid,
    version_uuid,
)  # fmt: skip
from windlass.datasets.rules.schema import RESERVED, SYSTEM_COLUMNS, Column, ColumnType, DatasetSchema


def job(name: str = "a", **more: object) -> Job:
    fields = {"activation": Activation.SOURCE, "runtime": Runtime.ECS_PLATFORM, "operator": "op", "outputs": 1}
    return Job(name=name, **{**fields, **more})  # type: ignore[arg-type]


def published(name: str, *writers: tuple[str, int], buffered: bool = False) -> Publication:
    outputs = tuple(Output(*writer) for writer in writers)
    mode = WriteMode.BUFFERED if buffered else WriteMode.DIRECT
    return Publication(name=name, writers=outputs, storage=Storage.POSTGRES, write_mode=mode)


def test_the_ids_of_datasets_never_change() -> None:
    """They are in databases: another value here loses the data of every installation."""
    first = output_uuid("default", "chain", Output("follow", 0))

    assert first == UUID("510c0aa6-3cf4-56fd-b8f6-bf4183b5206b")
    assert buffered_uuid("default", "chain", "alert_events") == UUID("ef2b1507-d7c4-527b-9628-a932d15dec75")
    assert version_uuid(first, "00" * 32) == UUID("7951d1e7-890a-5d43-8b86-6da7c0c2dcd4")


def test_the_id_of_a_dataset_depends_on_every_part_of_its_place() -> None:
    places = [("n", "d", Output("j", 0)), ("m", "d", Output("j", 0)), ("n", "e", Output("j", 0))]
    places += [("n", "d", Output("k", 0)), ("n", "d", Output("j", 1)), ("n", "d", Output("publish", 0))]
    ids = {output_uuid(*place) for place in places} | {buffered_uuid("n", "d", "j")}

    assert len(ids) == 7


@pytest.mark.parametrize(
    ("runtime", "queue", "name", "trusted"),
    [
        (Runtime.ECS_PLATFORM, None, "platform", True),
        (Runtime.ECS_UDF, None, "udf", False),
        (Runtime.LAMBDA, None, "lambda", True),
        (Runtime.DISPATCHER, None, None, True),
        (Runtime.ECS_UDF, "big", "big", False),
    ],
)
def test_a_runtime_has_a_queue_and_a_trust(runtime: Runtime, queue: str, name: str, trusted: bool) -> None:
    assert (job(runtime=runtime, queue=queue).queue_name, job(runtime=runtime).trusted) == (name, trusted)


def test_every_runtime_is_mapped() -> None:
    assert set(QUEUES) == set(Runtime)
    assert set(QUEUES.values()) >= QUEUES_MADE
    assert sum(kind is None for kind in BUILT_IN.values()) == 2


@pytest.mark.parametrize(
    ("outputs", "publish", "declared", "means"),
    [
        (0, (), None, OnChange.FORWARD),
        (1, (), None, OnChange.REBUILD),
        (1, (published("x", ("a", 0)),), None, OnChange.REBUILD),
        (1, (published("x", ("a", 0), buffered=True),), None, OnChange.FORWARD),
        (2, (published("x", ("a", 0), buffered=True),), None, OnChange.REBUILD),
        (2, (published("x", ("a", 0), ("a", 1), buffered=True),), None, OnChange.FORWARD),
        (1, (published("x", ("b", 0), buffered=True),), None, OnChange.REBUILD),
        (0, (), OnChange.REBUILD, OnChange.REBUILD),
        (1, (), OnChange.FORWARD, OnChange.FORWARD),
    ],
)  # fmt: skip
def test_a_change_goes_forward_by_default_where_nothing_but_buffers_is_written(
    outputs: int, publish: tuple[Publication, ...], declared: OnChange | None, means: OnChange
) -> None:
    only = job(outputs=outputs, on_change=declared)

    assert Dag("d", (only,), publish).on_change(only) is means


def test_every_output_is_a_dataset_and_writers_of_a_buffer_share_one() -> None:
    publish = (published("log", ("a", 1), ("b", 0), buffered=True), published("hot", ("a", 0)))
    dag = Dag("d", (job("a", outputs=2), job("b", outputs=2)), publish)
    made = {dataset.writers: (dataset.dataset_uuid, dataset.name, dataset.storage) for dataset in dag.datasets("n")}

    assert made == {
        (Output("a", 0),): (output_uuid("n", "d", Output("a", 0)), "hot", Storage.POSTGRES),
        (Output("b", 1),): (output_uuid("n", "d", Output("b", 1)), None, Storage.NONE),
        (Output("a", 1), Output("b", 0)): (buffered_uuid("n", "d", "log"), "log", Storage.POSTGRES),
    }
    assert dag.dataset_uuid("n", Output("a", 1)) == buffered_uuid("n", "d", "log")
    assert dag.dataset_uuid("n", Output("a", 0)) == output_uuid("n", "d", Output("a", 0))


@pytest.mark.parametrize(
    ("reads", "writers"),
    [
        (Input(job="a"), (Output("a", 0),)),
        (Input(job="a", output=1), (Output("a", 1), Output("b", 0))),
        (Input(dataset="log"), (Output("a", 1), Output("b", 0))),
        (Input(dataset="hot"), (Output("a", 0),)),
        (Input(dataset="of_another_dag"), ()),
    ],
)
def test_an_input_reads_all_writers_of_a_buffer(reads: Input, writers: tuple[Output, ...]) -> None:
    publish = (published("log", ("a", 1), ("b", 0), buffered=True), published("hot", ("a", 0)))

    assert Dag("d", (job("a", outputs=2), job("b")), publish).writers(reads) == writers


def test_a_dag_survives_json() -> None:
    schema = DatasetSchema((Column("id", ColumnType.UUID, nullable=False),), ("id",), (("id",),))
    log = msgspec.structs.replace(published("log", ("a", 0), buffered=True), schema=schema, max_age_s=60)
    dag = Dag("d", (job(config={"deep": [1, 2.5, None, {"x": True}]}, inputs=(Input(dataset="x"),)),), (log,))

    assert msgspec.json.decode(msgspec.json.encode(dag), type=Dag) == dag


def test_a_unique_key_begins_with_the_organisation() -> None:
    columns = (Column("org_id", ColumnType.UUID), Column("key", ColumnType.TEXT))

    assert DatasetSchema(columns, ("key",)).unique_columns == ("org_id", "key")
    assert DatasetSchema(columns, ("key", "org_id")).unique_columns == ("key", "org_id")
    assert DatasetSchema(columns).unique_columns == ()
    assert [column.name for column in DatasetSchema(columns).writer_columns] == ["key"]


def test_a_postgresql_dataset_has_the_system_columns_too() -> None:
    schema = DatasetSchema((Column("key", ColumnType.TEXT),))

    assert schema.names(postgres=False) == {"key"}
    assert schema.names(postgres=True) == {"key", *SYSTEM_COLUMNS}
    assert {"producer_task_id", "producer_attempt", "ingested_at", "seq"} == RESERVED


def test_a_dataset_of_a_job_in_the_server_has_events_only() -> None:
    publication = Publication(name="ticks", writers=(Output("tick", 0),), storage=Storage.S3)
    made = {
        runtime: Dag("d", (job("tick", runtime=runtime),), (publication,)).datasets("n")[0].storage
        for runtime in (Runtime.DISPATCHER, Runtime.ECS_PLATFORM)
    }

    assert made == {Runtime.DISPATCHER: Storage.NONE, Runtime.ECS_PLATFORM: Storage.S3}
