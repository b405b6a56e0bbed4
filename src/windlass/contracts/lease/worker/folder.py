"""Folders that an operator reads and writes: on this machine (`file://`), or in S3 (`s3://`).

S3 needs boto3, which takes its credentials, region and endpoint from the environment or from its configuration files.
"""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from windlass.errors import Invalid


class Folder(Protocol):
    """A folder, by the paths of its files below it."""

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
        return (self._root / path).read_bytes()

    def write(self, path: str, content: bytes) -> None:
        target = self._target(path)
        with target.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

    def upload(self, path: str, file: Path) -> None:
        target = self._target(path)
        with file.open("rb") as source, target.open("wb") as copy:
            while piece := source.read(1024 * 1024):
                copy.write(piece)
            copy.flush()
            os.fsync(copy.fileno())

    def _target(self, path: str) -> Path:
        target = self._root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        return target


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
        return str(PurePosixPath(self._prefix, path))


def _s3_client() -> Any:
    try:
        import boto3
    except ImportError:
        raise Invalid("s3:// needs boto3: pip install 'windlass-engine[aws]'") from None
    return boto3.client("s3")
