"""Uploads to S3 and compatible stores (R2, MinIO, …) with one PUT, or in parts if the file is large.

The signature covers the bytes, so that the store refuses damaged ones. It also covers the time, as S3 requires, so the
clock of the machine must be right.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from html import unescape
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote
from xml.sax.saxutils import escape

from windlass.contracts.machine.worker.send import AGENT, Refused, Slice, reason, send, tag
from windlass.net.backoff import Transient
from windlass.net.http import CHUNK_BYTES, Client, Reply
from windlass.net.sigv4 import Keys, canonical_query, sign

WHOLE_MAX_BYTES = 64 * 1024 * 1024  # larger files go in parts, so that a broken connection costs one part
PART_BYTES = 16 * 1024 * 1024
PARTS_MAX = 9_000  # the protocol allows 10,000
NO_SUCH_UPLOAD, RESTARTS_MAX = "NoSuchUpload", 3  # a store may lose an upload when it restarts


class Upload:
    """One file to one bucket, until an instant of `time.monotonic`."""

    def __init__(
        self,
        endpoint: str,
        bucket: str,
        keys: Keys,
        until: float,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self._base = f"{endpoint}/{quote(bucket, safe='')}"
        self._keys = keys
        self._until, self._wait = until, wait
        self._client = Client(agent=AGENT, proxies=True)

    def send(
        self,
        key: str,
        path: Path,
        content_type: str,
        *,
        whole_max_bytes: int = WHOLE_MAX_BYTES,
        part_bytes: int = PART_BYTES,
    ) -> None:
        """Upload a file. Raises Refused or Transient, and then leaves nothing in the bucket."""
        url, size = f"{self._base}/{quote(key, safe='/-_.~')}", path.stat().st_size
        try:
            with path.open("rb") as file:
                if size <= whole_max_bytes:
                    self._call("PUT", url, file=file, size=size, content_type=content_type)
                else:
                    part_bytes = max(part_bytes, -(-size // PARTS_MAX))
                    self._persistently(url, file, size, content_type, part_bytes)
        finally:
            self._client.close()

    def _persistently(self, url: str, file: BinaryIO, size: int, content_type: str, part_bytes: int) -> None:
        """Upload in parts, and start over if the store has lost the upload."""
        until = self._until
        for restarts_left in range(RESTARTS_MAX, -1, -1):
            try:
                self._in_parts(url, file, size, content_type, part_bytes)
            except Refused as error:
                self._until = until
                if error.code != NO_SUCH_UPLOAD or not restarts_left or time.monotonic() > until:
                    raise
            else:
                return

    def _in_parts(self, url: str, file: BinaryIO, size: int, content_type: str, part_bytes: int) -> None:
        began = self._call("POST", url, {"uploads": ""}, content_type=content_type)
        upload_id = unescape(tag(began, "UploadId"))
        try:
            parts = ""
            for number, start in enumerate(range(0, size, part_bytes), 1):
                query = {"partNumber": str(number), "uploadId": upload_id}
                length = min(part_bytes, size - start)
                stored = self._call("PUT", url, query, file=file, start=start, size=length)
                etag = escape(stored.headers.get("etag", ""))
                parts += f"<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>"
            body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
            done = self._call("POST", url, {"uploadId": upload_id}, body=body, content_type="application/xml")
            if b"<Error>" in done.content:  # S3 sends status 200 before it joins the parts
                raise Refused(reason(done), tag(done, "Code"))  # noqa: TRY301
        except BaseException:
            self._give_up(url, upload_id)
            raise

    def _give_up(self, url: str, upload_id: str) -> None:
        """Abort the upload, since parts that stay in a bucket cost money."""
        self._until = max(self._until, time.monotonic() + 5.0)
        with suppress(Refused, Transient):
            self._call("DELETE", url, {"uploadId": upload_id})

    def _call(
        self,
        method: str,
        url: str,
        query: Mapping[str, str] | None = None,
        *,
        body: bytes = b"",
        file: BinaryIO | None = None,
        start: int = 0,
        size: int = 0,
        content_type: str = "",
    ) -> Reply:
        digest = _sha256(file, start, size) if file else hashlib.sha256(body).hexdigest()
        headers = {"Content-Length": str(size if file else len(body))}
        if content_type:
            headers["Content-Type"] = content_type

        return send(
            self._client,
            method,
            f"{url}?{canonical_query(query)}" if query else url,
            headers=lambda: sign(method, url, query or {}, headers, digest, self._keys, at=datetime.now(UTC)),
            body=lambda: Slice(file, start, size, self._until) if file else body,
            until=self._until,
            wait=self._wait,
        )


def _sha256(file: BinaryIO, start: int, size: int) -> str:
    digest, body = hashlib.sha256(), Slice(file, start, size, float("inf"))
    while piece := body.read(CHUNK_BYTES):
        digest.update(piece)
    return digest.hexdigest()
