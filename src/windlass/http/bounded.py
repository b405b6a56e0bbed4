"""Bounds on what callers may do before it is known who they are: connections, the header of a request, its arrival.

uvicorn's protocol on httptools has no such bounds. A limit that is met is told in the log, at most once in ten seconds.
Where there are too many connections, the oldest on which nothing is done makes room for the new one, so that nobody
keeps others out by connecting and falling silent.
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

from windlass.wire.files import connections_room
from windlass.wire.throttle import Throttle

log = logging.getLogger("windlass.limits")

SWEEP_S = 1.0
LINGER_S, LINGER_BYTES = 5.0, 64 * 1024 * 1024  # for the rest of a request that was refused before it had arrived
ACCEPT_AGAIN_S = 1.0
BODY_BYTES_PER_S = 16 * 1024
STALLED_S = 300.0  # without reading anything of an answer


class Bounds(NamedTuple):
    """See the settings of the same names."""

    header_bytes: int = 32 * 1024
    header_count: int = 100
    request_s: float = 20.0
    connections: int = 4096
    address_connections: int = 1024


class Connected(Protocol):
    """A connection as the door sees it."""

    due_s: float | None  # when what it has begun to send must have arrived

    @property
    def at_work(self) -> bool: ...
    @property
    def held_up(self) -> bool: ...
    def turn_away(self, refusal: Refusal) -> None: ...


class Refusal(NamedTuple):
    """`code` and `title` are stable; `setting` is the one that an operator would raise."""

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


class Door:
    """All connections of one port."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds._replace(connections=connections_room(bounds.connections))
        self._by_address: dict[str, dict[Connected, None]] = {}
        self._count = 0
        self._throttle = Throttle(log)
        self._sweeping: asyncio.TimerHandle | None = None

    @contextmanager
    def open(self) -> Iterator[None]:
        """Look after the connections until the block ends; those that are left then are closed."""
        self._sweep()
        try:
            yield
        finally:
            if self._sweeping is not None:
                self._sweeping.cancel()
            for connection in [one for those in self._by_address.values() for one in those]:
                if not connection.at_work:
                    connection.turn_away(TOO_MANY)

    def enter(self, connection: Connected, address: str) -> bool:
        """Whether there is room for one more; if need be, another one makes it."""
        same = self._by_address.setdefault(address, {})
        if len(same) >= min(self.bounds.address_connections, max(1, self.bounds.connections * 3 // 4)):
            if not self._displaced(same, TOO_MANY_OF_ADDRESS, address):
                return False
        elif self._count >= self.bounds.connections:
            most = max(self._by_address.values(), key=len)
            if not self._displaced(most, TOO_MANY, address):
                if not same:
                    del self._by_address[address]
                return False
        self._by_address.setdefault(address, same)[connection] = None
        self._count += 1
        return True

    def _displaced(self, those: dict[Connected, None], refusal: Refusal, address: str) -> bool:
        idle = (one for one in those if not one.at_work)
        oldest = next((one for one in those if not one.at_work and one.due_s is not None), None) or next(idle, None)
        self.warn(refusal, f"{len(those)} connections, the newest from {address}")
        if oldest is None:
            return False
        oldest.turn_away(refusal)
        return True

    def leave(self, connection: Connected, address: str) -> None:
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
        for address, those in list(self._by_address.items()):
            for connection in list(those):
                if connection.due_s is None:
                    continue
                if connection.held_up:  # by us: the time does not count
                    connection.due_s += SWEEP_S
                elif connection.due_s < now_s:
                    self.warn(TOO_SLOW, f"a connection from {address} is closed")
                    connection.turn_away(TOO_SLOW)
        self._sweeping = loop.call_later(SWEEP_S, self._sweep)


def address_of(peer: object) -> str:
    """Who is counted as one: an IPv4 address, a network of IPv6 as one subscriber has it."""
    host = str(peer[0]) if isinstance(peer, tuple) else "local"
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host.partition("%")[0])
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, 64), strict=False))


class Handshakes:
    """Accepts the connections of a port with TLS. They are counted from their first moment on, unlike those of an
    asyncio server with TLS, which nobody hears of before their handshake is done."""

    def __init__(self, door: Door, context: ssl.SSLContext, make: Callable[[], asyncio.Protocol]) -> None:
        self._door, self._context, self._make = door, context, make
        self._under_way: set[asyncio.Task[None]] = set()

    async def accept(self, listening: socket.socket) -> None:
        """Until it is cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    connection, _ = await loop.sock_accept(listening)
                except OSError as error:  # no files are left, or the caller went
                    log.warning("a connection cannot be accepted: %s", error.strerror)
                    await asyncio.sleep(ACCEPT_AGAIN_S)
                    continue
                task = loop.create_task(self._admit(connection))
                self._under_way.add(task)
                task.add_done_callback(self._under_way.discard)
        finally:
            for task in self._under_way:
                task.cancel()

    async def _admit(self, connection: socket.socket) -> None:
        loop, seconds = asyncio.get_running_loop(), self._door.bounds.request_s
        pending, address = _Pending(connection, loop.time() + seconds), address_of(connection.getpeername())
        if not self._door.enter(pending, address):
            connection.close()
            return
        try:
            await loop.connect_accepted_socket(self._make, connection, ssl=self._context, ssl_handshake_timeout=seconds)
        except OSError:  # it went, was too slow, or has no certificate
            connection.close()
        finally:
            self._door.leave(pending, address)


class _Pending:
    """A connection until its handshake is done."""

    at_work = held_up = False

    def __init__(self, connection: socket.socket, due_s: float) -> None:
        self._connection = connection
        self.due_s: float | None = due_s

    def turn_away(self, _refusal: Refusal) -> None:
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)


class BoundedProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *given: Any, door: Door, **named: Any) -> None:
        super().__init__(*given, **named)
        self._door, self._bounds = door, door.bounds
        self._address = ""
        self._frame_bytes = self._header_count = self._late_bytes = 0
        self._over = self._refused = self._in_body = False
        self._stalled: asyncio.TimerHandle | None = None  # who does not read what is answered is cut off then
        self.due_s: float | None = self.loop.time() + door.bounds.request_s

    # ----------------------------------------------------------------------------------------- as the door sees it

    @property
    def at_work(self) -> bool:
        """Whether a request of it is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def held_up(self) -> bool:
        return self.flow is not None and self.flow.read_paused

    def turn_away(self, refusal: Refusal) -> None:
        """Answered, if it has asked for anything, and closed."""
        self._door.leave(self, self._address)
        if self._refused:
            self.transport.abort()
            return
        self._refused = True
        answered = self.at_work or self._in_body
        if self._frame_bytes and not answered:
            self.transport.write(refusal.answer())
        if answered or self.scheme == "https":  # whose end would wait for theirs
            self.transport.abort()
        else:
            self.transport.close()

    # ----------------------------------------------------------------------------------------- life

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._address = address_of(transport.get_extra_info("peername"))
        if not self._door.enter(self, self._address):
            self._refused = True
            self.connections.discard(self)
            transport.write(TOO_MANY.answer())
            transport.close()
            return

    def pause_writing(self) -> None:
        """More of an answer waits than is to be kept for one connection."""
        super().pause_writing()
        if self._stalled is None:
            self._stalled = self.loop.call_later(STALLED_S, self._cut_off)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._is_read()

    def _is_read(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _cut_off(self) -> None:
        self._stalled = None
        log.warning("a connection from %s is cut off: it read nothing for %g s", self._address, STALLED_S)
        self.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_read()
        self._door.leave(self, self._address)
        super().connection_lost(error)

    def data_received(self, data: bytes) -> None:
        if self._refused or self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        if self.due_s is None and not self.at_work:
            self.due_s = self.loop.time() + self._bounds.request_s
        self._frame_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # it is answered as any other request
        except httptools.HttpParserError:
            self._refuse(HEADER_TOO_LARGE if self._over else NO_HTTP)
            return
        if self._frame_bytes > self._bounds.header_bytes:
            self._refuse(HEADER_TOO_LARGE)

    def _refuse(self, refusal: Refusal) -> None:
        """What is still sent is read for a moment and forgotten, so that the answer arrives before the end."""
        if self._refused or self.transport.is_closing():
            return
        self._door.warn(refusal, f"a request from {self._address} is refused")
        if self.at_work or self._in_body:
            self.transport.abort()
            return
        self._refused = True
        self.transport.write(refusal.answer())
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.due_s = self.loop.time() + LINGER_S

    # ----------------------------------------------------------------------------------------- what the parser finds

    def on_message_begin(self) -> None:
        self._header_count = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_count += 1
        if self._header_count > self._bounds.header_count:
            self._over = True
            raise ValueError("too many headers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._frame_bytes > self._bounds.header_bytes and self._header_bytes() > self._bounds.header_bytes:
            self._over = True
            raise ValueError("the header is too large")
        self._frame_bytes, self._in_body = 0, True
        self.due_s = self.loop.time() + self._bounds.request_s
        super().on_headers_complete()

    def _header_bytes(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

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
        if self.due_s is not None:  # what was answered has not arrived yet
            self.due_s = min(self.due_s, self.loop.time() + LINGER_S)
        super().on_response_complete()
