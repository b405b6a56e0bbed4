"""urllib3's connections with a deadline for the whole answer, and with two kinds of failure distinguished.

Imported at the first request: urllib3 takes time to import, and many programs never send one.
"""

from __future__ import annotations

import http.client
import io
import select
import socket
import ssl
import time
from contextlib import suppress
from typing import Any

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.response import HTTPResponse

CHUNK_BYTES = 64 * 1024


class StaleConnection(http.client.HTTPException):
    """The server closed a kept connection before it answered: the request may be sent again on a new one."""


class BodyInterrupted(http.client.HTTPException):
    """The server closed the connection while the body was sent, and its answer could not be read."""


class PlainConnection(HTTPConnection):
    """A connection whose answer must be complete within its timeout. urllib3 applies a timeout to each read only, so
    a server that sends a byte now and then would hold a client forever."""

    _used = _interrupted = False
    _parsing: http.client.HTTPResponse | None = None

    def connect(self) -> None:
        self._used = False
        self.response_class = http.client.HTTPResponse  # for the answer of a proxy to CONNECT
        super().connect()

    def request(self, method: str, url: str, body: Any = None, *args: Any, **options: Any) -> None:
        self._interrupted = False
        self._reply_wait_s = getattr(body, "reply_wait_s", 0.0)
        try:
            super().request(method, url, body, *args, **options)
        except (BrokenPipeError, ConnectionResetError):
            self._interrupted = True
            raise  # urllib3 still reads the answer, which may contain the reason

    def endheaders(self, *args: Any, **options: Any) -> None:
        super().endheaders(*args, **options)
        # A TLS socket is also readable when the server sent session tickets, which are no answer.
        waits = self._reply_wait_s > 0 and not isinstance(self.sock, ssl.SSLSocket)
        if waits and select.select([self.sock], [], [], self._reply_wait_s)[0]:
            raise BrokenPipeError("there is an answer before the body")

    def getresponse(self) -> HTTPResponse:  # type: ignore[override]
        """urllib3 has set `timeout` to what is left of the total."""
        until = None if self.timeout is None else time.monotonic() + self.timeout

        def parse(sock: socket.socket, *args: Any, **options: Any) -> http.client.HTTPResponse:
            self._parsing = http.client.HTTPResponse(DeadlineReader(sock, until), *args, **options)  # type: ignore[arg-type]
            return self._parsing

        self.response_class = parse  # type: ignore[assignment]
        try:
            response = super().getresponse()
        except (OSError, http.client.HTTPException) as error:
            if self._parsing is not None:  # http.client does not close an answer that broke off
                with suppress(OSError):
                    self._parsing.close()
            if self._interrupted:
                raise BodyInterrupted("the connection was closed before all was sent") from None
            if self._used and isinstance(error, ConnectionError):  # RemoteDisconnected is one
                raise StaleConnection(str(error)) from None
            raise
        finally:
            self._parsing = None
        self._used = True
        return response


class TlsConnection(PlainConnection, HTTPSConnection):
    """The same, with TLS."""


class PlainPool(urllib3.HTTPConnectionPool):
    ConnectionCls = PlainConnection


class TlsPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = TlsConnection


class DeadlineReader(io.RawIOBase):
    """Reads a socket with a deadline for all reads together. It takes the place of the socket in http.client."""

    def __init__(self, sock: socket.socket, until: float | None) -> None:
        self._sock, self._until = sock, until
        self._raw = sock.makefile("rb", buffering=0)  # keeps the socket open when http.client closes it

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if self._until is not None:
            left_s = self._until - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("timed out")
            self._sock.settimeout(left_s)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def make_manager(proxy: str | None, *, deadline: bool, **options: Any) -> urllib3.PoolManager:
    """Pools of connections, through `proxy` (HOST:PORT) if there is one. With `deadline`, a timeout is for the whole
    answer; otherwise, for each read of it."""
    options |= {"blocksize": CHUNK_BYTES, "retries": False}
    manager = urllib3.PoolManager(**options) if proxy is None else urllib3.ProxyManager(f"http://{proxy}", **options)
    if deadline:
        manager.pool_classes_by_scheme = {"http": PlainPool, "https": TlsPool}
    return manager


def root_cause(error: BaseException) -> BaseException:
    """The error of the operating system, of TLS or of the protocol that urllib3 wrapped."""
    while isinstance(error, urllib3.exceptions.HTTPError):
        inner = [error.__cause__, getattr(error, "original_error", None), *error.args]
        found = next((one for one in inner if isinstance(one, BaseException)), None)
        if found is None:
            break
        error = found
    return error
