"""A pooler that is as hostile as transaction mode allows: no transaction runs where the one before it ran.

Like PgBouncer without tracking of prepared statements: after each transaction the client loses its backend, `DISCARD
ALL` clears that one, and the next transaction gets a different one. So prepared statements, LISTEN, SET and session
locks of an earlier transaction are gone, always, not only under load. It knows messages and where transactions end,
and no SQL.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import secrets
import shutil
import struct
import tempfile
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

_PROTOCOL_3 = 196608
_CANCEL, _SSL, _GSS = 80877102, 80877103, 80877104
_SOCKET_NAME = ".s.PGSQL.5432"
_GONE = (asyncio.IncompleteReadError, OSError)


def message(kind: bytes, body: bytes = b"") -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


async def read_message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    header = await reader.readexactly(5)
    return header[:1], await reader.readexactly(struct.unpack("!i", header[1:])[0] - 4)


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


@dataclass(frozen=True, slots=True)
class Address:
    """A DSN, taken apart."""

    host: str
    port: int
    user: str
    password: str
    database: str

    @classmethod
    def parse(cls, dsn: str) -> Address:
        parts = urlsplit(dsn)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        return cls(
            host=query.get("host") or parts.hostname or "localhost",
            port=int(query.get("port") or parts.port or 5432),
            user=unquote(parts.username or "") or query.get("user", "postgres"),
            password=unquote(parts.password or ""),
            database=unquote(parts.path[1:]) or "postgres",
        )

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.host.startswith("/"):
            return await asyncio.open_unix_connection(f"{self.host}/.s.PGSQL.{self.port}")
        return await asyncio.open_connection(self.host, self.port)


@dataclass(slots=True, eq=False)
class Backend:
    """One connection to the server, lent to one client for one transaction."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    parameters: list[bytes] = field(default_factory=list)
    secret: bytes = b""
    client: Client | None = None
    task: asyncio.Task[None] | None = None

    @classmethod
    async def connect(cls, address: Address) -> Backend:
        backend = cls(*await address.connect())
        pairs = f"user\0{address.user}\0database\0{address.database}\0\0".encode()
        backend.writer.write(struct.pack("!ii", len(pairs) + 8, _PROTOCOL_3) + pairs)
        try:
            await backend._log_in(address.password)
        except BaseException:
            await close(backend.writer)
            raise
        return backend

    async def _log_in(self, password: str) -> None:
        scram = Scram(password)
        while True:
            kind, body = await read_message(self.reader)
            if kind == b"R":
                self.writer.write(scram.answer(body))
            elif kind == b"S":
                self.parameters.append(message(kind, body))
            elif kind == b"K":
                self.secret = body
            elif kind == b"Z":
                return
            elif kind == b"E":
                raise ConnectionError(body.decode(errors="replace"))


@dataclass(slots=True)
class Scram:
    """The client's side of SCRAM-SHA-256, or a plain password if the server asks for that."""

    password: str
    first: str = field(default_factory=lambda: f"n=,r={secrets.token_urlsafe(18)}")

    def answer(self, request: bytes) -> bytes:
        code, data = struct.unpack("!i", request[:4])[0], request[4:]
        if code == 3:
            return message(b"p", self.password.encode() + b"\0")
        if code == 10:
            first = b"n,," + self.first.encode()
            return message(b"p", b"SCRAM-SHA-256\0" + struct.pack("!i", len(first)) + first)
        if code == 11:
            return message(b"p", self._final(data.decode()).encode())
        assert code in (0, 12), f"the pooler does not know the login method {code}"
        return b""

    def _final(self, challenge: str) -> str:
        nonce, salt, rounds = (part[2:] for part in challenge.split(","))
        salted = hashlib.pbkdf2_hmac("sha256", self.password.encode(), base64.b64decode(salt), int(rounds))
        key = hmac.digest(salted, b"Client Key", "sha256")
        final = f"c=biws,r={nonce}"
        signed = ",".join((self.first, challenge, final)).encode()
        signature = hmac.digest(hashlib.sha256(key).digest(), signed, "sha256")
        proof = bytes(left ^ right for left, right in zip(key, signature, strict=True))
        return f"{final},p={base64.b64encode(proof).decode()}"


@dataclass(slots=True, eq=False)
class Client:
    """One client, and how far its conversation with the backend that it holds has come."""

    writer: asyncio.StreamWriter
    secret: bytes
    backend: Backend | None = None
    previous: Backend | None = None
    awaited: deque[bytes] = field(default_factory=deque)  # messages that each will be answered by a ReadyForQuery
    unsynced: bool = False  # parts of an extended query were sent, its Sync was not

    def sends(self, kind: bytes) -> None:
        if kind in b"QFS":
            self.awaited.append(kind)
            self.unsynced = False
        elif kind in b"PBDECH":
            self.unsynced = True

    def receives(self, kind: bytes, body: bytes) -> bool:
        """Records a message of the backend. Returns True if it ends the transaction."""
        if kind == b"G" and self.awaited and self.awaited[0] == b"S":
            self.awaited.popleft()  # a Sync that arrives while the server reads COPY data is never answered
        if kind != b"Z":
            return False
        self.awaited.popleft()
        return body == b"I" and not self.awaited and not self.unsynced


class Pooler:
    """Listens on a private unix socket; every client that can reach it is let in."""

    def __init__(self, dsn: str, backends: int = 4) -> None:
        assert backends >= 2, "with one backend no transaction can change its backend"
        self._address = Address.parse(dsn)
        self._size = backends
        self._parameters: list[bytes] = []
        self._backends: set[Backend] = set()
        self._idle: deque[Backend] = deque()
        self._freed = asyncio.Condition()
        self._clients: dict[bytes, Client] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._folder: Path | None = None
        self._server: asyncio.Server | None = None
        self.transactions = 0

    @property
    def dsn(self) -> str:
        place = quote(str(self._folder), safe="")
        return f"postgresql://{quote(self._address.user)}@/{quote(self._address.database, safe='')}?host={place}"

    async def start(self) -> None:
        for _ in range(self._size):
            await self._add_backend()
        self._folder = Path(tempfile.mkdtemp(prefix="windlass-pooler-"))
        self._server = await asyncio.start_unix_server(self._accept, self._folder / _SOCKET_NAME)

    async def stop(self) -> None:
        if self._server is None or self._folder is None:
            return
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()
        shutil.rmtree(self._folder)
        self._server = None

    async def __aenter__(self) -> Pooler:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # Backends.

    async def _add_backend(self) -> None:
        backend = await Backend.connect(self._address)
        backend.task = self._keep(asyncio.ensure_future(self._serve_backend(backend)))
        self._parameters = backend.parameters
        self._backends.add(backend)
        self._idle.append(backend)

    def _keep(self, task: asyncio.Task[None]) -> asyncio.Task[None]:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _serve_backend(self, backend: Backend) -> None:
        """Carries what the server says to the client that holds the backend, until the server hangs up."""
        try:
            while True:
                kind, body = await read_message(backend.reader)
                if backend.client is not None:
                    await self._answer(backend.client, kind, body)
                elif kind == b"Z":
                    await self._free(backend)  # DISCARD ALL is done
        except _GONE:
            pass
        finally:
            await self._lose(backend)

    async def _answer(self, client: Client, kind: bytes, body: bytes) -> None:
        client.writer.write(message(kind, body))
        if client.receives(kind, body):
            self._release(client)
        with suppress(OSError):  # a client that is gone is noticed where it is read from
            await client.writer.drain()

    def _release(self, client: Client) -> None:
        backend = client.backend
        assert backend is not None
        client.backend, client.previous, backend.client = None, backend, None
        self.transactions += 1
        backend.writer.write(message(b"Q", b"DISCARD ALL\0"))

    async def _free(self, backend: Backend) -> None:
        async with self._freed:
            self._idle.append(backend)
            self._freed.notify_all()

    async def _lose(self, backend: Backend) -> None:
        self._backends.discard(backend)
        with suppress(ValueError):
            self._idle.remove(backend)
        if backend.client is not None:
            backend.client.writer.close()
        await close(backend.writer)
        async with self._freed:
            self._freed.notify_all()

    async def _lend(self, client: Client) -> Backend:
        """Any idle backend but the client's previous one; lost ones are replaced when they are missed."""
        async with self._freed:
            while True:
                fit = next((each for each in self._idle if each is not client.previous), None)
                if fit is not None:
                    self._idle.remove(fit)
                    break
                if len(self._backends) < self._size:
                    await self._add_backend()
                else:
                    await self._freed.wait()
        client.backend, fit.client = fit, client
        return fit

    async def _abandon(self, backend: Backend) -> None:
        """The client left in the middle: hang up, stop what runs, and the server rolls back."""
        assert backend.task is not None
        backend.client = None
        backend.task.cancel()
        await self._cancel(backend)

    async def _cancel(self, backend: Backend) -> None:
        with suppress(OSError):
            _, writer = await self._address.connect()
            writer.write(struct.pack("!ii", 16, _CANCEL) + backend.secret)
            await writer.drain()
            await close(writer)

    # Clients.

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._keep(task)
        with suppress(*_GONE, asyncio.CancelledError):
            if await self._greet(reader, writer):
                await self._serve_client(reader, writer)
        await close(writer)

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """True once a client has asked for session mode."""
        while True:
            size, code = struct.unpack("!ii", await reader.readexactly(8))
            rest = await reader.readexactly(size - 8)
            if code in (_SSL, _GSS):
                writer.write(b"N")
            elif code == _CANCEL:
                target = self._clients.get(rest)
                if target is not None and target.backend is not None:
                    await self._cancel(target.backend)
                return False
            else:
                return True

    async def _serve_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = Client(writer, secrets.token_bytes(8))
        self._clients[client.secret] = client
        writer.write(message(b"R", struct.pack("!i", 0)) + b"".join(self._parameters))
        writer.write(message(b"K", client.secret) + message(b"Z", b"I"))
        try:
            await self._carry(client, reader)
        finally:
            del self._clients[client.secret]
            if client.backend is not None:
                await self._abandon(client.backend)

    async def _carry(self, client: Client, reader: asyncio.StreamReader) -> None:
        """Carries what the client says to its backend, which it gets with the first message of a transaction."""
        while True:
            kind, body = await read_message(reader)
            if kind == b"X":
                return
            if client.backend is None and kind in b"dcf":
                continue  # the rest of a COPY that has failed meanwhile
            backend = client.backend or await self._lend(client)
            client.sends(kind)
            backend.writer.write(message(kind, body))
            await backend.writer.drain()
