"""Many connections with TLS on the event loop of servers, some of which never finish their handshake."""

from __future__ import annotations

import asyncio
import ssl
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import uvloop
from cryptography.hazmat.primitives.serialization import Encoding
from tests.kit.work import SOON_S

from windlass.contracts.lease.tls.certificates import Files, issue_server, make_authority, write
from windlass.net.asgi import respond
from windlass.net.server.limits import ConnectionLimits
from windlass.net.server.server import Limits, ServerTls, listening
from windlass.net.server.tls import reloading, server_context


class Hello:
    def __init__(self) -> None:
        self.state = SimpleNamespace(closing=asyncio.Event())

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await respond(send, 200, b"hello", [])


async def served(files: Files, trust: ssl.SSLContext) -> None:
    guard = ServerTls(reloading(files, lambda: server_context(files.certificate, files.key, setting="http")))
    limits = Limits(ConnectionLimits(connections=40, address_connections=20))
    async with listening(Hello(), "127.0.0.1", 0, guard, limits=limits) as url:
        port = int(url.rpartition(":")[2])
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(60)]
        for _ in range(40):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust)
            writer.write(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            assert (await reader.read()).endswith(b"hello")
            writer.close()
        for _, writer in silent:
            writer.close()


def test_who_connects_and_falls_silent_keeps_nobody_from_shaking_hands(tmp_path: Path) -> None:
    """On uvloop, which reads from a connection before anybody could begin its handshake."""
    now, files = datetime.now(UTC), Files(tmp_path / "server.pem", tmp_path / "server.key")
    authority = make_authority(now, 1)
    write(issue_server(authority, ["127.0.0.1"], now, 1), files)
    trust = ssl.create_default_context(cadata=authority.certificate.public_bytes(Encoding.PEM).decode())

    async def main() -> None:
        async with asyncio.timeout(SOON_S):
            await served(files, trust)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
    asyncio.run(main())
