"""A function at a URL, as somebody might write it: keeps what it is called with, and answers as a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import msgspec

from windlass.net.server.server import listening


class Function:
    """`answers` are statuses and headers for the next calls; then 202."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        self.answers: list[tuple[int, dict[str, str]]] = []
        self.url = ""
        self.on_call: Callable[[dict[str, Any]], None] = lambda _: None
        self.state = SimpleNamespace(closing=asyncio.Event())

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body, more = b"", True
        while more:
            part = await receive()
            body, more = body + part.get("body", b""), part.get("more_body", False)
        self.calls.append(msgspec.json.decode(body))
        self.bodies.append(body)
        self.on_call(self.calls[-1])
        self.headers.append({name.decode(): value.decode() for name, value in scope["headers"]})
        status, headers = self.answers.pop(0) if self.answers else (202, {})
        told = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0"), *told]})
        await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def function() -> AsyncIterator[Function]:
    made = Function()
    async with listening(made, "127.0.0.1", 0) as url:
        made.url = url
        yield made
