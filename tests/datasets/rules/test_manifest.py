"""Manifests: each check refuses with its field, and what passes is what was written."""

from __future__ import annotations

import json
import re
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.datasets.rules.manifest import (
    FILES_MAX,
    MANIFEST_MAX_BYTES,
    PATH_MAX,
    Expected,
    check_sizes,
    digest,
    folder_name,
    path_problem,
    read_manifest,
    staging_prefix,
)
from windlass.errors import OutputInvalid

DATASET, VERSION, TASK, OTHER = (UUID(int=number) for number in range(1, 5))
EXPECTED = Expected(DATASET, VERSION, TASK, 2, "0-999", 1500)
DELETE: Any = object()


def body(**changes: Any) -> dict[str, Any]:
    files = [
        {"path": "a.parquet", "bytes": 10, "rows": 1000},
        {"path": "day=1/b.parquet", "bytes": 0, "rows": 500, "sha256": "0" * 64},
    ]
    whole = {
        "version": 1, "dataset_uuid": str(DATASET), "dataset_version": str(VERSION), "task_id": str(TASK), "attempt": 2,
        "partition_key": "0-999", "rows": 1500, "files": files,
    } | changes  # fmt: skip
    return {name: value for name, value in whole.items() if value is not DELETE}


def read(content: Any, expected: Expected = EXPECTED, marker: bytes | None = b"*") -> Any:
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return read_manifest(text, digest(text).encode() if marker == b"*" else marker, expected, "outputs[1]")


def test_a_manifest_is_read() -> None:
    found = read(body())

    assert [file.path for file in found.files] == ["a.parquet", "day=1/b.parquet"]
    assert found.rows == 1500
    check_sizes(found, {"a.parquet": 10, "day=1/b.parquet": 0, "other": 7})


def test_an_empty_partition_has_no_files() -> None:
    empty = Expected(DATASET, VERSION, TASK, 2, None, 0)

    assert read(body(files=[], rows=0, partition_key=DELETE), empty).files == []
    assert read(body(files=[], rows=0, partition_key=None), empty).partition_key is None


def test_the_number_of_rows_may_be_left_out_of_the_report() -> None:
    assert read(body(), Expected(DATASET, VERSION, TASK, 2, "0-999")).rows == 1500


def file(**changes: Any) -> dict[str, Any]:
    return {"path": "a.parquet", "bytes": 10, "rows": 1500} | changes


@pytest.mark.parametrize(
    ("content", "field", "says"),
    [
        (body(version=2), "manifest.version", "must be 1, not 2"),
        (body(dataset_uuid=str(OTHER)), "manifest.dataset_uuid", f"must be {DATASET}, not {OTHER}"),
        (body(dataset_version=str(OTHER)), "manifest.dataset_version", f"must be {VERSION}"),
        (body(task_id=str(OTHER)), "manifest.task_id", f"must be {TASK}"),
        (body(attempt=1), "manifest.attempt", "must be 2, not 1"),
        (body(partition_key="0-99"), "manifest.partition_key", "must be 0-999, not 0-99"),
        (body(partition_key=DELETE), "manifest.partition_key", "must be 0-999, not None"),
        (body(rows=1499), "manifest.rows", "is 1499, but the files have 1500 rows"),
        (body(rows=1000, files=[file(rows=1000)]), "row_count", "is 1500, but the manifest has 1000 rows"),
        (body(rows=-1), "manifest.rows", "Expected `int` >= 0"),
        (body(rows=1500.0), "manifest.rows", ""),
        (body(rows=True), "manifest.rows", "Expected `int`, got `bool`"),
        (body(attempt="2"), "manifest.attempt", "Expected `int`, got `str`"),
        (body(task_id="x"), "manifest.task_id", "Invalid UUID"),
        (body(extra=1), "manifest", "unknown field `extra`"),
        (body(files=DELETE), "manifest", "missing required field `files`"),
        (body(files={}), "manifest.files", "Expected `array`"),
        (body(files=[file(extra=1)]), "manifest.files[0]", "unknown field `extra`"),
        (body(files=[file(bytes=-1)]), "manifest.files[0].bytes", "Expected `int` >= 0"),
        (body(files=[file(), file(path=5)]), "manifest.files[1].path", "Expected `str`"),
        (body(files=[file(rows=2**63)]), "manifest.files[0].rows", ""),
        (body(files=[file(path="../a.parquet")]), "manifest.files[0].path", "none of them . or .."),
        (body(files=[file(path="a.csv")]), "manifest.files[0].path", "must end with .parquet"),
        (body(files=[file(rows=0), file()]), "manifest.files[1].path", "a.parquet is also files[0]"),
        (body(files=[file(sha256="A" * 64)]), "manifest.files[0].sha256", "64 lowercase"),
        (body(files=[file(sha256="a" * 63)]), "manifest.files[0].sha256", "64 lowercase"),
        (b"", "manifest", "truncated"),
        (b"[]", "manifest", "Expected `object`"),
        (b'{"version": 1', "manifest", "truncated"),
        (b"\xff", "manifest", ""),
        (b'{"partition_key": "\xff"}', "manifest", ""),
        (b"[" * 100_000, "manifest", "Expected `object`"),
    ],
)
def test_what_is_wrong_is_refused_with_its_field(content: Any, field: str, says: str) -> None:
    with pytest.raises(OutputInvalid) as refused:
        read(content)

    assert refused.value.field == f"outputs[1].{field}"
    assert says in refused.value.message


@pytest.mark.parametrize(
    ("manifest", "marker", "field", "says"),
    [
        (b"{}", None, "_SUCCESS", "is missing"),
        (None, b"x", "_manifest.json", "is missing"),
        (None, None, "_SUCCESS", "is missing"),
        (b"{}", b"", "_SUCCESS", "is not the SHA-256"),
        (b"{}", digest(b"{} ").encode(), "_SUCCESS", "is not the SHA-256"),
        (b" " * (MANIFEST_MAX_BYTES + 1), b"", "_manifest.json", "at most 1048576 are allowed"),
    ],
)
def test_the_marker_has_to_be_there_and_to_fit(
    manifest: bytes | None, marker: bytes | None, field: str, says: str
) -> None:
    with pytest.raises(OutputInvalid) as refused:
        read_manifest(manifest, marker, EXPECTED, "outputs[1]")

    assert refused.value.field == f"outputs[1].{field}"
    assert says in refused.value.message


def test_a_marker_may_end_with_a_newline_and_be_in_capitals() -> None:
    text = json.dumps(body()).encode()

    assert read(text, marker=digest(text).upper().encode() + b"\n").rows == 1500


def test_the_number_of_files_is_limited() -> None:
    many = [{"path": f"{number}.parquet", "bytes": 1, "rows": 0} for number in range(FILES_MAX + 1)]

    assert len(read(body(files=[*many[1:-1], file()])).files) == FILES_MAX
    with pytest.raises(OutputInvalid, match="has 10001 files, at most 10000") as refused:
        read(body(files=many))
    assert refused.value.field == "outputs[1].manifest.files"


@pytest.mark.parametrize(
    ("sizes", "field", "says"),
    [
        ({"a.parquet": 10}, "files[1].path", "there is no file day=1/b.parquet"),
        ({"a.parquet": None, "day=1/b.parquet": 0}, "files[0].path", "there is no file a.parquet"),
        ({"a.parquet": 11, "day=1/b.parquet": 0}, "files[0].bytes", "a.parquet has 11 bytes, not 10"),
        ({"a.parquet": 10, "day=1/b.parquet": 1}, "files[1].bytes", "has 1 bytes, not 0"),
    ],
)
def test_a_file_that_is_missing_or_has_another_size_is_refused(
    sizes: dict[str, int | None], field: str, says: str
) -> None:
    with pytest.raises(OutputInvalid) as refused:
        check_sizes(read(body()), sizes, "outputs[1]")

    assert refused.value.field == f"outputs[1].manifest.{field}"
    assert says in refused.value.message


@pytest.mark.parametrize(
    "path",
    [
        "", "/a.parquet", "a//b.parquet", "a/", "a/.parquet/..", "./a.parquet", "a/../b.parquet", "..", "a b.parquet",
        "a\\b.parquet", "a%2e.parquet", "ä.parquet", "a*.parquet", "a.parquet\n", "a\0.parquet", "s3://b/a.parquet",
        "a.PARQUET", "a.parquet.gz", "_SUCCESS", "a.parquet?x", "a" * PATH_MAX + ".parquet", "～.parquet",
    ],
)  # fmt: skip
def test_a_path_that_could_leave_its_folder_is_refused(path: str) -> None:
    assert path_problem(path) is not None


@pytest.mark.parametrize(
    "path", ["a.parquet", "x/y/z.parquet", "day=2026-01-31/part-0.c000.parquet", ".parquet", "...parquet"]
)
def test_a_plain_path_is_taken(path: str) -> None:
    assert path_problem(path) is None


# ------------------------------------------------------------------------------------------ folders


def test_every_attempt_and_output_has_a_folder_of_its_own() -> None:
    prefix = staging_prefix("s3://lake/root/", "team", DATASET, VERSION, TASK, 2, 0)

    assert prefix == f"s3://lake/root/team/{DATASET}/{VERSION}/{TASK}/2/0/"


@pytest.mark.parametrize(
    ("namespace", "folder"),
    [("team-1_x", "team-1_x"), ("a.b", "a.b"), ("..", "=2E."), (".", "=2E"), ("a/b", "a=2Fb"), ("a=2Fb", "a=3D2Fb"),
     ("ü", "=C3=BC"), ("a*%", "a=2A=25"), ("A", "A")],
)  # fmt: skip
def test_a_namespace_is_one_part_of_a_path(namespace: str, folder: str) -> None:
    assert folder_name(namespace) == folder


@given(one=st.text(min_size=1), other=st.text(min_size=1))
@settings(deadline=None)
def test_two_namespaces_never_share_a_folder(one: str, other: str) -> None:
    one, other = (text.encode(errors="replace").decode() for text in (one, other))
    for name in (folder_name(one), folder_name(other)):
        assert re.fullmatch(r"[A-Za-z0-9_=-][A-Za-z0-9_.=-]*", name)
    assert (folder_name(one) == folder_name(other)) == (one == other)
