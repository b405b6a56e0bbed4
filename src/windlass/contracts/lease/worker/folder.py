"""Folders that an operator reads and writes: on this machine (`file://`), or in S3 (`s3://`).

S3 needs boto3, which takes its credentials, region and endpoint from the environment or from its configuration files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from windlass.datasets.rules.manifest import is_plain
from windlass.errors import Invalid


class Folder(Protocol):
    """A folder, by the paths of its files below it. A path that leads out of it is Invalid."""

    def read(self, path: str) -> bytes: ...

    def write(self, path: str, content: bytes) -> None: ...

    def upload(self, path: str, file: Path) -> None:
        """Copy a file of this machine."""
        ...


def open_folder(uri: str) -> Folder:
    """The folder of a URI. Raises Invalid for a scheme that is not supported."""
    parts = urlsplit(uri)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return LocalFolder(Path(unquote(parts.path)))
    if parts.scheme == "s3" and parts.netloc:
        return S3Folder(parts.netloc, parts.path.strip("/"))
    raise Invalid(f"{uri!r} is neither file:///FOLDER nor s3://BUCKET/FOLDER")


class LocalFolder:
    """A folder on this machine. A file is on disk when `write` returns."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def read(self, path: str) -> bytes:
        return (self._root / checked(path)).read_bytes()

    def write(self, path: str, content: bytes) -> None:
        self._write(path, [content])

    def upload(self, path: str, file: Path) -> None:
        with file.open("rb") as source:
            self._write(path, iter(lambda: source.read(1024 * 1024), b""))

    def _write(self, path: str, pieces: Iterable[bytes]) -> None:
        target = self._root / checked(path)
        missing = [folder for folder in target.parents if not folder.exists()]
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        for folder in (target.parent, *(folder.parent for folder in missing)):
            _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    """Write the names in a folder to disk: a file without its name is lost."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def checked(path: str) -> str:
    """A path that stays below its folder. Raises Invalid for any other: it may come from a manifest that somebody else
    has written."""
    if not is_plain(path):
        raise Invalid(f"{path[:100]!r} does not stay below its folder", field="path")
    return path


class S3Folder:
    """A folder in a bucket."""

    def __init__(self, bucket: str, prefix: str) -> None:
        self._bucket, self._prefix = bucket, prefix
        self._client = _s3_client()

    def read(self, path: str) -> bytes:
        content: bytes = self._client.get_object(Bucket=self._bucket, Key=self._key(path))["Body"].read()
        return content

    def write(self, path: str, content: bytes) -> None:
        self._client.put_object(Bucket=self._bucket, Key=self._key(path), Body=content)

    def upload(self, path: str, file: Path) -> None:
        self._client.upload_file(str(file), self._bucket, self._key(path))

    def _key(self, path: str) -> str:
        return str(PurePosixPath(self._prefix, checked(path)))


def _s3_client() -> Any:
    try:
        import boto3
    except ImportError:
        raise Invalid("s3:// needs boto3: pip install 'windlass-engine[aws]'") from None
    return boto3.client("s3")
