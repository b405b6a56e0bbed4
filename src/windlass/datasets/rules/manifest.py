"""The manifest of an output in the lake: the list of files that one attempt wrote.

A worker writes its files to a folder of its own, then `_manifest.json`, then `_SUCCESS` with the SHA-256 of the
manifest. All of it comes from the worker and is checked before it is believed. Each error names the field, so that the
worker can repair the output while its lease lasts. This module reads bytes; it does not know how they are fetched.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Annotated
from uuid import UUID

import msgspec

from windlass.errors import OutputInvalid

MANIFEST, MARKER = "_manifest.json", "_SUCCESS"
MANIFEST_MAX_BYTES = 1024 * 1024
MARKER_MAX_BYTES = 1024
FILES_MAX = 10_000
PATH_MAX = 512
SUFFIX = ".parquet"
_PART = re.compile(r"[A-Za-z0-9._=-]+", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
_SAFE = re.compile(r"[A-Za-z0-9_-]", re.ASCII)
_AT = re.compile(r" - at `\$\.?(.*)`$")

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class ManifestFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of an output. `path` is below the folder of the attempt."""

    path: str
    bytes: Count
    rows: Count
    sha256: str | None = None


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The files of one output of one attempt. An output without partitions has no `partition_key`."""

    version: int
    dataset_uuid: UUID
    dataset_version: UUID
    task_id: UUID
    attempt: int
    rows: Count
    files: list[ManifestFile]
    partition_key: str | None = None


class Expected(msgspec.Struct, frozen=True):
    """What the lease and the report of the worker say about an output."""

    dataset_uuid: UUID
    dataset_version: UUID
    task_id: UUID
    attempt: int
    partition_key: str | None = None
    row_count: int | None = None


_decode = msgspec.json.Decoder(Manifest).decode


def staging_prefix(
    lake: str,
    namespace: str,
    dataset_uuid: UUID,
    dataset_version: UUID,
    task_id: UUID,
    attempt: int,
    output_index: int,
) -> str:
    """The folder into which one attempt writes one output. No other attempt writes there."""
    root = f"{lake.rstrip('/')}/{folder_name(namespace)}"
    return f"{root}/{dataset_uuid}/{dataset_version}/{task_id}/{attempt}/{output_index}/"


def output_location(staging: str, given: str | None, field: str = "outputs[0]") -> str:
    """The folder of an output, with a slash at its end: its staging folder, or a folder below it if a task writes
    several partitions. Raises OutputInvalid for any other."""
    if given is None or given.rstrip("/") == staging.rstrip("/"):
        return staging
    below = given.removesuffix("/").removeprefix(staging)
    if not given.startswith(staging) or not is_plain(below):
        raise OutputInvalid(f"must be {staging}, or a folder below it", field=f"{field}.location")
    return f"{staging}{below}/"


def folder_name(namespace: str) -> str:
    """A namespace as one part of a path. Names may have any character; `/`, `..`, `*` and `%` may not reach a path or
    the policy of a credential. Two namespaces never have the same folder."""
    return "".join(
        each if _SAFE.fullmatch(each) or (each == "." and place) else "".join(f"={byte:02X}" for byte in each.encode())
        for place, each in enumerate(namespace)
    )


def digest(manifest: bytes) -> str:
    """The SHA-256 of a manifest, as it is in the marker and in the commit."""
    return sha256(manifest).hexdigest()


def read_manifest(
    manifest: bytes | None, marker: bytes | None, expected: Expected, field: str = "outputs[0]"
) -> Manifest:
    """Read and check a manifest. The two are None if the object is missing. Raises OutputInvalid with the first field
    that is wrong; the sizes of the files are left to `check_sizes`."""
    if marker is None:
        raise OutputInvalid("is missing; write it last, with the SHA-256 of the manifest", field=f"{field}.{MARKER}")
    if manifest is None:
        raise OutputInvalid("is missing", field=f"{field}.{MANIFEST}")
    check_size(len(manifest), MANIFEST_MAX_BYTES, f"{field}.{MANIFEST}")
    if marker.strip().lower() != digest(manifest).encode():
        raise OutputInvalid("is not the SHA-256 of the manifest in hexadecimal", field=f"{field}.{MARKER}")
    found = _decoded(manifest, f"{field}.manifest")
    _check_ids(found, expected, f"{field}.manifest")
    _check_files(found.files, f"{field}.manifest.files")
    _check_rows(found, expected, field)
    return found


def check_size(size: int, most: int, field: str) -> None:
    """Check the size of a marker or a manifest, before it is read."""
    if size > most:
        message = f"has {size} bytes, at most {most} are allowed; write fewer, larger files"
        raise OutputInvalid(message, field=field)


def check_sizes(manifest: Manifest, sizes: Mapping[str, int | None], field: str = "outputs[0]") -> None:
    """Compare the files with what is in the lake: the size of each path, None if there is no such object."""
    for place, file in enumerate(manifest.files):
        size = sizes.get(file.path)
        if size is None:
            raise OutputInvalid(f"there is no file {file.path}", field=f"{field}.manifest.files[{place}].path")
        if size != file.bytes:
            message = f"{file.path} has {size} bytes, not {file.bytes}"
            raise OutputInvalid(message, field=f"{field}.manifest.files[{place}].bytes")


def _decoded(manifest: bytes, field: str) -> Manifest:
    try:
        return _decode(manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        message = str(error)
        place = _AT.search(message)
        where = f"{field}.{place[1]}" if place and place[1] else field
        raise OutputInvalid(_AT.sub("", message), field=where) from error


def _check_ids(manifest: Manifest, expected: Expected, field: str) -> None:
    if manifest.version != 1:
        raise OutputInvalid(f"must be 1, not {manifest.version}", field=f"{field}.version")
    for name in ("dataset_uuid", "dataset_version", "task_id", "attempt", "partition_key"):
        own, leased = getattr(manifest, name), getattr(expected, name)
        if own != leased:
            raise OutputInvalid(f"must be {leased}, not {str(own)[:100]}", field=f"{field}.{name}")


def _check_files(files: list[ManifestFile], field: str) -> None:
    if len(files) > FILES_MAX:
        message = f"has {len(files)} files, at most {FILES_MAX} are allowed; write fewer, larger ones"
        raise OutputInvalid(message, field=field)
    paths: dict[str, int] = {}
    for place, file in enumerate(files):
        if (problem := path_problem(file.path)) is not None:
            raise OutputInvalid(problem, field=f"{field}[{place}].path")
        if (first := paths.setdefault(file.path, place)) != place:
            raise OutputInvalid(f"{file.path} is also files[{first}]", field=f"{field}[{place}].path")
        if file.sha256 is not None and not _DIGEST.fullmatch(file.sha256):
            raise OutputInvalid("must be 64 lowercase hexadecimal digits", field=f"{field}[{place}].sha256")


def path_problem(path: str) -> str | None:
    """What is wrong with the path of a file, or None."""
    if len(path) > PATH_MAX:
        return f"has {len(path)} characters, at most {PATH_MAX} are allowed"
    if not is_plain(path):
        return f"{path[:100]!r} must be parts of A-Z a-z 0-9 . _ = - with / between them, none of them . or .."
    return None if path.endswith(SUFFIX) else f"{path[:100]!r} must end with {SUFFIX}"


def is_plain(path: str) -> bool:
    """Whether a path has only plain parts, so that it stays below its folder in every store."""
    return all(_PART.fullmatch(part) and part not in (".", "..") for part in path.split("/"))


def _check_rows(manifest: Manifest, expected: Expected, field: str) -> None:
    total = sum(file.rows for file in manifest.files)
    if manifest.rows != total:
        message = f"is {manifest.rows}, but the files have {total} rows"
        raise OutputInvalid(message, field=f"{field}.manifest.rows")
    if expected.row_count not in (None, total):
        message = f"is {expected.row_count}, but the manifest has {total} rows"
        raise OutputInvalid(message, field=f"{field}.row_count")
