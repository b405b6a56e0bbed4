"""The data of a task for its operator: inputs to read, outputs to write.

Files of an output go to the folder of this attempt, then their manifest, then the marker: until the task is complete,
nobody sees them. Records of a buffered output go to the scratch folder of the attempt and are published.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec

from windlass.contracts.lease.worker.folder import open_folder
from windlass.datasets.rules.batch import BatchInvalid, BatchReader
from windlass.datasets.rules.manifest import MANIFEST, MARKER, SUFFIX, Manifest, ManifestFile, digest, path_problem
from windlass.datasets.rules.predicate import Where
from windlass.datasets.rules.schema import DatasetSchema
from windlass.errors import Invalid

Row = Mapping[str, Any]
Send = Callable[[dict[str, Any]], object]
ROWS_PER_BATCH = 10_000
BATCH_BYTES = 8 * 1024 * 1024


class Input:
    """An input of a task. `window` says which part of it is to be read."""

    def __init__(self, given: Mapping[str, Any], index: int) -> None:
        self._given = given
        self.index: int = given.get("index", index)
        self.dataset: str | None = given.get("dataset")
        self.where: str | None = given.get("where")
        self.partition_key: str | None = given.get("partition_key")

    @property
    def window(self) -> tuple[int | None, int | None]:
        """First and last number of a partition, both inclusive; or the cursors of an update, the first exclusive."""
        if self._given.get("mode") == "partition":
            return self._given.get("start"), self._given.get("end")
        return self._given.get("cursor_from"), self._given.get("cursor_to")

    def arrow(self) -> Any:
        """The rows that match `where`, as a pyarrow Table. Needs pyarrow."""
        pa, pq = _pyarrow()
        tables = [pq.read_table(pa.BufferReader(content)) for content in self._contents()]
        if not tables:
            return pa.table({})
        table = pa.concat_tables(tables, promote_options="default")
        return table if self.where is None else table.filter(Where.parse(self.where).arrow())

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows that match `where`, as dictionaries. Needs pyarrow."""
        for batch in self.arrow().to_batches():
            yield from batch.to_pylist()

    def _contents(self) -> Iterator[bytes]:
        """The files of the input. A manifest may have been replaced since its commit, so its paths are not believed."""
        for location in self._locations():
            folder = open_folder(location)
            manifest = msgspec.json.decode(folder.read(MANIFEST), type=Manifest)
            for file in manifest.files:
                if (problem := path_problem(file.path)) is not None:
                    raise Invalid(f"{location}{MANIFEST}: {problem}")
                content = folder.read(file.path)
                if len(content) != file.bytes:
                    raise Invalid(f"{location}{file.path} has {len(content)} bytes, not {file.bytes}: it has changed")
                yield content

    def _locations(self) -> list[str]:
        """The folders of the input: one of a partition, many of a window or a snapshot."""
        given = self._given
        if given.get("locations_truncated"):
            raise Invalid(f"{self._name} has more than {len(given['locations'])} folders: read it by partitions")
        if given.get("locations") is not None:
            return list(given["locations"])
        if given.get("location") is None:
            raise Invalid(f"{self._name} has no files to read: its storage is {given.get('storage')}")
        return [given["location"]]

    @property
    def _name(self) -> str:
        return self.dataset or f"input {self.index}"


class Output:
    """An output of a task."""

    def __init__(
        self, given: Mapping[str, Any], index: int, task: Mapping[str, Any], send: Send, default: Input | None
    ) -> None:
        self._given, self._task, self._send, self._default = given, task, send, default
        self.index: int = given.get("output_index", index)
        self.dataset: str | None = given.get("dataset")
        self._batches = count()
        self.report: dict[str, Any] | None = None  # what the completion says of it

    # ------------------------------------------------------------------------------------------- partitions

    def write(
        self,
        rows: Any = (),
        *,
        partition_key: str | None = None,
        start: int | None = None,
        end: int | None = None,
        cursor: int | None = None,
    ) -> None:
        """Write the whole output: rows as dictionaries, a pyarrow Table, or the path of a Parquet file. Without a
        partition it is that of the input. The output is committed when the task completes. Needs pyarrow."""
        if self.report is not None:
            raise Invalid(f"output {self.index} is written already: write it once, with all of its rows")
        if self._given.get("write_mode") == "buffered":
            raise Invalid(f"output {self.index} is buffered: publish its rows")
        if partition_key is None and cursor is None and self._default is not None:
            partition_key, (start, end) = self._default.partition_key, self._default.window
        if partition_key is None and cursor is None:
            raise Invalid("needs a partition_key or a cursor", field=f"output({self.index})")
        place = {"partition_key": partition_key, "start": start, "end": end} if cursor is None else {"cursor": cursor}
        report = {**self._ids, "output_index": self.index, **place}
        if self._given.get("storage") == "s3":
            span = None if start is None or end is None else (start, end)
            file_rows = self._write_files(rows, partition_key, span)
            report |= {"location": self._given["staging_uri"], "row_count": file_rows}
        self.report = report

    def _write_files(self, rows: Any, partition_key: str | None, span: tuple[int, int] | None) -> int:
        """Write file, manifest and marker, in this order. Returns the number of rows. The name of the file shows the
        range of its partition, for other tools."""
        folder = open_folder(self._given["staging_uri"])
        content, number = _parquet(rows)
        files = []
        if number:
            name = self.dataset or "part"
            path = f"{name}{SUFFIX}" if span is None else f"{name}_{span[0]}_{span[1]}{SUFFIX}"
            folder.write(path, content)
            files.append(ManifestFile(path, len(content), number))
        ids = {name: UUID(value) for name, value in self._ids.items()}
        manifest = msgspec.json.encode(
            Manifest(1, **ids, task_id=UUID(self._task["task_id"]), attempt=self._task["attempt"], rows=number,
                     files=files, partition_key=partition_key)
        )  # fmt: skip
        folder.write(MANIFEST, manifest)
        folder.write(MARKER, digest(manifest).encode())
        return number

    # ------------------------------------------------------------------------------------------- records

    def publish(self, rows: Iterable[Row]) -> int:
        """Publish records of a buffered output. They are in its table soon after, each once, also if this task is
        cancelled later. Returns their number. Raises Invalid for a record that does not fit the schema."""
        if self._given.get("write_mode") != "buffered":
            raise Invalid(f"output {self.index} is not buffered: write it")
        folder = open_folder(self._task["scratch_uri"])
        total = 0
        for lines in _batches(rows):
            path, content = f"output-{self.index}-{next(self._batches):05}.jsonl", b"".join(lines)
            self._check(content, len(lines))
            folder.write(path, content)
            uri = f"{self._task['scratch_uri'].rstrip('/')}/{path}"
            self._send({"say": "publish", **self._ids, "batch_uri": uri, "record_count": len(lines)})
            total += len(lines)
        return total

    def _check(self, content: bytes, number: int) -> None:
        """Refuse a batch here, where its task can fail, that the sink would refuse later."""
        if self._reader is not None:
            try:
                self._reader.read(content, number)
            except BatchInvalid as error:
                raise Invalid(f"{self.dataset or f'output {self.index}'} does not take this batch: {error}") from None

    @cached_property
    def _reader(self) -> BatchReader | None:
        schema = self._given.get("schema")
        return None if schema is None else BatchReader(msgspec.convert(schema, DatasetSchema))

    @property
    def _ids(self) -> dict[str, str]:
        return {name: self._given[name] for name in ("dataset_uuid", "dataset_version")}


class TaskData:
    """Inputs and outputs of one attempt."""

    def __init__(self, task: Mapping[str, Any], send: Send) -> None:
        self._task, self._send = task, send

    @cached_property
    def inputs(self) -> Sequence[Input]:
        return [Input(given, index) for index, given in enumerate(_objects(self._task.get("inputs")))]

    @cached_property
    def outputs(self) -> Sequence[Output]:
        partition = next((each for each in self.inputs if each.partition_key is not None), None)
        outputs = enumerate(_objects(self._task.get("outputs")))
        return [Output(given, index, self._task, self._send, partition) for index, given in outputs]

    def output(self, index: int) -> Output:
        found = next((each for each in self.outputs if each.index == index), None)
        if found is None:
            raise Invalid(f"the task has no output {index}")
        return found

    @property
    def reports(self) -> list[dict[str, Any]]:
        """What the completion says of the outputs that were written."""
        return [output.report for output in self.outputs if output.report is not None]


def _objects(values: Any) -> list[Mapping[str, Any]]:
    """The values as objects. A task that belongs to no DAG may carry inputs and outputs of any shape."""
    return [value if isinstance(value, Mapping) else {} for value in values or ()]


def _batches(rows: Iterable[Row]) -> Iterator[list[bytes]]:
    """Rows as lines of JSON, in batches of bounded size."""
    lines: list[bytes] = []
    size = 0
    for row in rows:
        line = json.dumps(row, allow_nan=False, default=str, separators=(",", ":")).encode() + b"\n"
        if lines and (len(lines) == ROWS_PER_BATCH or size + len(line) > BATCH_BYTES):
            yield lines
            lines, size = [], 0
        lines.append(line)
        size += len(line)
    if lines:
        yield lines


def _parquet(rows: Any) -> tuple[bytes, int]:
    """The content of a Parquet file with these rows, and their number."""
    pa, pq = _pyarrow()
    if isinstance(rows, (str, Path)):
        content = Path(rows).read_bytes()
        return content, pq.ParquetFile(pa.BufferReader(content)).metadata.num_rows
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist([dict(row) for row in rows])
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return sink.getvalue().to_pybytes(), table.num_rows


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise Invalid("files need pyarrow: pip install 'windlass-engine[arrow]'") from None
    return pyarrow, pyarrow.parquet
