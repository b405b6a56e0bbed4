"""Uploads the result to a bucket (S3, R2), or to the server with a signed URL. Streams from disk, all or nothing.

The key of an object is `exports/{task_id}/{file}`, so another attempt replaces the same object.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import msgspec

from windlass.contracts.machine.worker import s3
from windlass.contracts.machine.worker.send import AGENT, Refused, Slice, send
from windlass.net.backoff import Transient
from windlass.net.http import Client
from windlass.net.sigv4 import Keys


class UploadFailed(Exception):
    """The result could not be stored."""


class SignedUrl(msgspec.Struct, frozen=True):
    """A URL to PUT the objects of this attempt to, with the file name before its query."""

    url: str

    def __repr__(self) -> str:
        return f"SignedUrl({self.url.partition('?')[0]!r})"


class Bucket(msgspec.Struct, frozen=True):
    endpoint: str
    name: str
    access_key: str
    secret_key: str
    region: str = "auto"
    prefix: str = ""
    session_token: str = ""

    def __repr__(self) -> str:
        return f"Bucket({self.endpoint!r}, {self.name!r})"


ObjectStore = SignedUrl | Bucket


def upload(
    store: ObjectStore,
    key: str,
    path: Path,
    content_type: str,
    *,
    timeout_s: float,
    wait: Callable[[float], object] = time.sleep,
) -> None:
    """Store the file under the key. Raises UploadFailed, and then stores nothing, not even a part."""
    until = time.monotonic() + timeout_s
    try:
        if isinstance(store, SignedUrl):
            base, mark, query = store.url.partition("?")
            name = quote(key.rpartition("/")[2], safe="")
            _put(f"{base}{name}{mark}{query}", path, content_type, until, wait)
        else:
            keys = Keys(store.access_key, store.secret_key, store.region, store.session_token)
            to = s3.Upload(store.endpoint, store.name, keys, until, wait)
            to.send(f"{store.prefix}/{key}" if store.prefix else key, path, content_type)
    except (Transient, Refused, OSError) as error:
        raise UploadFailed(f"Failed to upload {key}: {error}") from error


def _put(url: str, path: Path, content_type: str, until: float, wait: Callable[[float], object]) -> None:
    size = path.stat().st_size
    headers = {"Content-Type": content_type, "Content-Length": str(size)}
    with path.open("rb") as file, closing(Client(agent=AGENT, proxies=True)) as client:
        send(
            client, "PUT", url,
            headers=lambda: headers, body=lambda: Slice(file, 0, size, until), until=until, wait=wait,
        )  # fmt: skip
