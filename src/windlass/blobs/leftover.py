"""Finds and aborts unfinished multipart uploads, in S3 and compatible stores.

A process that is killed while it uploads leaves parts that no list of objects shows and that cost money for ever. The
driver (obstore) cannot list such uploads, so the two requests that list and abort them are here.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from html import unescape
from urllib.parse import quote, urlsplit

from windlass.errors import Unavailable
from windlass.net.http import TRANSIENT, Unreachable, proxy_for
from windlass.net.push import Reply, post
from windlass.net.sigv4 import EMPTY, Keys, canonical_query, sign

log = logging.getLogger("windlass.objects")

CALL_S = 20.0
ANSWER_MAX_BYTES = 16 * 1024 * 1024  # a thousand uploads with keys of a thousand bytes, twice
PAGES_MAX = 1000
VARIABLES = {
    "AWS_ACCESS_KEY_ID": "access_key_id",
    "AWS_SECRET_ACCESS_KEY": "secret_access_key",
    "AWS_SESSION_TOKEN": "session_token",
    "AWS_DEFAULT_REGION": "default_region",
    "AWS_REGION": "region",
    "AWS_ENDPOINT": "endpoint",
    "AWS_ENDPOINT_URL": "endpoint",
    "AWS_ENDPOINT_URL_S3": "aws_endpoint_url_s3",
    "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "virtual_hosted_style_request",
}


class NotListed(Exception):
    """The store does not list its uploads, and a retry will not help."""


class Leftovers:
    """The unfinished uploads of one bucket. `base` is the URL of the bucket; all keys begin with `prefix`."""

    def __init__(self, base: str, prefix: str, keys: Keys) -> None:
        self._base, self._keys = base.rstrip("/"), keys
        self._prefix = f"{prefix}/" if prefix else ""
        self._warned = False

    async def give_up(self, path: str) -> int:
        """Abort the uploads of one key, or of all keys below a path that ends with a slash. Returns their number. Logs
        one warning for a store that does not list them. Raises Unavailable."""
        wanted, count = self._prefix + path, 0
        try:
            for key, upload_id in [found async for found in self._listed(wanted)]:
                if key == wanted or wanted.endswith("/"):
                    await self._call("DELETE", f"/{quote(key, safe='/-_.~')}", {"uploadId": upload_id})
                    count += 1
        except NotListed as error:
            if not self._warned:
                log.warning("unfinished uploads stay in the bucket: %s", error)
            self._warned = True
        return count

    async def problem(self) -> str | None:
        """Why the uploads cannot be listed; None if they can. Raises Unavailable."""
        try:
            async for _ in self._listed(self._prefix):
                break
        except NotListed as error:
            return str(error)
        return None

    async def _listed(self, prefix: str) -> AsyncIterator[tuple[str, str]]:
        """Keys and ids of uploads, page by page."""
        after: dict[str, str] = {}
        for _ in range(PAGES_MAX):
            reply = await self._call("GET", "/", {"uploads": "", "prefix": prefix, **after})
            page = reply.body.decode("utf-8", "replace")
            for upload in re.findall(r"<Upload>(.*?)</Upload>", page, re.DOTALL):
                key, upload_id = _text(upload, "Key"), _text(upload, "UploadId")
                if key.startswith(prefix) and upload_id:  # some servers ignore the prefix
                    yield key, upload_id
            if _text(page, "IsTruncated") != "true":
                return
            after = {"key-marker": _text(page, "NextKeyMarker"), "upload-id-marker": _text(page, "NextUploadIdMarker")}

    async def _call(self, method: str, path: str, query: Mapping[str, str]) -> Reply:
        """A successful reply, or one that the upload does not exist."""
        url = f"{self._base}{path}"
        headers = sign(method, url, query, {}, EMPTY, self._keys, at=datetime.now(UTC))
        del headers["Host"]  # the client adds it
        try:
            reply = await post(
                f"{url}?{canonical_query(query)}", headers, b"", timeout_s=CALL_S, method=method, targets=None,
                answer_max=ANSWER_MAX_BYTES,
            )  # fmt: skip
        except Unreachable as error:
            raise Unavailable(f"{urlsplit(url).hostname} cannot be reached: {error}") from None
        code = _text(reply.body.decode("utf-8", "replace"), "Code")
        if 200 <= reply.status < 300 or (reply.status == 404 and code == "NoSuchUpload"):
            return reply
        why = f"the answer to {method} is {reply.status} {code[:100]}".strip()
        if reply.status in TRANSIENT or (reply.status >= 500 and reply.status != 501):
            raise Unavailable(f"{urlsplit(url).hostname}: {why}")
        raise NotListed(f"{urlsplit(url).hostname}: {why}")


def find_leftovers(
    bucket: str, prefix: str, config: Mapping[str, object], variables: Mapping[str, str]
) -> Leftovers | str:
    """The unfinished uploads of a bucket, or why they cannot be found. `config` has the options of the driver."""
    options = {name: variables[variable] for variable, name in VARIABLES.items() if variables.get(variable)}
    options |= {name: str(value) for name, value in config.items() if value is not None}
    region = options.get("region") or options.get("default_region") or "us-east-1"
    base = options.get("aws_endpoint_url_s3") or options.get("endpoint") or f"https://s3.{region}.amazonaws.com"
    if options.get("virtual_hosted_style_request", "").lower() != "true" or "endpoint" not in options:
        base = f"{base.rstrip('/')}/{quote(bucket, safe='')}"
    key, secret = options.get("access_key_id"), options.get("secret_access_key")
    if not key or not secret:
        return "its keys are those of a role, which only the driver knows"
    parts = urlsplit(base)
    if proxy_for(parts.scheme, parts.hostname or ""):
        return "it is reached through a proxy"
    return Leftovers(base, prefix, Keys(key, secret, region, options.get("session_token", "")))


def _text(page: str, name: str) -> str:
    """The text of the first element with this name."""
    found = re.search(rf"<{name}>([^<]*)</{name}>", page)
    return unescape(found[1]) if found else ""
