"""A server on a real socket, in this process; what is between it and its clients can be broken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.kit.world import KEY

from windlass import Engine
from windlass.contracts.session.client.remote import Remote, connect
from windlass.serve import open_sessions


class Wire:
    """A TCP relay in front of a server: `cut` breaks every connection at once, `hold` stops what flows to clients."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._open: set[asyncio.StreamWriter] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._server: asyncio.Server | None = None
        self.accepting = True

    async def __aenter__(self) -> Wire:
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: Any) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        for writer in list(self._open):
            writer.transport.abort()

    def hold(self) -> None:
        self._flowing.clear()

    def let_go(self) -> None:
        self._flowing.set()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.accepting:
            writer.transport.abort()
            return
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        self._open |= {writer, back}
        await asyncio.gather(self._pump(reader, back, False), self._pump(there, writer, True), return_exceptions=True)
        for one in (writer, back):
            self._open.discard(one)
            one.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, to_client: bool) -> None:
        while data := await reader.read(65536):
            if to_client:
                await self._flowing.wait()
            writer.write(data)
            await writer.drain()
        writer.transport.abort()


@pytest.fixture
def mode() -> str:
    """Pooler or not is the engine's business; here it is direct."""
    return "direct"


@pytest.fixture
async def server(live_engine: Engine) -> AsyncIterator[str]:
    async with open_sessions(live_engine, grpc="127.0.0.1:0", api_key=KEY) as url:
        yield url


@pytest.fixture
async def wire(server: str) -> AsyncIterator[Wire]:
    async with Wire(int(server.rsplit(":", 1)[1])) as wire:
        yield wire


@pytest.fixture
async def remote(wire: Wire) -> AsyncIterator[Remote]:
    async with AsyncExitStack() as stack:
        yield await stack.enter_async_context(connect(wire.url, KEY))
