"""A queue that pushes, an engine whose time stands still, a server that speaks HTTP, and a worker that listens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import httpx
import msgspec

from windlass import Engine, Submission, Task
from windlass.contracts.callback.app import PREFIX
from windlass.contracts.callback.mount import make_callbacks, make_pusher
from windlass.contracts.callback.option import PushOptions
from windlass.contracts.callback.service import Service
from windlass.core.delivery import PUSH, Push, RetryForm
from windlass.core.queue import QueueConfig
from windlass.http.api import make_api
from windlass.http.front import Front
from windlass.http.server import listening
from windlass.testing.clock import VirtualClock
from windlass.wire.id import parse_id, ulid

ROOT = "root-key-of-this-test"
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
class World:
    """All of it, with the words that the tests use."""

    engine: Engine
    clock: VirtualClock
    service: Service
    worker: Recorder
    url: str
    http: httpx.AsyncClient

    async def queue(self, name: str = QUEUE, *, retry: RetryForm | None = None, **settings: Any) -> None:
        push = Push(**{"url": self.worker.url, **settings})
        limits = QueueConfig()
        await self.engine.queues.put(name, delivery=push, retry=retry, limits=limits)

    async def submit(self, **fields: Any) -> UUID:
        return await self.engine.submit(Submission(**{"kind": "export", "payload": b"{}", "queue": QUEUE, **fields}))

    async def send_out(self) -> None:
        """Until everything that can be pushed was pushed once."""
        while await self.engine.sent.dispatch_tick():
            pass
        await self.engine.loops.effects_tick()

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

    async def task(self, attempt: Attempt) -> Task:
        return (await self.engine.views.get(attempt.task_id)).task

    async def token(self, attempt: Attempt, /, **changes: Any) -> str:
        """A token that we signed ourselves, for something else than it should be."""
        tokens = await self.service.tokens()
        scope = msgspec.structs.replace(tokens.read(attempt.token), **changes)
        return tokens.make(scope)

    async def history(self, attempt: Attempt) -> list[str]:
        return [str(entry.what) for entry in await self.engine.views.timeline(attempt.task_id)]

    async def entry(self, attempt: Attempt, what: str) -> Any:
        return next(e for e in await self.engine.views.timeline(attempt.task_id) if e.what == what)

    async def rows(self) -> Any:
        """Everything that a refused callback must not have changed."""
        async with self.engine.store.begin() as tx:
            connection = tx.session.connection
            return [
                [tuple(row) for row in await connection.fetch(f"select * from windlass.{table} order by 1, 2")]
                for table in ("task", "heartbeat", "history", "outbox", "progress", "checkpoint")
            ]


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
        said = {"attempt": self.number, "workerId": WORKER, **body}
        path = f"/v1/tasks/{task or self.envelope['taskId']}/{what}"
        headers = {"Authorization": f"Bearer {token or self.token}"}
        said = {name: value for name, value in said.items() if value is not ...}
        return await self.world.http.post(path, json=said, headers=headers)

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


def refused(answer: httpx.Response, status: int, error: str) -> dict[str, Any]:
    """The body of a refusal, which is this one."""
    body: dict[str, Any] = answer.json()
    assert (answer.status_code, body["error"]) == (status, error), (answer.status_code, body)
    assert body["message"]
    return body


def later(instant: datetime, seconds: float) -> datetime:
    return instant + timedelta(seconds=seconds)


def ulid_of(id_: UUID) -> str:
    return ulid("task", id_)


@asynccontextmanager
async def open_world(engine: Engine, clock: VirtualClock) -> AsyncIterator[World]:
    engine.access.accept_root(ROOT)
    service, callbacks = make_callbacks(engine, "test")
    service._stopwatch = clock.stopwatch
    api = make_api(engine)
    worker = Recorder()
    async with (
        listening(Front(api, (PREFIX, callbacks)), "127.0.0.1", 0) as url,
        listening(worker, "127.0.0.1", 0) as worker_url,
        httpx.AsyncClient(base_url=url, timeout=60) as http,
    ):
        worker.url = f"{worker_url}/dispatch"
        pusher = make_pusher(engine, service, PushOptions(loopback=True), url)
        engine.effects[PUSH] = pusher.push
        yield World(engine, clock, service, worker, url, http)
        worker.state.closing.set()
