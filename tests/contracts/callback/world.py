"""A queue that pushes, an engine whose time stands still, a server that speaks HTTP, and a worker that listens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, ClassVar
from uuid import UUID

import httpx
import msgspec
from tests.kit import world as kit

from windlass import Engine
from windlass.api.app import make_api
from windlass.contracts.callback.delivery import PUSH, Push
from windlass.contracts.callback.mount import make_callbacks, make_pusher
from windlass.contracts.callback.server.app import PREFIX
from windlass.contracts.callback.server.options import PushOptions
from windlass.contracts.callback.server.service import Service
from windlass.core.delivery import RetryForm
from windlass.core.queue import QueueConfig
from windlass.net.ids import parse_id, ulid
from windlass.net.server.server import PathRouter, listening
from windlass.testing.clock import VirtualClock

QUEUE = "remote"
WORKER = "worker-abc123"


@dataclass
class Pushed:
    headers: dict[str, str]
    body: bytes

    @property
    def envelope(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.json.decode(self.body)
        return found


@dataclass
class Recorder:
    """A worker that takes what it gets and does nothing: `answers` are given in their order, the last for ever."""

    url: str = ""
    answers: list[tuple[int, dict[str, str]]] = field(default_factory=lambda: [(202, {})])
    pushes: list[Pushed] = field(default_factory=list)
    silent: bool = False
    says: bytes = b""
    state: Any = field(default_factory=lambda: SimpleNamespace(closing=asyncio.Event()))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        self.pushes.append(Pushed({k.decode(): v.decode() for k, v in scope["headers"]}, body))
        if self.silent:
            await self.state.closing.wait()
            return
        status, headers = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        given = [(k.encode(), v.encode()) for k, v in headers.items()]
        length = (b"content-length", str(len(self.says)).encode())
        await send({"type": "http.response.start", "status": status, "headers": [*given, length]})
        await send({"type": "http.response.body", "body": self.says})


@dataclass
class World(kit.World["Attempt"]):
    """A server of callbacks, and a worker that receives pushes."""

    SUBMISSION: ClassVar[dict[str, Any]] = {"kind": "export", "payload": b"{}", "queue": QUEUE}
    TABLES = (*kit.World.TABLES, "progress", "checkpoint")

    service: Service
    worker: Recorder
    url: str
    http: httpx.AsyncClient

    async def queue(self, name: str = QUEUE, *, retry: RetryForm | None = None, **settings: Any) -> None:
        push = Push(**{"url": self.worker.url, **settings})
        limits = QueueConfig()
        await self.engine.queues.put(name, delivery=push, retry=retry, limits=limits)

    def task_id(self, handle: Attempt) -> UUID:
        return handle.task_id

    async def dispatched(self, **fields: Any) -> Attempt:
        """A task that was pushed, as its worker sees it."""
        await self.submit(**fields)
        return await self.next_attempt()

    async def next_attempt(self) -> Attempt:
        known = len(self.worker.pushes)
        await self.send_out()
        assert len(self.worker.pushes) == known + 1, self.worker.pushes[known:]
        return Attempt(self, self.worker.pushes[-1].envelope)

    async def started(self, **fields: Any) -> Attempt:
        attempt = await self.dispatched(**fields)
        (await attempt.call("started")).raise_for_status()
        return attempt

    async def token(self, attempt: Attempt, /, **changes: Any) -> str:
        """A token that we signed ourselves, for something else than it should be."""
        tokens = await self.service.tokens()
        scope = msgspec.structs.replace(tokens.read(attempt.token), **changes)
        return tokens.make(scope)


@dataclass
class Attempt:
    """One attempt, from the side of its worker."""

    world: World
    envelope: dict[str, Any]

    def __post_init__(self) -> None:
        self.token: str = self.envelope["taskToken"]
        self.number: int = self.envelope["attempt"]

    @property
    def task_id(self) -> UUID:
        found = parse_id("task", self.envelope["taskId"])
        assert found is not None
        return found

    async def call(
        self, what: str, *, token: str | None = None, task: str | None = None, **body: Any
    ) -> httpx.Response:
        request = {"attempt": self.number, "workerId": WORKER, **body}
        path = f"/v1/tasks/{task or self.envelope['taskId']}/{what}"
        headers = {"Authorization": f"Bearer {token or self.token}"}
        request = {name: value for name, value in request.items() if value is not ...}
        return await self.world.http.post(path, json=request, headers=headers)

    async def send(self, what: str, body: bytes) -> httpx.Response:
        """The same with a body that was written by hand."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        return await self.world.http.post(f"/v1/tasks/{self.envelope['taskId']}/{what}", content=body, headers=headers)

    async def heartbeat(self, **body: Any) -> httpx.Response:
        return await self.call("heartbeat", **body)

    async def completed(self, outcome: str = "SUCCEEDED", **body: Any) -> httpx.Response:
        return await self.call("completed", outcome=outcome, **body)

    async def failed(self, category: str = "USER_CODE", message: str = "it broke", **error: Any) -> httpx.Response:
        return await self.completed("FAILED", error={"category": category, "message": message, **error})


def later(instant: datetime, seconds: float) -> datetime:
    return instant + timedelta(seconds=seconds)


def ulid_of(id_: UUID) -> str:
    return ulid("task", id_)


@asynccontextmanager
async def open_world(engine: Engine, clock: VirtualClock) -> AsyncIterator[World]:
    service, callbacks = make_callbacks(engine, "test")
    service._stopwatch = clock.stopwatch
    api = make_api(engine)
    worker = Recorder()
    async with (
        listening(PathRouter(api, (PREFIX, callbacks)), "127.0.0.1", 0) as url,
        listening(worker, "127.0.0.1", 0) as worker_url,
        httpx.AsyncClient(base_url=url, timeout=60) as http,
    ):
        worker.url = f"{worker_url}/dispatch"
        pusher = make_pusher(engine, service, PushOptions(loopback=True), url)
        engine.parts.effects[PUSH] = pusher.push
        yield World(engine, clock, service, worker, url, http)
        worker.state.closing.set()
