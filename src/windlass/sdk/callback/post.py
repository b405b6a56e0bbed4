"""Calls to the engine: one at a time on a connection that is kept, by the standard library, in a few threads.

Threads, because the event loop of the service may be blocked by a handler just when a heartbeat is due. Redirects are
not followed: a token is for the engine that gave it. Every call may be repeated, so that a connection that was closed
while it rested costs nothing but another try.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from queue import SimpleQueue
from urllib.parse import urlsplit

import msgspec

from windlass.core.error import why_broken
from windlass.sdk.resting import Resting, Server
from windlass.wire.retry_after import retry_after_s

ANSWER_MAX_BYTES = 1024 * 1024
RESTING_MAX = 8  # connections to one engine
RETRY_AFTER_MAX_S = 300.0


class Unreachable(Exception):
    """Nobody answered."""


class Reply(msgspec.Struct, frozen=True):
    status: int
    body: bytes
    retry_after_s: float


class Poster:
    """Connections to engines, most often to one. Used from an event loop, which never waits for the network.

    The threads are our own: those of `concurrent.futures` take nothing more once the program begins to end, which is
    when the last results are told.
    """

    def __init__(
        self, threads: int, ssl_context: ssl.SSLContext | None = None, *, answer_max_bytes: int = ANSWER_MAX_BYTES
    ) -> None:
        self._ssl_context, self._answer_max_bytes = ssl_context, answer_max_bytes
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name="windlass-callback", daemon=True) for _ in range(threads)
        ]
        for thread in self._threads:
            thread.start()
        self._resting = Resting(RESTING_MAX)

    def trust(self, context: ssl.SSLContext) -> None:
        """Who we are and whom we believe, from the next connection on."""
        self._ssl_context = context

    async def post(
        self, url: str, headers: Mapping[str, str], body: bytes, timeout_s: float, *, method: str = "POST"
    ) -> Reply:
        """Raises Unreachable."""
        done: Future[Reply] = Future()

        def job() -> None:
            try:
                done.set_result(self._post(url, dict(headers), body, timeout_s, method))
            except BaseException as error:
                done.set_exception(error)

        self._jobs.put(job)
        return await asyncio.shield(asyncio.wrap_future(done))

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def close(self) -> None:
        """Calls that are under way come to their end, and nobody waits for them."""
        for _ in self._threads:
            self._jobs.put(None)
        self._resting.close()

    def _post(self, url: str, headers: dict[str, str], body: bytes, timeout_s: float, method: str) -> Reply:
        where = urlsplit(url)
        key, target = (where.scheme, where.netloc), where.path + (f"?{where.query}" if where.query else "")
        rested = self._resting.take(key)
        if rested is not None:
            try:
                return self._exchange(key, rested, method, target, headers, body, timeout_s)
            except (OSError, HTTPException) as error:
                rested.close()
                if isinstance(error, TimeoutError):
                    raise Unreachable(f"no answer within {timeout_s:g} s") from None
        connection = self._connection(*key)
        try:
            return self._exchange(key, connection, method, target, headers, body, timeout_s)
        except (OSError, HTTPException, ValueError) as error:
            connection.close()
            raise Unreachable(why_broken(error)) from None

    def _exchange(
        self,
        key: Server,
        connection: HTTPConnection,
        method: str,
        target: str,
        headers: dict[str, str],
        body: bytes,
        timeout_s: float,
    ) -> Reply:
        connection.timeout = timeout_s
        if connection.sock is not None:
            connection.sock.settimeout(timeout_s)
        connection.request(method, target, body or None, headers)
        response = connection.getresponse()
        content = response.read(self._answer_max_bytes)
        if response.isclosed() and not response.will_close:
            self._resting.keep(key, connection)
        else:
            connection.close()
        asked_s = retry_after_s(response.getheader("Retry-After"), response.getheader("Date"), most=RETRY_AFTER_MAX_S)
        return Reply(response.status, content, asked_s)

    def _connection(self, scheme: str, netloc: str) -> HTTPConnection:
        if scheme == "https":
            if self._ssl_context is None:
                self._ssl_context = ssl.create_default_context()
            return HTTPSConnection(netloc, context=self._ssl_context)
        return HTTPConnection(netloc)
