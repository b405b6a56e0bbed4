"""A minimal HTTP client, and servers in separate processes, so that a measured server does not share its processor time
with the client code around the requests."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from bench import process
from windlass.cli.process import freeze_heap

SENDERS = 64


class Answer(NamedTuple):
    status: int
    body: bytes


class Sender(asyncio.Protocol):
    """A persistent connection that sends one request at a time."""

    def __init__(self) -> None:
        self._waiting: asyncio.Future[Answer] | None = None
        self._buffer = b""
        self._transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if found and self._waiting is not None:
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            if len(rest) >= length:
                self._buffer = b""
                self._waiting.set_result(Answer(int(head[9:12]), rest))
                self._waiting = None

    def connection_lost(self, error: Exception | None) -> None:
        if self._waiting is not None:
            self._waiting.set_exception(error or ConnectionError("closed"))

    async def send(self, request: bytes) -> Answer:
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._waiting

    def close(self) -> None:
        self._transport.close()


@asynccontextmanager
async def senders(port: int, context: ssl.SSLContext | None = None) -> AsyncIterator[list[Sender]]:
    loop = asyncio.get_running_loop()
    made = [(await loop.create_connection(Sender, "127.0.0.1", port, ssl=context))[1] for _ in range(SENDERS)]
    try:
        yield made
    finally:
        for sender in made:
            sender.close()


def cpu_s(pid: int, database_pid: int) -> float:
    """Processor seconds of a server, and of its database if that is not 0."""
    return process.cpu_s(pid) + (process.cpu_s(database_pid) if database_pid else 0.0)


async def serve_forever(url: str) -> None:
    """In the server's process: print the port of this URL for `serving`, then wait."""
    print(urlsplit(url).port, flush=True)
    freeze_heap()
    await asyncio.Event().wait()


@asynccontextmanager
async def serving(module: str, *arguments: str) -> AsyncIterator[tuple[int, int]]:
    """Start a server in a separate process. Yields its port, which it prints in its first line, and its pid."""
    command = [sys.executable, "-m", module, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            yield int(await asyncio.to_thread(child.stdout.readline)), child.pid
        finally:
            child.terminate()
            await asyncio.to_thread(child.wait)
