"""Reads manifests from an API and files from an IPFS gateway. Either may be slow, wrong or down at any time.

Transient errors are retried. Redirects are followed only to the servers in the settings: the author of an entity must
not choose which servers this machine calls. There are at most `width` concurrent requests, each file has a size limit,
and only one file that is not small is in memory at a time: see `record.Files`.
"""

from __future__ import annotations

import re
import threading
import time
from concurrent.futures import Future
from urllib.parse import quote, urljoin, urlsplit

from windlass.contracts.machine.export.mods.threads import ThreadPool
from windlass.net.backoff import Backoff, Transient
from windlass.net.http import PAUSE_MAX_S, Client, Reply

SMALL_BYTES = 128 * 1024
FILE_MAX_BYTES = 32 * 1024 * 1024
PORTS = {"http": 80, "https": 443}
REDIRECTS = frozenset({301, 302, 303, 307, 308})
REDIRECTS_MAX = 5
TRIES_MAX = 4
TIMEOUT_S, PAUSE_S = 30.0, 0.25
RETRY_S = 120.0
CID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,199}")
Body = bytearray


class NotRead(Exception):
    """The file does not exist, is too large, or could not be fetched."""


class Source:
    """The archive. Thread-safe."""

    def __init__(self, api_url: str, gateway_url: str, *, width: int) -> None:
        self._api, self._gateway = api_url, gateway_url
        self._known = frozenset(one for url in (api_url, gateway_url) for one in _servers(url))
        self._client = Client(timeout_s=TIMEOUT_S, agent="windlass-export-mods", connections_max=width, proxies=True)
        self._threads = ThreadPool(width, "windlass-fetch")
        self._stop = threading.Event()
        self.large = threading.Lock()  # held by the entity that may have a large file in memory

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._threads.close()
        self._client.close()

    def manifest(self, pi: str) -> Body:
        """Raises NotRead."""
        url = f"{self._api}/entities/{quote(pi, safe='')}"
        return _all(self._threads.submit(self._get, url, FILE_MAX_BYTES).result())

    def begin(self, cid: str) -> Future[Body | None]:
        """Start to read a file ahead. The result is None if the file is not small: read it when it is needed."""
        return self._threads.submit(self._file, cid, SMALL_BYTES)

    def file(self, cid: str) -> Body:
        """Raises NotRead."""
        return _all(self._threads.submit(self._file, cid, FILE_MAX_BYTES).result())

    def _file(self, cid: str, limit: int) -> Body | None:
        if not CID.fullmatch(cid):
            raise NotRead("its CID is not valid")
        return self._get(f"{self._gateway}/ipfs/{cid}", limit)

    def _get(self, url: str, limit: int) -> Body | None:
        for _ in range(REDIRECTS_MAX + 1):
            try:
                reply = self._client.persist(
                    "GET", url, limit=limit, until=time.monotonic() + RETRY_S, wait=self._stop.wait,
                    backoff=Backoff(PAUSE_S, PAUSE_MAX_S), tries_max=TRIES_MAX,
                )  # fmt: skip
            except Transient as error:
                raise NotRead(str(error)) from None
            if reply.status not in REDIRECTS:
                break
            url = self._redirected(url, reply)
        else:
            raise NotRead("too many redirects")
        if reply.status != 200:
            raise NotRead(reply.line)
        if reply.headers.get("content-encoding", "identity") != "identity":
            raise NotRead(f"its encoding {reply.headers['content-encoding']!r} was not requested")
        return reply.body

    def _redirected(self, url: str, reply: Reply) -> str:
        """The target of a redirect. Raises NotRead for an unknown server, and for one from https to http."""
        try:
            target = urljoin(url, reply.headers.get("location", ""))
            server = _server(target)
        except ValueError:
            raise NotRead(f"{reply.line} has no valid location") from None
        if server not in self._known or (urlsplit(url).scheme == "https" and server[0] != "https"):
            raise NotRead(f"{reply.line} leads to {server[1][:100]}, which is not a server of this archive")
        return target


def _all(body: Body | None) -> Body:
    if body is None:
        raise NotRead(f"it has more than {FILE_MAX_BYTES} bytes")
    return body


def _servers(url: str) -> set[tuple[str, str, int]]:
    """The server of a URL in the settings, and the same host with TLS, since many servers redirect to that."""
    scheme, host, port = _server(url)
    return {(scheme, host, port)} | ({("https", host, PORTS["https"])} if port == PORTS["http"] else set())


def _server(url: str) -> tuple[str, str, int]:
    """Scheme, host and port of a URL. Raises ValueError if it has no valid server."""
    parts = urlsplit(url)
    if parts.scheme not in PORTS or not parts.hostname or parts.username is not None:
        raise ValueError(url)
    return parts.scheme, parts.hostname, parts.port or PORTS[parts.scheme]
