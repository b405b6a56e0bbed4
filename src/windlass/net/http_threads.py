"""The synchronous HTTP client for an event loop: requests run in a few threads of their own.

Threads, because the event loop of a service may be blocked by a handler just when a heartbeat is due. The threads of
`concurrent.futures` take no work once the interpreter begins to end, which is when the last results are reported.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from queue import SimpleQueue

from windlass.net.http import Client, Reply, Unreachable


class ThreadedClient:
    """A client whose requests are awaited; at most `threads` run at once."""

    def __init__(self, threads: int, context: ssl.SSLContext | None = None, *, answer_max_bytes: int) -> None:
        self._client = Client(connections_max=threads, context=context)
        self._answer_max_bytes = answer_max_bytes
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = [threading.Thread(target=self._work, name="windlass-http", daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def trust(self, context: ssl.SSLContext) -> None:
        """Use these certificates from the next request on."""
        self._client.trust(context)

    async def request(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes | None, timeout_s: float
    ) -> Reply:
        """Send one request. Raises Unreachable, also for an answer that is too long."""
        done: Future[Reply] = Future()

        def job() -> None:
            try:
                done.set_result(
                    self._client.request(
                        method, url, headers=headers, body=body, timeout_s=timeout_s, limit=self._answer_max_bytes
                    )
                )
            except BaseException as error:
                done.set_exception(error)

        self._jobs.put(job)
        reply = await asyncio.shield(asyncio.wrap_future(done))
        if reply.body is None:
            raise Unreachable("", f"the answer has more than {self._answer_max_bytes} bytes")
        return reply

    def close(self) -> None:
        """End the threads after the requests that were made before. Does not wait for them."""
        for _ in self._threads:
            self._jobs.put(None)
        self._client.close()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
        self._client.close()  # a request after close() may have kept its connection
