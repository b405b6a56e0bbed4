"""Uploads to S3 and what speaks like it (R2, MinIO, …): Signature Version 4, one PUT, or parts when the file is large.

By the standard library, so that a program on its machine needs no library of a cloud. The bytes are signed, so that
what is stored is what was meant. The clock of the machine is in the signature because S3 wants it there.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from html import unescape
from pathlib import Path
from typing import BinaryIO, NamedTuple
from urllib.parse import quote, urlsplit
from xml.sax.saxutils import escape

from windlass.sdk.machine.http import CHUNK_BYTES, Client, Reply
from windlass.sdk.machine.patience import Transient
from windlass.sdk.machine.send import Refused, Slice, reason, send, tag

WHOLE_MAX_BYTES = 64 * 1024 * 1024  # above it in parts, so that a broken connection does not cost all of it
PART_BYTES = 16 * 1024 * 1024
PARTS_MAX = 9_000  # the protocol allows 10,000
EMPTY = hashlib.sha256(b"").hexdigest()


class Keys(NamedTuple):
    """Who signs, and for which region."""

    access_key: str
    secret_key: str
    region: str = "auto"
    session_token: str = ""


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
        self._client = Client()

    def send(
        self,
        key: str,
        path: Path,
        content_type: str,
        *,
        whole_max_bytes: int = WHOLE_MAX_BYTES,
        part_bytes: int = PART_BYTES,
    ) -> None:
        """Raises Refused or Transient; nothing is left in the bucket then."""
        url, size = f"{self._base}/{quote(key, safe='/-_.~')}", path.stat().st_size
        try:
            with path.open("rb") as file:
                if size <= whole_max_bytes:
                    self._call("PUT", url, file=file, size=size, content_type=content_type)
                else:
                    part_bytes = max(part_bytes, -(-size // PARTS_MAX))
                    self._in_parts(url, file, size, content_type, part_bytes)
        finally:
            self._client.close()

    def _in_parts(self, url: str, file: BinaryIO, size: int, content_type: str, part_bytes: int) -> None:
        began = self._call("POST", url, {"uploads": ""}, content_type=content_type)
        upload_id = unescape(tag(began, "UploadId"))
        try:
            parts = []
            for number, start in enumerate(range(0, size, part_bytes), 1):
                query = {"partNumber": str(number), "uploadId": upload_id}
                length = min(part_bytes, size - start)
                stored = self._call("PUT", url, query, file=file, start=start, size=length)
                parts.append((number, stored.headers.get("etag", "")))
            listed = "".join(f"<Part><PartNumber>{n}</PartNumber><ETag>{escape(tag)}</ETag></Part>" for n, tag in parts)
            body = f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>".encode()
            done = self._call("POST", url, {"uploadId": upload_id}, body=body, content_type="application/xml")
            _check_done(done)
        except BaseException:
            self._give_up(url, upload_id)
            raise

    def _give_up(self, url: str, upload_id: str) -> None:
        """Parts of an upload that came to nothing cost money for ever."""
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


def sign(
    method: str,
    url: str,
    query: Mapping[str, str],
    headers: Mapping[str, str],
    digest: str,
    keys: Keys,
    *,
    at: datetime,
    service: str = "s3",
) -> dict[str, str]:
    """The headers of the request with its signature among them."""
    where, moment = urlsplit(url), at.strftime("%Y%m%dT%H%M%SZ")
    scope = f"{moment[:8]}/{keys.region}/{service}/aws4_request"
    sent = {**headers, "Host": where.netloc, "x-amz-content-sha256": digest, "x-amz-date": moment}
    if keys.session_token:
        sent["x-amz-security-token"] = keys.session_token
    lower = {name.lower(): " ".join(value.split()) for name, value in sent.items()}
    lower.pop("content-length", None)  # proxies may change it
    names = ";".join(sorted(lower))
    lines = "".join(f"{name}:{lower[name]}\n" for name in sorted(lower))
    canonical = "\n".join([method, where.path or "/", canonical_query(query), lines, names, digest])
    to_sign = "\n".join(["AWS4-HMAC-SHA256", moment, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = f"AWS4{keys.secret_key}".encode()
    for part in (moment[:8], keys.region, service, "aws4_request", to_sign):
        key = hmac.digest(key, part.encode(), "sha256")
    credential = f"Credential={keys.access_key}/{scope}, SignedHeaders={names}, Signature={key.hex()}"
    return {**sent, "Authorization": f"AWS4-HMAC-SHA256 {credential}"}


def canonical_query(query: Mapping[str, str]) -> str:
    return "&".join(f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in sorted(query.items()))


def _check_done(reply: Reply) -> None:
    """Who puts parts together begins to answer before it is sure."""
    if b"<Error>" in (reply.body or b""):
        raise Refused(reason(reply))


def _sha256(file: BinaryIO, start: int, size: int) -> str:
    digest, body = hashlib.sha256(), Slice(file, start, size, float("inf"))
    while piece := body.read(CHUNK_BYTES):
        digest.update(piece)
    return digest.hexdigest()
