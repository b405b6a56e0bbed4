"""What an operator reads and writes: files with manifest and marker, and records of buffered outputs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.kit.s3 import BUCKET, S3Server, open_s3

from windlass.contracts.lease.worker.data import ROWS_PER_BATCH, TaskData
from windlass.contracts.lease.worker.folder import open_folder
from windlass.contracts.lease.worker.operator import Functions, Operator
from windlass.datasets.rules.manifest import Expected, check_sizes, read_manifest
from windlass.errors import Invalid

ROWS = [{"year": 1871, "flow": 1120}, {"year": 1872, "flow": 1160}]


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with open_s3() as server:
        yield server


@pytest.fixture(params=["file", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "file":
        return f"file://{tmp_path}/a folder".replace(" ", "%20")
    server: S3Server = request.getfixturevalue("s3")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{tmp_path.name}"


def task_of(root: str, **output: Any) -> dict[str, Any]:
    return {
        "task_id": str(uuid4()), "attempt": 2, "config": {}, "scratch_uri": f"{root}/tasks/1/2/",
        "inputs": [
            {"index": 0, "dataset": "decades", "mode": "partition", "partition_key": "1871-1880", "start": 1871,
             "end": 1880, "storage": "none", "location": None, "where": None},
        ],
        "outputs": [
            {"output_index": 0, "dataset": "readings", "dataset_uuid": str(uuid4()), "dataset_version": str(uuid4()),
             "storage": "s3", "write_mode": None, "staging_uri": f"{root}/staging/0/", **output},
        ],
    }  # fmt: skip


def data_of(task: dict[str, Any]) -> tuple[TaskData, list[dict[str, Any]]]:
    messages: list[dict[str, Any]] = []
    return TaskData(task, messages.append), messages


def reader(location: str, **given: Any) -> Any:
    base = {"index": 0, "dataset": "readings", "mode": "partition", "location": location, "where": None}
    return data_of({"inputs": [{**base, **given}]})[0].inputs[0]


def expected_of(task: dict[str, Any], row_count: int) -> Expected:
    output = task["outputs"][0]
    ids = UUID(output["dataset_uuid"]), UUID(output["dataset_version"]), UUID(task["task_id"])
    return Expected(*ids, task["attempt"], "1871-1880", row_count)


def test_an_output_is_written_with_a_manifest_that_the_server_accepts(root: str) -> None:
    task = task_of(root)
    data, _ = data_of(task)

    data.output(0).write(ROWS)

    folder = open_folder(task["outputs"][0]["staging_uri"])
    found = read_manifest(folder.read("_manifest.json"), folder.read("_SUCCESS"), expected_of(task, 2))
    check_sizes(found, {"readings_1871_1880.parquet": len(folder.read("readings_1871_1880.parquet"))})
    ids = {name: task["outputs"][0][name] for name in ("dataset_uuid", "dataset_version")}
    assert data.reports == [
        {**ids, "output_index": 0, "partition_key": "1871-1880", "start": 1871, "end": 1880,
         "location": task["outputs"][0]["staging_uri"], "row_count": 2}
    ]  # fmt: skip


@pytest.mark.parametrize("form", ["rows", "table", "path"])
def test_rows_tables_and_files_are_read_as_they_were_written(root: str, form: str, tmp_path: Path) -> None:
    task = task_of(root)
    given: Any = ROWS if form == "rows" else pa.Table.from_pylist(ROWS)
    if form == "path":
        pq.write_table(given, tmp_path / "any.parquet")
        given = tmp_path / "any.parquet"

    data_of(task)[0].output(0).write(given)

    location = task["outputs"][0]["staging_uri"]
    assert list(reader(location).rows()) == ROWS
    assert list(reader(location, where="flow > 1120").rows()) == ROWS[1:]


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ({}, "readings_1871_1880.parquet"),
        ({"partition_key": "-20--11", "start": -20, "end": -11}, "readings_-20_-11.parquet"),
        ({"partition_key": "2026-01-31"}, "readings.parquet"),
        ({"cursor": 7}, "readings.parquet"),
    ],
)
def test_the_name_of_a_file_shows_the_range_of_its_partition(root: str, place: dict[str, Any], name: str) -> None:
    task = task_of(root)
    data_of(task)[0].output(0).write(ROWS, **place)

    manifest = json.loads(open_folder(task["outputs"][0]["staging_uri"]).read("_manifest.json"))
    assert [file["path"] for file in manifest["files"]] == [name]


def test_an_output_without_rows_has_no_files(root: str) -> None:
    task = task_of(root)
    data_of(task)[0].output(0).write([])

    folder = open_folder(task["outputs"][0]["staging_uri"])
    found = read_manifest(folder.read("_manifest.json"), folder.read("_SUCCESS"), expected_of(task, 0))
    assert found.files == []
    assert list(reader(task["outputs"][0]["staging_uri"]).rows()) == []


def written(root: str, name: str, rows: list[dict[str, Any]]) -> str:
    """A folder with rows, as an attempt leaves it."""
    task = task_of(root, staging_uri=f"{root}/{name}/")
    data_of(task)[0].output(0).write(rows)
    return f"{root}/{name}/"


@pytest.mark.parametrize("mode", ["cursor", "snapshot"])
def test_a_window_or_a_snapshot_is_read_from_all_of_its_folders(root: str, mode: str) -> None:
    folders = [written(root, f"f{place}", [row]) for place, row in enumerate(ROWS)]

    def given(**fields: Any) -> Any:
        return data_of({"inputs": [{"index": 0, "mode": mode, "storage": "s3", "where": None, **fields}]})[0].inputs[0]

    assert list(given(locations=folders).rows()) == ROWS
    assert list(given(locations=folders, where="flow > 1120").rows()) == ROWS[1:]
    assert list(given(locations=[]).rows()) == []
    with pytest.raises(Invalid, match="more than 2 folders"):
        list(given(locations=folders, locations_truncated=True).rows())


@pytest.mark.parametrize(
    "path", ["../f1/readings_1871_1880.parquet", "/etc/secret.parquet", "a/../../f1/x.parquet", "x\0.parquet"]
)
def test_a_manifest_that_was_replaced_leads_to_no_file_outside_of_its_folder(root: str, path: str) -> None:
    own, _ = written(root, "f0", ROWS), written(root, "f1", ROWS)
    folder = open_folder(own)
    manifest = json.loads(folder.read("_manifest.json"))
    manifest["files"][0]["path"] = path
    folder.write("_manifest.json", json.dumps(manifest).encode())

    with pytest.raises(Invalid, match=r"must be parts of"):
        list(reader(own).rows())


def test_a_file_that_was_replaced_by_one_of_another_size_is_not_read(root: str) -> None:
    own = written(root, "f0", ROWS)
    open_folder(own).write("readings_1871_1880.parquet", b"PAR1")

    with pytest.raises(Invalid, match="it has changed"):
        list(reader(own).rows())


@pytest.mark.parametrize("path", ["../x", "/x", "a/../x", "a//x", "", ".", "a b", "ü", "a\\b"])
def test_a_path_that_leaves_its_folder_is_neither_read_nor_written(root: str, path: str) -> None:
    folder = open_folder(f"{root}/f0/")

    with pytest.raises(Invalid):
        folder.read(path)
    with pytest.raises(Invalid):
        folder.write(path, b"")
    with pytest.raises(Invalid):
        folder.upload(path, Path(__file__))


def test_records_are_published_in_batches(root: str) -> None:
    task = task_of(root, storage="postgres", write_mode="buffered", staging_uri=None)
    data, messages = data_of(task)

    total = data.output(0).publish({"n": n} for n in range(ROWS_PER_BATCH + 5))

    assert total == ROWS_PER_BATCH + 5
    assert [message["record_count"] for message in messages] == [ROWS_PER_BATCH, 5]
    assert all(message["batch_uri"].startswith(task["scratch_uri"]) for message in messages)
    name = messages[1]["batch_uri"].removeprefix(task["scratch_uri"])
    lines = open_folder(task["scratch_uri"]).read(name).splitlines()
    assert [json.loads(line)["n"] for line in lines] == list(range(ROWS_PER_BATCH, ROWS_PER_BATCH + 5))
    assert data.reports == []


def test_a_record_that_does_not_fit_the_schema_fails_the_task_and_is_not_published(root: str) -> None:
    schema = {"columns": [{"name": "n", "type": "integer", "nullable": False}], "unique": ["n"]}
    task = task_of(root, storage="postgres", write_mode="buffered", staging_uri=None, schema=schema)
    data, messages = data_of(task)

    with pytest.raises(Invalid, match="line 2, column extra: is not a column of the dataset"):
        data.output(0).publish([{"n": 1}, {"n": 2, "extra": 3}])
    assert messages == []
    assert data.output(0).publish([{"n": 1}, {"n": 2}]) == 2


def test_an_output_without_storage_is_reported_without_files(tmp_path: Path) -> None:
    data, _ = data_of(task_of(f"file://{tmp_path}", storage="none", staging_uri=None))

    data.output(0).write(cursor=7)

    assert data.reports[0]["cursor"] == 7
    assert "location" not in data.reports[0]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (lambda data: data.output(1), "has no output 1"),
        (lambda data: data.output(0).publish([{}]), "not buffered"),
        (lambda data: (data.output(0).write(ROWS), data.output(0).write(ROWS)), "written already"),
        (lambda data: list(data.inputs[0].rows()), "no files to read"),
    ],
)
def test_misuse_is_an_error(misuse: Any, message: str, tmp_path: Path) -> None:
    data, _ = data_of(task_of(f"file://{tmp_path}"))

    with pytest.raises(Invalid, match=message):
        misuse(data)


def test_a_buffered_output_is_not_written(tmp_path: Path) -> None:
    data, _ = data_of(task_of(f"file://{tmp_path}", write_mode="buffered"))

    with pytest.raises(Invalid, match="publish its rows"):
        data.output(0).write(ROWS)


@pytest.mark.parametrize("uri", ["http://host/a", "file://other/a", "s3:///a", "nothing"])
def test_other_folders_are_refused(uri: str) -> None:
    with pytest.raises(Invalid):
        open_folder(uri)


def summarize(task: dict[str, Any], context: Any) -> int:
    context.output(0).write(ROWS)
    return len(ROWS)


async def test_what_a_function_writes_is_part_of_its_answer(tmp_path: Path) -> None:
    functions = Functions(1)

    class Messages:
        def send(self, message: Any) -> None: ...

    try:
        answer = await functions.run(
            Operator(function=f"{__name__}:summarize"), task_of(f"file://{tmp_path}"), Messages()
        )
    finally:
        functions.close()

    assert answer.result == 2
    assert [output["row_count"] for output in answer.outputs] == [2]
