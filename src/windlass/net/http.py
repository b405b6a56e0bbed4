"""The synchronous HTTP client, on urllib3: for threads, in bounded time and memory.

It follows no redirects: only the caller knows whether its request is meant for another server. A failure that is worth
another try is a `Transient`; see `backoff`. `http_threads` is the same for an event loop.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import msgspec

from windlass.errors import why_broken
from windlass.net.backoff import Backoff, Transient, retry
from windlass.net.retry_after import retry_after_s

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse, PoolManager

ANSWER_MAX_BYTES = 64 * 1024
CHUNK_BYTES = 64 * 1024
RETRY_AFTER_MAX_S = 30.0
PAUSE_S, PAUSE_MAX_S = 0.5, 8.0
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
TRANSIENT = frozenset({408, 425, 429})  # and all from 500 on


class Readable(Protocol):
    """A body that is read piece by piece. If it has an attribute `reply_wait_s`, the client first waits that long for
    an answer to the headers."""

    def read(self, size: int = -1, /) -> bytes: ...


class Unreachable(Transient):
    """There is no answer, or it is not HTTP."""

    def __init__(self, host: str, reason: str) -> None:
        super().__init__(f"{host}: {reason}" if host else reason)
        self.reason = reason


class ConnectFailed(Unreachable):
    """The connection failed, so nothing was sent."""


class TimedOut(Unreachable):
    """The answer was not complete in time."""


class Interrupted(Unreachable):
    """The server closed the connection while the body was sent. It may have answered the headers: next time, wait
    for that before sending the body."""


class Reply(msgspec.Struct, frozen=True):
    """`body` is None when it is longer than the caller's limit. Header names are in lower case."""

    status: int
    reason: str
    headers: Mapping[str, str]
    body: bytearray | None

    @property
    def line(self) -> str:
        return f"{self.status} {self.reason}".strip()

    @property
    def content(self) -> bytes:
        """The body as bytes; empty if there is none."""
        return bytes(self.body or b"")

    @property
    def transient(self) -> bool:
        """Whether the same request may get another answer later."""
        return self.status in TRANSIENT or self.status >= 500

    def retry_after_s(self, most: float = RETRY_AFTER_MAX_S) -> float:
        return retry_after_s(self.headers.get("retry-after"), self.headers.get("date"), most=most)


class Client:
    """Connections to a few servers, kept between requests and shared by threads."""

    def __init__(
        self,
        *,
        timeout_s: float = 30.0,
        agent: str = "windlass",
        connections_max: int = 8,
        proxies: bool = False,
        deadline: bool = True,
        context: ssl.SSLContext | None = None,
    ) -> None:
        """`timeout_s` is for a whole request with its answer or, without `deadline`, for each step of it: to connect,
        and each read. With `proxies`, those of the environment are used."""
        self.timeout_s = timeout_s
        self._agent, self._connections_max, self._context = agent, connections_max, context
        self._proxies, self._deadline = proxies, deadline
        self._managers: dict[tuple[str, str | None, bool], PoolManager] = {}
        self._lock = threading.Lock()

    def trust(self, context: ssl.SSLContext) -> None:
        """Use these certificates from the next request on."""
        with self._lock:
            self._context = context
            self._managers = {}  # not closed, since a request may be about to use one

    def close(self) -> None:
        """Close the connections that are not in use; the others close when their request ends."""
        with self._lock:
            managers, self._managers = self._managers, {}
        for manager in managers.values():
            manager.clear()

    def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | Readable | None = None,
        limit: int = ANSWER_MAX_BYTES,
        timeout_s: float | None = None,
    ) -> Reply:
        """Send one request. Raises Unreachable. A body to be read needs its Content-Length."""
        timeout_s = timeout_s or self.timeout_s
        with _translated(url, timeout_s):
            response = self._open(method, url, headers, body, timeout_s, deadline=self._deadline)
            try:
                content = _read(response, limit)
            finally:
                if not response.closed:  # not read to its end: the connection cannot be used again
                    response.close()
                response.release_conn()
        return Reply(response.status, response.reason or "", _lower(response), content)

    def persist(
        self,
        method: str,
        url: str,
        *,
        until: float,
        wait: Callable[[float], object] = time.sleep,
        backoff: Backoff | None = None,
        tries_max: int = 1000,
        **options: Any,
    ) -> Reply:
        """Send one request until its answer is not transient. Raises the last Transient at `until`; see `retry`."""

        def once() -> Reply:
            reply = self.request(method, url, **options)
            if reply.transient:
                raise Transient(reply.line, reply.retry_after_s())
            return reply

        return retry(once, backoff or Backoff(PAUSE_S, PAUSE_MAX_S), until=until, wait=wait, tries_max=tries_max)

    @contextmanager
    def stream(
        self, method: str, url: str, *, headers: Mapping[str, str] | None = None
    ) -> Iterator[tuple[Reply, Iterator[bytes]]]:
        """An answer without an end, and its pieces as they come. Its timeout is for each piece. Raises Unreachable."""
        with _translated(url, self.timeout_s):
            response = self._open(method, url, headers, None, self.timeout_s, deadline=False)

        def pieces() -> Iterator[bytes]:
            with _translated(url, self.timeout_s):
                while piece := response.read1(CHUNK_BYTES):
                    yield piece

        try:
            yield Reply(response.status, response.reason or "", _lower(response), None), pieces()
        finally:
            response.close()

    def _open(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None,
        body: bytes | Readable | None,
        timeout_s: float,
        *,
        deadline: bool,
    ) -> BaseHTTPResponse:
        from urllib3 import Timeout
        from urllib3.exceptions import ProtocolError

        from windlass.net.http_connection import StaleConnection, root_cause

        timeout = Timeout(total=timeout_s) if deadline else Timeout(connect=timeout_s, read=timeout_s)
        manager = self._manager(url, deadline)
        options: dict[str, Any] = {"redirect": False, "preload_content": False, "decode_content": False}
        while True:
            try:
                return manager.urlopen(
                    method, url, body=body, headers={"User-Agent": self._agent, **(headers or {})}, timeout=timeout,
                    **options,
                )  # fmt: skip
            except ProtocolError as error:
                again = isinstance(root_cause(error), StaleConnection) and (body is None or isinstance(body, bytes))
                if not again:  # each stale connection is dropped, so this ends
                    raise

    def _manager(self, url: str, deadline: bool) -> PoolManager:
        from windlass.net.http_connection import make_manager

        where = urlsplit(url)
        if where.scheme not in {"http", "https"} or not where.hostname or where.username is not None:
            raise ValueError(f"{where.scheme}://{where.netloc.rpartition('@')[2]} is not the address of a web server")
        proxy = proxy_for(where.scheme, where.hostname) if self._proxies else None
        key = (where.scheme, proxy, deadline)
        with self._lock:
            if key not in self._managers:
                options: dict[str, Any] = {"maxsize": self._connections_max}
                if where.scheme == "https":  # one context for all connections: to make one takes a while
                    self._context = self._context or ssl.create_default_context()
                    options["ssl_context"] = self._context
                self._managers[key] = make_manager(proxy, deadline=deadline, **options)
            return self._managers[key]


def proxy_for(scheme: str, host: str) -> str | None:
    """HOST:PORT of the proxy that the environment names for this host (HTTP_PROXY, HTTPS_PROXY, NO_PROXY), or None.
    This machine is never reached through a proxy, even if NO_PROXY does not name it."""
    proxy = getproxies().get(scheme)
    if not proxy or host in LOOPBACK or proxy_bypass(host):
        return None
    return urlsplit(proxy if "://" in proxy else f"//{proxy}").netloc.rpartition("@")[2] or None


@contextmanager
def _translated(url: str, timeout_s: float) -> Iterator[None]:
    """Raise our errors instead of those of urllib3, of TLS and of the operating system."""
    from urllib3 import exceptions

    from windlass.net.http_connection import BodyInterrupted, root_cause

    try:
        yield
    except (exceptions.HTTPError, OSError, ValueError) as error:
        host, cause = urlsplit(url).hostname or "", root_cause(error)
        if isinstance(cause, BodyInterrupted):
            raise Interrupted(host, str(cause)) from None
        not_connected = exceptions.NewConnectionError, exceptions.ConnectTimeoutError, exceptions.ProxyError
        if isinstance(error, not_connected) or isinstance(cause, ssl.SSLCertVerificationError):
            raise ConnectFailed(host, why_broken(cause)) from None
        if isinstance(cause, TimeoutError | exceptions.TimeoutError):
            raise TimedOut(host, f"no answer within {timeout_s:g} s") from None
        raise Unreachable(host, why_broken(cause)) from None


def _lower(response: BaseHTTPResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in response.headers.items()}


def _read(response: BaseHTTPResponse, limit: int) -> bytearray | None:
    """The body, or None if it is longer than `limit`. urllib3 raises an error if it ends too early."""
    if (response.length_remaining or 0) > limit:
        return None
    content = bytearray()
    while piece := response.read1(CHUNK_BYTES):
        content += piece
        if len(content) > limit:
            return None
    return content
