"""Serves an ASGI application in the event loop of its caller, so that API and engine share one process.

Binds first, so that an address in use is an error at once. Closes gracefully: requests are finished, streams end, then
the sockets close.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, NamedTuple, Protocol

import uvicorn
import uvicorn.lifespan.off  # it imports this when it starts to serve

from windlass.errors import Invalid, why_broken
from windlass.net.memory import Memory
from windlass.net.server.limits import ConnectionLimiter, ConnectionLimits, LimitedProtocol, TlsAcceptor

GRACE_S = 10
KEEP_ALIVE_S, GUARDED_KEEP_ALIVE_S = 5, 75  # a new connection with client certificates is expensive
BACKLOG = 2048


Application = Callable[[Any, Any, Any], Awaitable[None]]


class AsgiApplication(Protocol):
    """An ASGI application. The server sets `state.closing` when streams have to end."""

    @property
    def state(self) -> Any: ...

    def __call__(self, scope: Any, receive: Any, send: Any) -> Awaitable[None]: ...


class PathRouter:
    """One port for our API and the HTTP contracts: a path goes to the application with its prefix, or to the API."""

    def __init__(self, api: AsgiApplication, *mounts: tuple[str | tuple[str, ...], Application]) -> None:
        self._api, self._mounts, self.state = api, mounts, api.state

    def __call__(self, scope: Any, receive: Any, send: Any) -> Awaitable[None]:
        if scope["type"] == "http":
            for prefixes, application in self._mounts:
                if scope["path"].startswith(prefixes):
                    return application(scope, receive, send)
        return self._api(scope, receive, send)


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the command that started the server."""
        yield


class TlsConfig(Protocol):
    """TLS of a server, with or without client certificates: see `contracts.lease.tls.server`."""

    @property
    def context(self) -> ssl.SSLContext: ...
    @property
    def protocol(self) -> type[LimitedProtocol]: ...


class ServerTls(NamedTuple):
    """TLS without client certificates."""

    context: ssl.SSLContext
    protocol: type[LimitedProtocol] = LimitedProtocol


class Limits(NamedTuple):
    """What callers may use of this process. All of its servers share `memory`."""

    bounds: ConnectionLimits = ConnectionLimits()
    memory: Memory | None = None


USUAL_LIMITS = Limits()


class _MemoryAccounting:
    """Releases the memory of each request after its answer."""

    def __init__(self, app: AsgiApplication, memory: Memory) -> None:
        self._app, self._memory = app, memory

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        with self._memory.request():
            await self._app(scope, receive, send)


@asynccontextmanager
async def listening(
    app: AsgiApplication, host: str, port: int, guard: TlsConfig | None = None, *, limits: Limits = USUAL_LIMITS
) -> AsyncIterator[str]:
    """Serve until the block ends; yields the URL. Port 0 takes any free port. `guard` adds TLS."""
    bound = bind(host, port)
    limiter = ConnectionLimiter(limits.bounds)
    protocol = LimitedProtocol if guard is None else guard.protocol
    config = uvicorn.Config(
        _MemoryAccounting(app, limits.memory or Memory()), interface="asgi3", lifespan="off", log_config=None,
        access_log=False, server_header=False, backlog=BACKLOG, timeout_graceful_shutdown=GRACE_S, ws="none",
        proxy_headers=False, headers=[("x-content-type-options", "nosniff")],
        http=partial(protocol, limiter=limiter),  # type: ignore[arg-type]
        timeout_keep_alive=KEEP_ALIVE_S if guard is None else GUARDED_KEEP_ALIVE_S,
    )  # fmt: skip
    server = _Server(config)
    accepting: asyncio.Task[None] | None = None
    with limiter.open():
        serving = asyncio.create_task(server.serve(sockets=[bound] if guard is None else []))
        try:
            while not server.started and not serving.done():  # noqa: ASYNC110 (it has no event for that)
                await asyncio.sleep(0.005)
            if serving.done():
                await serving
            if guard is not None:
                bound.listen(BACKLOG)
                made = partial(protocol, config, server.server_state, {}, limiter=limiter)
                accepting = asyncio.create_task(TlsAcceptor(limiter, guard.context, made).accept(bound))
            yield _url(bound, "http" if guard is None else "https")
        finally:
            if accepting is not None:
                accepting.cancel()
                await asyncio.gather(accepting, return_exceptions=True)
                bound.close()
            app.state.closing.set()
            server.should_exit = True
            await _ended(server, serving)
            bound.close()


async def _ended(server: uvicorn.Server, serving: asyncio.Task[None]) -> None:
    """Wait until open requests are finished. If cancelled, end them at once."""
    try:
        await asyncio.shield(serving)
    except asyncio.CancelledError:
        server.force_exit = True
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        raise


def bind(host: str, port: int) -> socket.socket:
    bound: socket.socket | None = None
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        bound = socket.socket(family, kind, protocol)  # without its protocol, asyncio would leave Nagle's delay on
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.setblocking(False)
    except (OSError, UnicodeError, OverflowError) as error:
        if bound is not None:
            bound.close()
        reason = f"{why_broken(error)}; choose another address"
        raise Invalid(f"cannot listen on {host}:{port}: {reason}", field="http") from None
    return bound


def _url(bound: socket.socket, scheme: str) -> str:
    host, port = bound.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if bound.family == socket.AF_INET6 else f"{scheme}://{host}:{port}"
