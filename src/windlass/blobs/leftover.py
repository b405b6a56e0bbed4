"""Uploads in parts that broke off, in S3 and what speaks like it: found and given up.

Whoever is killed while it uploads leaves parts that no list of objects shows and that cost money for ever. The driver
begins such uploads, but knows no way to find them again; so here are the two requests that do.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from html import unescape
from urllib.parse import quote, urlsplit
from urllib.request import getproxies, proxy_bypass

from windlass.core.error import Unavailable
from windlass.wire.post import Reply, Unreachable, post
from windlass.wire.sigv4 import EMPTY, Keys, canonical_query, sign

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
LATER = frozenset({408, 425, 429})  # with all that begin with 5


class NotListed(Exception):
    """The store does not tell us, and will not."""


class Leftovers:
    """The uploads of one bucket that nobody has finished. `base` is where the bucket is; keys have `prefix` before."""

    def __init__(self, base: str, prefix: str, keys: Keys) -> None:
        self._base, self._keys = base.rstrip("/"), keys
        self._prefix = f"{prefix}/" if prefix else ""
        self._told = False

    async def give_up(self, path: str) -> int:
        """Those of one key, or of all below a path that ends with a slash; returns how many. A store that does not list
        them is asked in vain, and the log says so once. Raises Unavailable."""
        wanted, count = self._prefix + path, 0
        try:
            for key, upload_id in [found async for found in self._listed(wanted)]:
                if key == wanted or wanted.endswith("/"):
                    await self._call("DELETE", f"/{quote(key, safe='/-_.~')}", {"uploadId": upload_id})
                    count += 1
        except NotListed as error:
            if not self._told:
                log.warning("uploads that broke off stay in the bucket: %s", error)
            self._told = True
        return count

    async def problem(self) -> str | None:
        """Why they cannot be found; None if they can. Raises Unavailable."""
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
                if key.startswith(prefix) and upload_id:  # not every server minds the prefix
                    yield key, upload_id
            if _text(page, "IsTruncated") != "true":
                return
            after = {"key-marker": _text(page, "NextKeyMarker"), "upload-id-marker": _text(page, "NextUploadIdMarker")}

    async def _call(self, method: str, path: str, query: Mapping[str, str]) -> Reply:
        """A good answer; that there is no such upload, or none at all, is one."""
        url = f"{self._base}{path}"
        headers = sign(method, url, query, {}, EMPTY, self._keys, at=datetime.now(UTC))
        del headers["Host"]  # which is sent in any case
        try:
            reply = await post(
                f"{url}?{canonical_query(query)}", headers, b"", timeout_s=CALL_S, method=method, targets=None,
                answer_max=ANSWER_MAX_BYTES,
            )  # fmt: skip
        except Unreachable as error:
            raise Unavailable(f"{urlsplit(url).hostname} is away: {error}") from None
        code = _text(reply.body.decode("utf-8", "replace"), "Code")
        if 200 <= reply.status < 300 or (reply.status == 404 and code == "NoSuchUpload"):
            return reply
        why = f"{method} was answered {reply.status} {code[:100]}".strip()
        if reply.status in LATER or (reply.status >= 500 and reply.status != 501):
            raise Unavailable(f"{urlsplit(url).hostname}: {why}")
        raise NotListed(f"{why} by {urlsplit(url).hostname}")


def find_leftovers(
    bucket: str, prefix: str, config: Mapping[str, object], variables: Mapping[str, str]
) -> Leftovers | str:
    """Those of a bucket, from what its driver was told, or has read from the variables of this process; or why they
    cannot be found."""
    told = {name: variables[variable] for variable, name in VARIABLES.items() if variables.get(variable)}
    told |= {name: str(value) for name, value in config.items() if value is not None}
    region = told.get("region") or told.get("default_region") or "us-east-1"
    base = told.get("aws_endpoint_url_s3") or told.get("endpoint") or f"https://s3.{region}.amazonaws.com"
    if told.get("virtual_hosted_style_request", "").lower() != "true" or "endpoint" not in told:
        base = f"{base.rstrip('/')}/{quote(bucket, safe='')}"
    key, secret = told.get("access_key_id"), told.get("secret_access_key")
    if not key or not secret:
        return "its keys are those of a role, which only the driver knows"
    parts = urlsplit(base)
    if getproxies().get(parts.scheme) and not proxy_bypass(parts.hostname or ""):
        return "it is reached through a proxy"
    return Leftovers(base, prefix, Keys(key, secret, region, told.get("session_token", "")))


def _text(page: str, name: str) -> str:
    """What stands inside the first element of this name."""
    found = re.search(rf"<{name}>([^<]*)</{name}>", page)
    return unescape(found[1]) if found else ""
