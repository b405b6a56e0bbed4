"""HTTP for programs that live for one task: by the standard library, in bounded time and memory, for many threads.

Connections are kept where nothing was left unread. Redirects are the caller's business, since only the caller knows
whether what it sends is meant for others. A failure that may pass is `Transient`.
"""

from __future__ import annotations

import io
import select
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, Protocol
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import msgspec

from windlass.sdk.machine.patience import Transient
from windlass.sdk.resting import Resting, Server
from windlass.wire.retry_after import retry_after_s

ANSWER_MAX_BYTES = 64 * 1024
CHUNK_BYTES = 64 * 1024
RETRY_AFTER_MAX_S = 30.0
RESTING_MAX = 100
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
PASSING = frozenset({408, 425, 429})  # with all that begin with 5


class Readable(Protocol):
    """A body that is read piece by piece."""

    def read(self, size: int = -1, /) -> bytes: ...


class Reply(msgspec.Struct, frozen=True):
    """`body` is None when it had more bytes than the caller wanted; header names are in lower case."""

    status: int
    reason: str
    headers: Mapping[str, str]
    body: bytearray | None

    @property
    def line(self) -> str:
        return f"{self.status} {self.reason}".strip()

    @property
    def passing(self) -> bool:
        """Whether the same request may be answered otherwise later."""
        return self.status in PASSING or self.status >= 500

    @property
    def retry_after_s(self) -> float:
        return retry_after_s(self.headers.get("retry-after"), self.headers.get("date"), most=RETRY_AFTER_MAX_S)


class Cut(Transient):
    """The other side hung up on a body. The next time, look for its answer to the headers first: it may be in it."""


class Client:
    """Connections to a few servers, shared by threads. `timeout_s` is for one answer, first byte to last."""

    def __init__(self, *, timeout_s: float = 30.0, agent: str = "windlass-machine") -> None:
        self.timeout_s = timeout_s
        self._agent = agent
        self._resting = Resting(RESTING_MAX)

    def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | Readable | None = None,
        limit: int = ANSWER_MAX_BYTES,
        timeout_s: float | None = None,
        look_first_s: float = 0.0,
    ) -> Reply:
        """Raises Transient when nobody answers, or not as HTTP wants it. A body to be read needs its Content-Length."""
        where = urlsplit(url)
        key, target = (where.scheme, where.netloc), (where.path or "/") + (f"?{where.query}" if where.query else "")
        if where.scheme == "http" and proxy_for("http", where.hostname or ""):
            target = url  # a proxy wants all of it
        sent = {"User-Agent": self._agent, **(headers or {})}
        patience = timeout_s or self.timeout_s
        rested = self._resting.take(key) if body is None or isinstance(body, bytes) else None
        if rested is not None:
            try:
                return self._exchange(key, rested, method, target, sent, body, limit, patience, look_first_s)
            except TimeoutError:
                raise Transient(f"{where.hostname}: no answer within {patience:g} s") from None
            except (OSError, HTTPException):  # it was closed while it rested
                pass
        try:
            return self._exchange(key, connect(*key), method, target, sent, body, limit, patience, look_first_s)
        except TimeoutError:
            raise Transient(f"{where.hostname}: no answer within {patience:g} s") from None
        except (OSError, HTTPException, ValueError) as error:
            raise Transient(f"{where.hostname}: {type(error).__name__}: {error}") from None

    def close(self) -> None:
        self._resting.close()

    def _exchange(
        self,
        key: Server,
        connection: HTTPConnection,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | Readable | None,
        limit: int,
        timeout_s: float,
        look_first_s: float,
    ) -> Reply:
        until = time.monotonic() + timeout_s
        kept = False
        try:
            response = _answer(connection, method, target, headers, body, until, look_first_s)
            with response:
                content = _read(response, limit)
                kept = content is not None and response.isclosed() and not response.will_close
            told = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, response.reason or "", told, content)
        finally:
            if kept:
                self._resting.keep(key, connection)
            else:
                connection.close()


def connect(scheme: str, netloc: str) -> HTTPConnection:
    if scheme not in {"http", "https"} or not netloc or "@" in netloc:
        raise ValueError(f"{scheme}://{netloc.rpartition('@')[2]} is no address of a web server")
    proxy = proxy_for(scheme, urlsplit(f"//{netloc}").hostname or "")
    kind = HTTPSConnection if scheme == "https" else HTTPConnection
    if proxy is None:
        return kind(netloc, blocksize=CHUNK_BYTES)
    connection = kind(proxy, blocksize=CHUNK_BYTES)
    if scheme == "https":
        connection.set_tunnel(netloc)
    return connection


def proxy_for(scheme: str, host: str) -> str | None:
    """HOST:PORT of the proxy that the environment names for this host (HTTP_PROXY, HTTPS_PROXY, NO_PROXY), if it does.
    This machine itself is never reached through one: nobody remembers to say so."""
    proxy = getproxies().get(scheme)
    if not proxy or host in LOOPBACK or proxy_bypass(host):
        return None
    return urlsplit(proxy if "://" in proxy else f"//{proxy}").netloc.rpartition("@")[2] or None


def _answer(
    connection: HTTPConnection,
    method: str,
    target: str,
    headers: Mapping[str, str],
    body: bytes | Readable | None,
    until: float,
    look_first_s: float,
) -> HTTPResponse:
    connection.timeout = _left(until)
    if connection.sock is not None:
        connection.sock.settimeout(connection.timeout)
    connection.response_class = partial(_hasty, until)  # type: ignore[assignment]
    broken: OSError | None = None
    small = body if isinstance(body, bytes) else None
    try:
        connection.request(method, target, small, dict(headers))
        if body is not None and small is None and not _speaks(connection.sock, look_first_s):
            connection.send(body)
    except (BrokenPipeError, ConnectionResetError) as error:
        broken = error  # who refuses a large body may say why before all of it was sent
    sock = connection.sock
    try:
        return connection.getresponse()
    except (OSError, HTTPException):
        if sock is not None:  # http.client forgets an answer that broke off, and its hold on the socket
            with suppress(OSError):
                socket.close(sock.detach())
        if broken is None:
            raise
        raise Cut(f"{broken.strerror}, before all was sent") from None


def _speaks(sock: socket.socket, seconds: float) -> bool:
    """Whether there is an answer already, although nothing but the headers was sent."""
    return seconds > 0 and bool(select.select([sock], [], [], seconds)[0])


def _hasty(until: float, sock: socket.socket, *args: Any, **options: Any) -> HTTPResponse:
    return HTTPResponse(_Hasty(sock, until), *args, **options)  # type: ignore[arg-type]


class _Hasty:
    """A socket whose answer must be there by some time, headers included, however slowly it comes."""

    def __init__(self, sock: socket.socket, until: float) -> None:
        self._sock, self._until = sock, until

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_HastyReader(self._sock, self._until))


class _HastyReader(io.RawIOBase):
    def __init__(self, sock: socket.socket, until: float) -> None:
        self._sock, self._until = sock, until
        self._raw = sock.makefile("rb", buffering=0)  # keeps the socket when http.client lets go of it

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(_left(self._until))
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def _left(until: float) -> float:
    """Seconds until then; raises TimeoutError if there are none."""
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _read(response: HTTPResponse, limit: int) -> bytearray | None:
    """All of it, or None if that is more than `limit`; http.client says nothing of a body that ends early."""
    expected = response.length
    if expected is not None and expected > limit:
        return None
    content = bytearray()
    while piece := response.read1(CHUNK_BYTES):
        content += piece
        if len(content) > limit:
            return None
    if expected is not None and len(content) < expected:
        raise HTTPException(f"the answer ended after {len(content)} of {expected} bytes")
    return content
