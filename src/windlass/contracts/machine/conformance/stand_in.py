"""A server that stands in for everything a machine's program calls: the store, the callback URL, the archive of MODS.

The store implements the part of S3 that uploads need, and PUT to a signed URL. It keeps the size of an object, not its
content.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from windlass.testing.conformance.listener import Listener, Reply, Request

CHUNK_BYTES = 256 * 1024


class Stored(msgspec.Struct):
    """An object: its key, its size, and the credentials that came with it."""

    key: str
    size: int
    authorization: str
    at_s: float


class Callback(msgspec.Struct):
    """One callback."""

    method: str
    target: str
    media: str
    body: dict[str, Any]  # empty for what is no JSON object
    at_s: float


class StandIn:
    """Listens on loopback while it is open. `bucket` is the bucket that the program should use."""

    def __init__(self, *, bucket: str, archive: Callable[[str], Reply]) -> None:
        self.bucket = bucket
        self.stored: list[Stored] = []
        self.callbacks: list[Callback] = []
        self.answers: list[Reply] = []  # to callbacks, one each; then all are received
        self.refusals: list[Reply] = []  # to uploads, one each; then all are stored
        self.on_callback: Callable[[], None] = lambda: None
        self._archive, self._lock = archive, threading.Lock()
        self._parts: dict[str, list[tuple[int, Stored]]] = {}
        self._listener = Listener(self._answer)
        self.url = self._listener.url

    def __enter__(self) -> StandIn:
        self._listener.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.__exit__(None, None, None)

    def _answer(self, request: Request) -> Reply:
        first = request.path.split("/")[1]
        if first in ("entities", "ipfs"):
            return self._archive(request.path)
        if first == "callback":
            return self._called_back(request)
        if first == "upload" and request.method == "PUT":
            return self._put(request, f"exports/{request.path.removeprefix('/upload/')}")
        if first == self.bucket:
            return self._s3(request, request.path.removeprefix(f"/{self.bucket}").removeprefix("/"))
        return Reply(404, {"error": f"there is nothing at {request.path}"})

    # ----------------------------------------------------------------------------------------- callbacks

    def _called_back(self, request: Request) -> Reply:
        body = _read_object(request.body())
        self.on_callback()
        media = request.headers.get("Content-Type") or ""
        with self._lock:
            self.callbacks.append(Callback(request.method, request.target, media, body, time.monotonic()))
            return self.answers.pop(0) if self.answers else Reply(200, {"received": True})

    # ----------------------------------------------------------------------------------------- the store

    def _s3(self, request: Request, key: str) -> Reply:
        upload_id = request.query.get("uploadId", "")
        if request.method == "POST" and "uploads" in request.query:
            return _xml(f"<InitiateMultipartUploadResult><UploadId>{key}</UploadId></InitiateMultipartUploadResult>")
        if request.method == "POST" and upload_id:
            request.body()
            return self._join(key, upload_id)
        if request.method == "PUT" and upload_id:
            part = self._read(request, key)
            self._parts.setdefault(upload_id, []).append((int(request.query.get("partNumber", "0")), part))
            return Reply(200, b"", {"ETag": f'"{part.size}"'})
        if request.method == "PUT":
            return self._put(request, key)
        if request.method == "HEAD" and not key.strip("/"):
            return Reply(200, b"")  # the bucket is there
        return Reply(204, b"") if request.method == "DELETE" else Reply(404, b"")

    def _join(self, key: str, upload_id: str) -> Reply:
        parts = [part for _, part in sorted(self._parts.pop(upload_id, []), key=lambda one: one[0])]
        if not parts:
            return Reply(404, b"<Error><Code>NoSuchUpload</Code></Error>")
        whole = msgspec.structs.replace(parts[0], size=sum(part.size for part in parts), at_s=time.monotonic())
        with self._lock:
            self.stored.append(whole)
        return _xml(f"<CompleteMultipartUploadResult><Key>{key}</Key></CompleteMultipartUploadResult>")

    def _put(self, request: Request, key: str) -> Reply:
        stored = self._read(request, key)
        with self._lock:
            if self.refusals:
                return self.refusals.pop(0)
            self.stored.append(stored)
        return Reply(200, b"", {"ETag": f'"{stored.size}"'})

    def _read(self, request: Request, key: str) -> Stored:
        left = request.length
        while left > 0 and (piece := request.stream.read(min(left, CHUNK_BYTES))):
            left -= len(piece)
        shown = request.headers.get("Authorization") or request.query.get("X-Amz-Credential", "")
        plain = request.headers.get("x-amz-decoded-content-length") or ""  # in chunks with checksums between
        size = int(plain) if plain.isdigit() and left == 0 else request.length - left
        return Stored(key, size, shown, time.monotonic())


def _read_object(raw: bytes) -> dict[str, Any]:
    try:
        body = json.loads(raw)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _xml(text: str) -> Reply:
    return Reply(200, text.encode(), {"Content-Type": "application/xml"})
