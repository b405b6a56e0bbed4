"""Limits for callers without a credential yet: connections, the size of a header, the time to send a request.

uvicorn's protocol on httptools has no such limits. Each limit that is reached is logged, at most once in ten seconds.
When there are too many connections, the oldest idle one is closed in favour of the new one, so that no caller can keep
others out with connections that it does not use.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, Protocol

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from windlass.net.file_limits import connections_room
from windlass.net.log_throttle import Throttle

log = logging.getLogger("windlass.limits")

SWEEP_S = 1.0
LINGER_S, LINGER_BYTES = 5.0, 64 * 1024 * 1024  # to read and discard the rest of a request that was refused
ACCEPT_AGAIN_S = 1.0
BODY_BYTES_PER_S = 16 * 1024
STALLED_S = 300.0  # a caller that reads nothing of its answer for so long is disconnected


class ConnectionLimits(NamedTuple):
    """See the settings of the same names."""

    header_bytes: int = 32 * 1024
    header_count: int = 100
    request_s: float = 20.0
    connections: int = 4096
    address_connections: int = 1024


class LimitedConnection(Protocol):
    """A connection as the limiter sees it."""

    due_s: float | None  # when the request that it sends must have arrived

    @property
    def busy(self) -> bool: ...
    @property
    def reading_paused(self) -> bool: ...
    def refuse(self, refusal: Refusal) -> None: ...


class Refusal(NamedTuple):
    """An answer to a request that reached a limit. `code` and `title` are stable; `setting` raises the limit."""

    status: str
    code: str
    title: str
    setting: str

    def answer(self) -> bytes:
        status = int(self.status[:3])
        problem = {"type": "about:blank", "title": self.title, "status": status, "code": self.code,
                   "detail": self.title}  # fmt: skip
        content = msgspec.json.encode(problem)
        lines = [
            f"HTTP/1.1 {self.status}", "content-type: application/problem+json", f"content-length: {len(content)}",
            "cache-control: no-store", "x-content-type-options: nosniff", "connection: close",
        ]  # fmt: skip
        if status == 503:
            lines.append("retry-after: 1")
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


HEADER_TOO_LARGE = Refusal(
    "431 Request Header Fields Too Large", "header_too_large", "The header of the request is too large.",
    "http_header_bytes, http_header_count",
)  # fmt: skip
TOO_SLOW = Refusal("408 Request Timeout", "request_timeout", "The request did not arrive in time.", "http_request_s")
TOO_MANY = Refusal(
    "503 Service Unavailable", "too_many_connections", "There are too many connections.", "http_connections"
)
TOO_MANY_OF_ADDRESS = Refusal(
    "503 Service Unavailable", "too_many_connections", "There are too many connections from this address.",
    "http_address_connections",
)  # fmt: skip
NO_HTTP = Refusal("400 Bad Request", "malformed", "This is not HTTP/1.1.", "")


class ConnectionLimiter:
    """Counts and limits the connections of one port."""

    def __init__(self, bounds: ConnectionLimits) -> None:
        self.bounds = bounds._replace(connections=connections_room(bounds.connections))
        self._by_address: dict[str, dict[LimitedConnection, None]] = {}
        self._count = 0
        self._throttle = Throttle(log)
        self._sweeping: asyncio.TimerHandle | None = None

    @contextmanager
    def open(self) -> Iterator[None]:
        """Limit the connections until the block ends; then close the idle ones."""
        self._sweep()
        try:
            yield
        finally:
            if self._sweeping is not None:
                self._sweeping.cancel()
            for connection in [one for same in self._by_address.values() for one in same]:
                if not connection.busy:
                    connection.refuse(TOO_MANY)

    def enter(self, connection: LimitedConnection, address: str) -> bool:
        """Whether there is room for the connection. An idle one is closed to make room."""
        same = self._by_address.setdefault(address, {})
        if len(same) >= min(self.bounds.address_connections, max(1, self.bounds.connections * 3 // 4)):
            if not self._make_room(same, TOO_MANY_OF_ADDRESS, address):
                return False
        elif self._count >= self.bounds.connections:
            most = max(self._by_address.values(), key=len)
            if not self._make_room(most, TOO_MANY, address):
                if not same:
                    del self._by_address[address]
                return False
        self._by_address.setdefault(address, same)[connection] = None
        self._count += 1
        return True

    def _make_room(self, open_: dict[LimitedConnection, None], refusal: Refusal, address: str) -> bool:
        idle = [one for one in open_ if not one.busy]
        oldest = next((one for one in idle if one.due_s is not None), None) or next(iter(idle), None)
        self.warn(refusal, f"{len(open_)} connections, the newest from {address}")
        if oldest is None:
            return False
        oldest.refuse(refusal)
        return True

    def leave(self, connection: LimitedConnection, address: str) -> None:
        same = self._by_address.get(address, {})
        if connection not in same:
            return
        del same[connection]
        self._count -= 1
        if not same:
            self._by_address.pop(address, None)

    def warn(self, refusal: Refusal, detail: str) -> None:
        setting = f" (raise {refusal.setting} if callers are honest)" if refusal.setting else ""
        self._throttle.warn(refusal.title.rstrip("."), detail + setting)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        for address, same in list(self._by_address.items()):
            for connection in list(same):
                if connection.due_s is None:
                    continue
                if connection.reading_paused:  # by the server: this time does not count
                    connection.due_s += SWEEP_S
                elif connection.due_s < now_s:
                    self.warn(TOO_SLOW, f"a connection from {address} is closed")
                    connection.refuse(TOO_SLOW)
        self._sweeping = loop.call_later(SWEEP_S, self._sweep)


def address_of(peer: object) -> str:
    """What counts as one caller: an IPv4 address, or the /64 network that one subscriber of IPv6 has."""
    host = str(peer[0]) if isinstance(peer, tuple) else "local"
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host.partition("%")[0])
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, 64), strict=False))


class TlsAcceptor:
    """Accepts the connections of a port with TLS, and counts them from the start of their handshake. An asyncio server
    with TLS reports a connection only after its handshake."""

    def __init__(
        self, limiter: ConnectionLimiter, context: ssl.SSLContext, make: Callable[[], asyncio.Protocol]
    ) -> None:
        self._limiter, self._context, self._make = limiter, context, make
        self._in_flight: set[asyncio.Task[None]] = set()

    async def accept(self, listening: socket.socket) -> None:
        """Accept connections until this is cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    connection, _ = await loop.sock_accept(listening)
                except OSError as error:  # no file descriptors are left, or the caller disconnected
                    log.warning("a connection cannot be accepted: %s", error.strerror)
                    await asyncio.sleep(ACCEPT_AGAIN_S)
                    continue
                task = loop.create_task(self._admit(connection))
                self._in_flight.add(task)
                task.add_done_callback(self._in_flight.discard)
        finally:
            for task in self._in_flight:
                task.cancel()

    async def _admit(self, connection: socket.socket) -> None:
        loop, seconds = asyncio.get_running_loop(), self._limiter.bounds.request_s
        pending, address = _Pending(connection, loop.time() + seconds), address_of(connection.getpeername())
        if not self._limiter.enter(pending, address):
            connection.close()
            return
        try:
            await loop.connect_accepted_socket(self._make, connection, ssl=self._context, ssl_handshake_timeout=seconds)
        except OSError:  # the caller disconnected, was too slow, or has no certificate
            connection.close()
        finally:
            self._limiter.leave(pending, address)


class _Pending:
    """A connection during its handshake."""

    busy = reading_paused = False

    def __init__(self, connection: socket.socket, due_s: float) -> None:
        self._connection = connection
        self.due_s: float | None = due_s

    def refuse(self, _refusal: Refusal) -> None:
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)


class LimitedProtocol(HttpToolsProtocol):
    """An HTTP connection with limits."""

    def __init__(self, *arguments: Any, limiter: ConnectionLimiter, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._limiter, self._bounds = limiter, limiter.bounds
        self._address = ""
        self._frame_bytes = self._header_count = self._late_bytes = 0
        self._header_too_large = self._refused = self._in_body = False
        self._stall_timer: asyncio.TimerHandle | None = None
        self.due_s: float | None = self.loop.time() + limiter.bounds.request_s

    # ----------------------------------------------------------------------------------------- as the limiter sees it

    @property
    def busy(self) -> bool:
        """Whether one of its requests is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def reading_paused(self) -> bool:
        return self.flow is not None and self.flow.read_paused

    def refuse(self, refusal: Refusal) -> None:
        """Close the connection, with an answer if it has begun a request."""
        self._limiter.leave(self, self._address)
        if self._refused:
            self.transport.abort()
            return
        self._refused = True
        answered = self.busy or self._in_body
        if self._frame_bytes and not answered:
            self.transport.write(refusal.answer())
        if answered or self.scheme == "https":  # a graceful end of TLS would wait for the caller
            self.transport.abort()
        else:
            self.transport.close()

    # ----------------------------------------------------------------------------------------- life

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._address = address_of(transport.get_extra_info("peername"))
        if not self._limiter.enter(self, self._address):
            self._refused = True
            self.connections.discard(self)
            transport.write(TOO_MANY.answer())
            transport.close()

    def pause_writing(self) -> None:
        """More of an answer waits to be read than one connection may keep."""
        super().pause_writing()
        if self._stall_timer is None:
            self._stall_timer = self.loop.call_later(STALLED_S, self._abort_stalled)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_stall_timer()

    def _stop_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _abort_stalled(self) -> None:
        self._stall_timer = None
        log.warning("a connection from %s is closed: it read nothing for %g s", self._address, STALLED_S)
        self.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._stop_stall_timer()
        self._limiter.leave(self, self._address)
        super().connection_lost(error)

    def data_received(self, data: bytes) -> None:
        if self._refused or self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        if self.due_s is None and not self.busy:
            self.due_s = self.loop.time() + self._bounds.request_s
        self._frame_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # answered like any other request
        except httptools.HttpParserError:
            self._reject(HEADER_TOO_LARGE if self._header_too_large else NO_HTTP)
            return
        if self._frame_bytes > self._bounds.header_bytes:
            self._reject(HEADER_TOO_LARGE)

    def _reject(self, refusal: Refusal) -> None:
        """Answer, then discard what still arrives for a moment, so that the answer goes out before the end."""
        if self._refused or self.transport.is_closing():
            return
        self._limiter.warn(refusal, f"a request from {self._address} is refused")
        if self.busy or self._in_body:
            self.transport.abort()
            return
        self._refused = True
        self.transport.write(refusal.answer())
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.due_s = self.loop.time() + LINGER_S

    # ----------------------------------------------------------------------------------------- callbacks of the parser

    def on_message_begin(self) -> None:
        self._header_count = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_count += 1
        if self._header_count > self._bounds.header_count:
            self._header_too_large = True
            raise ValueError("too many headers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._frame_bytes > self._bounds.header_bytes:  # these may include a part of the body
            size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if size > self._bounds.header_bytes:
                self._header_too_large = True
                raise ValueError("the header is too large")
        self._frame_bytes, self._in_body = 0, True
        self.due_s = self.loop.time() + self._bounds.request_s
        super().on_headers_complete()

    def on_chunk_header(self) -> None:
        self._frame_bytes = 0

    def on_body(self, body: bytes) -> None:
        self._frame_bytes = 0
        if self.due_s is not None:
            self.due_s += len(body) / BODY_BYTES_PER_S
        if self.cycle.response_complete:
            self._late_bytes += len(body)
            if self._late_bytes > LINGER_BYTES:
                self.transport.abort()
            return
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._frame_bytes, self._in_body, self.due_s = 0, False, None
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._late_bytes = 0
        if self.due_s is not None:  # the request was answered before all of it arrived
            self.due_s = min(self.due_s, self.loop.time() + LINGER_S)
        super().on_response_complete()
