"""Where entities come from: manifests from an API, files from an IPFS gateway. Slow, wrong and gone at any moment.

What may pass is tried again. A redirect is followed to the servers that the settings name, and to nobody else: whoever
writes into an archive does not choose whom this machine calls. At most `width` requests are under way, each file is
read up to a limit, and of files that are not small one is in memory at a time: see `Reading`.
"""

from __future__ import annotations

import re
import threading
import time
from concurrent.futures import Future
from types import TracebackType
from urllib.parse import quote, urljoin, urlsplit

from windlass.export.mods.crew import Crew
from windlass.sdk.machine.http import Client, Reply
from windlass.sdk.machine.patience import Transient, persist

SMALL_BYTES = 128 * 1024
FILE_MAX_BYTES = 32 * 1024 * 1024
PORTS = {"http": 80, "https": 443}
REDIRECTS = frozenset({301, 302, 303, 307, 308})
REDIRECTS_MAX = 5
TRIES_MAX = 4
TIMEOUT_S, PAUSE_S = 30.0, 0.25
PATIENCE_S = 120.0
CID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,199}")
Body = bytearray


class NotRead(Exception):
    """It is not there, too large, or nobody could be brought to hand it over."""


class Source:
    """Used by many threads."""

    def __init__(self, api_url: str, gateway_url: str, *, width: int) -> None:
        self._api, self._gateway = api_url, gateway_url
        self._known = frozenset(one for url in (api_url, gateway_url) for one in _servers(url))
        self._client = Client(timeout_s=TIMEOUT_S, agent="windlass-export-mods")
        self._crew = Crew(width, "windlass-fetch")
        self._stop = threading.Event()
        self.large = threading.Lock()

    def __enter__(self) -> Source:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._crew.close()
        self._client.close()

    def manifest(self, pi: str) -> Body:
        """Raises NotRead."""
        return _all(self._crew.submit(self._get, f"{self._api}/entities/{quote(pi, safe='')}", FILE_MAX_BYTES).result())

    def begin(self, cid: str) -> Future[Body | None]:
        """Begin to read a file ahead of its time. None means: it is not small, so ask for it when it is needed."""
        return self._crew.submit(self._file, cid, SMALL_BYTES)

    def file(self, cid: str) -> Body:
        """Raises NotRead."""
        return _all(self._crew.submit(self._file, cid, FILE_MAX_BYTES).result())

    def _file(self, cid: str, limit: int) -> Body | None:
        if not CID.fullmatch(cid):
            raise NotRead("its CID is none")
        return self._get(f"{self._gateway}/ipfs/{cid}", limit)

    def _get(self, url: str, limit: int) -> Body | None:
        for _ in range(REDIRECTS_MAX + 1):
            reply = self._patiently(url, limit)
            if reply.status not in REDIRECTS:
                break
            url = self._redirected(url, reply)
        else:
            raise NotRead("too many redirects")
        if reply.status != 200:
            raise NotRead(reply.line)
        if reply.headers.get("content-encoding", "identity") != "identity":
            raise NotRead(f"its encoding {reply.headers['content-encoding']!r} was not asked for")
        return reply.body

    def _patiently(self, url: str, limit: int) -> Reply:
        def once() -> Reply:
            reply = self._client.request("GET", url, limit=limit)
            if reply.passing:
                raise Transient(reply.line, reply.retry_after_s)
            return reply

        until = time.monotonic() + PATIENCE_S
        try:
            return persist(once, until=until, wait=self._stop.wait, pause_s=PAUSE_S, tries_max=TRIES_MAX)
        except Transient as error:
            raise NotRead(str(error)) from None

    def _redirected(self, url: str, reply: Reply) -> str:
        """Where to look instead. Never from https to something less."""
        try:
            target = urljoin(url, reply.headers.get("location", ""))
            server = _server(target)
        except ValueError:
            raise NotRead(f"{reply.line} leads nowhere that may be followed") from None
        if server not in self._known or (urlsplit(url).scheme == "https" and server[0] != "https"):
            raise NotRead(f"{reply.line} leads to {server[1][:100]}, which is not a server of this archive")
        return target


class Reading:
    """The files of one entity. The first that is not small waits until no other entity has such a file in memory."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._turn = False

    def __enter__(self) -> Reading:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.let_go()

    @property
    def large(self) -> bool:
        """Whether something large of this entity may be in memory."""
        return self._turn

    def begin(self, cid: str) -> Future[Body | None]:
        return self._source.begin(cid)

    def end(self, cid: str, begun: Future[Body | None]) -> Body:
        """Raises NotRead."""
        body = begun.result()
        if body is not None:
            return body
        if not self._turn:
            self._source.large.acquire()
            self._turn = True
        return self._source.file(cid)

    def let_go(self) -> None:
        """Nothing large of this entity is in memory any more."""
        if self._turn:
            self._turn = False
            self._source.large.release()


def _all(body: Body | None) -> Body:
    if body is None:
        raise NotRead(f"it has more than {FILE_MAX_BYTES} bytes")
    return body


def _servers(url: str) -> set[tuple[str, str, int]]:
    """Who a URL of the settings names: its server, and the same host with TLS, to which many lead on."""
    scheme, host, port = _server(url)
    return {(scheme, host, port)} | ({("https", host, PORTS["https"])} if port == PORTS["http"] else set())


def _server(url: str) -> tuple[str, str, int]:
    """Raises ValueError for what names none."""
    parts = urlsplit(url)
    if parts.scheme not in PORTS or not parts.hostname or parts.username is not None:
        raise ValueError(url)
    return parts.scheme, parts.hostname, parts.port or PORTS[parts.scheme]
