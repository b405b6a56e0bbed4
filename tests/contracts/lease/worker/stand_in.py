"""A dispatcher that answers as a test wants it to, over real mTLS, and a carrier that can be looked into.

What the real ones do is tested with the real ones; here they fail, forget, contradict and disappear at a named moment.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import UUID, uuid4

from windlass.contracts.lease.wakeups.carriers.port import Message

DROP = 0  # the connection is closed without an answer
Reply = tuple[int, Mapping[str, Any]]


@dataclass
class Request:
    """One request to the dispatcher, and the status of its answer."""

    what: str
    body: dict[str, Any]
    status: int


class Dispatcher:
    """`replies[what]` are given first, one each; then everything is accepted."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.requests: list[Request] = []
        self.replies: dict[str, deque[Reply]] = {}
        self.lease_s = 30.0
        self.task: dict[str, Any] = {"operator": "work", "config": {"n": 1}, "inputs": []}
        self.config_of: Callable[[str], dict[str, Any]] | None = None  # by the id of the task
        self.cancelled = False
        self.plain = False  # says nothing but what the document names
        self.before: Callable[[str], None] = lambda _: None
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), self)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self.url = f"https://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Dispatcher:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def will(self, what: str, *replies: int | Reply) -> None:
        made = [
            reply if isinstance(reply, tuple) else (reply, {"message": f"a test says {reply}"}) for reply in replies
        ]
        self.replies.setdefault(what, deque()).extend(made)

    def requests_for(self, what: str) -> list[Request]:
        with self._lock:
            return [request for request in self.requests if request.what == what]

    @property
    def accepted(self) -> list[str]:
        with self._lock:
            return [request.what for request in self.requests if request.status == 200]

    def answer(self, what: str, body: dict[str, Any]) -> Reply:
        self.before(what)
        with self._lock:
            waiting = self.replies.get(what)
            status, reply = waiting.popleft() if waiting else (200, self._usual(what, body))
            self.requests.append(Request(what, body, status))
        return status, reply

    def _usual(self, what: str, body: dict[str, Any]) -> Mapping[str, Any]:
        if what == "task-claim":
            now = datetime.now(UTC)
            task = {
                "task_id": body["task_id"],
                "attempt": 1,
                "job": {"dag_name": "default", "name": "work"},
                **self.task,
                **({} if self.config_of is None else {"config": self.config_of(body["task_id"])}),
            }
            until = now + timedelta(seconds=self.lease_s)
            return {
                "status": "Claimed", "attempt": 1, "lease_token": str(uuid4()), "task": task,
                "lease_expires_at": until.isoformat(), **({} if self.plain else {"server_time": now.isoformat()}),
            }  # fmt: skip
        if what == "task-fetch" or (what == "heartbeat" and not self.plain):
            return {"status": "Canceled" if self.cancelled else "Running"}
        return {}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], dispatcher: Dispatcher) -> None:
        self.dispatcher = dispatcher
        super().__init__(address, _Handler)

    def handle_error(self, *_: object) -> None:
        pass


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._reply(*self.server.dispatcher.answer(self.path.removeprefix("/internal/"), json.loads(body or b"{}")))

    def do_GET(self) -> None:
        what, _, query = self.path.removeprefix("/internal/").partition("?")
        self._reply(*self.server.dispatcher.answer(what, {"query": query}))

    def _reply(self, status: int, reply: Mapping[str, Any]) -> None:
        if status == DROP:
            self.close_connection = True
            self.connection.close()
            return
        body = json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@dataclass
class Carrier:
    """See `wakeups.carriers.port.Consumer`. `done` tells what became of each message, in order."""

    visibility_s: float = 30.0
    max_deliveries: int = 3
    waiting: asyncio.Queue[Message] = field(default_factory=asyncio.Queue)
    done: list[tuple[str, str]] = field(default_factory=list)
    extended: int = 0
    missed: int = 0
    receives: int = 0
    empty: int = 0  # so often nothing comes
    failing: list[Exception] = field(default_factory=list)
    before: Callable[[str], None] = lambda _: None

    def put(self, body: bytes | UUID, *, deliveries: int = 1) -> str:
        data = json.dumps({"task_id": str(body)}).encode() if isinstance(body, UUID) else body
        message = Message(uuid4().hex, data, deliveries)
        self.waiting.put_nowait(message)
        return message.id

    async def receive(self, limit: int, wait_s: float) -> list[Message]:
        self.receives += 1
        if self.failing:
            raise self.failing.pop()
        if self.empty:
            self.empty -= 1
            return []
        messages = [await self.waiting.get()]
        while len(messages) < limit and not self.waiting.empty():
            messages.append(self.waiting.get_nowait())
        return messages

    async def report_idle(self) -> None:
        self.missed += 1

    async def extend(self, message: Message) -> bool:
        self.extended += 1
        return True

    async def ack(self, message: Message) -> None:
        self._note("ack", message)

    async def nack(self, message: Message, delay_s: float = 0.0) -> None:
        self._note("nack", message)

    async def dead_letter(self, message: Message, reason: str) -> None:
        self._note(f"bury: {reason}", message)

    async def close(self) -> None:
        pass

    def _note(self, what: str, message: Message) -> None:
        self.before(what)
        self.done.append((what, message.id))
