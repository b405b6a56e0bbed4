"""A queue of wake-ups, an engine whose time stands still, a port that asks for certificates, and who has some."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import msgspec

from windlass import Engine, Submission, Task
from windlass.contracts.lease.mount import make_lease_app
from windlass.core.dataset import BUFFER, ROUTE
from windlass.core.delivery import RetryForm, Wakeup
from windlass.core.queue import QueueConfig
from windlass.http.certified import Certificates, guarded
from windlass.http.server import listening
from windlass.testing.clock import VirtualClock
from windlass.wire import certificate
from windlass.wire.certificate import LOCAL_HOSTS, Files

QUEUE = "remote"
WORKER = "ecs:cluster/service/task"
SCRATCH = "s3://trace-scratch"
LEASE_S = 60
DATASET, VERSION = UUID(int=0xD1), UUID(int=0xE1)
OTHER_DATASET = UUID(int=0xD2)


@dataclass(frozen=True)
class Papers:
    """Files of certificates: what each is good for says its name."""

    authority: Path
    server: Files
    client: Files
    second: Files
    bound: Files
    expired: Files
    foreign: Files
    server_of_foreign: Path

    @property
    def certificates(self) -> Certificates:
        return Certificates(self.server.certificate, self.server.key, self.authority)


def make_papers(folder: Path) -> Papers:
    now = datetime.now(UTC)
    ours, theirs = certificate.make_authority(now, 10), certificate.make_authority(now, 10)
    made = {
        "ca": ours,
        "other-ca": theirs,
        "server": certificate.issue_server(ours, LOCAL_HOSTS, now, 5),
        "client": certificate.issue_client(ours, "wrapper-1", now, 5),
        "second": certificate.issue_client(ours, "wrapper-2", now, 5),
        "bound": certificate.issue_client(ours, "tenant", now, 5, ["shop", "räume & mehr"]),
        "expired": certificate.issue_client(ours, "late", now - timedelta(days=9), 5),
        "foreign": certificate.issue_client(theirs, "wrapper-1", now, 5),
    }
    files = {name: certificate.files_of(folder, name) for name in made}
    for name, pair in made.items():
        certificate.write(pair, files[name])
    return Papers(
        files["ca"].certificate, files["server"], files["client"], files["second"], files["bound"], files["expired"],
        files["foreign"],
        files["other-ca"].certificate,
    )  # fmt: skip


def client(url: str, papers: Papers, shown: Files | None, **options: Any) -> httpx.AsyncClient:
    """Somebody who trusts our authority, and shows this certificate."""
    context = ssl.create_default_context(cafile=str(papers.authority))
    if shown is not None:
        context.load_cert_chain(shown.certificate, shown.key)
    return httpx.AsyncClient(base_url=url, verify=context, timeout=40.0, **options)


@dataclass
class World:
    """All of it, with the words that the tests use."""

    engine: Engine
    clock: VirtualClock
    papers: Papers
    url: str
    http: httpx.AsyncClient

    async def queue(self, name: str = QUEUE, *, retry: RetryForm | None = None, **limits: Any) -> None:
        wakeup = Wakeup(carrier="postgres", lease_ms=LEASE_S * 1000)
        await self.engine.queues.put(name, delivery=wakeup, retry=retry, limits=QueueConfig(**limits))

    async def submit(self, **fields: Any) -> UUID:
        wire = fields.pop("wire", None)
        if wire is not None:
            fields["wire"] = msgspec.json.encode(wire)
        return await self.engine.submit(
            Submission(**{"kind": "block_follower", "payload": b'{"chain": 1}', "queue": QUEUE, **fields})
        )

    async def post(self, route: str, body: Any, http: httpx.AsyncClient | None = None) -> httpx.Response:
        return await (http or self.http).post(f"/internal/{route}", json=body)

    async def claim(self, task_id: UUID | str, http: httpx.AsyncClient | None = None) -> Any:
        answer = await self.post("task-claim", {"task_id": str(task_id), "worker_id": WORKER}, http)
        assert answer.status_code == 200, (answer.status_code, answer.text)
        return answer.json()

    async def held(self, **fields: Any) -> Holder:
        """A task that is held by us."""
        return await self.hold(await self.submit(**fields))

    async def hold(self, task_id: UUID) -> Holder:
        told = await self.claim(task_id)
        assert told["status"] == "Claimed", told
        return Holder(self, told)

    async def writing(self, **fields: Any) -> Holder:
        """A task that may write a dataset."""
        outputs = [{"dataset_uuid": str(DATASET), "dataset_version": str(VERSION)}]
        return await self.held(wire={"outputs": outputs}, **fields)

    async def task(self, task_id: UUID) -> Task:
        return (await self.engine.views.get(task_id)).task

    async def expire(self, seconds: float = LEASE_S) -> None:
        await self.clock.advance(seconds)
        await self.engine.sent.silence_tick()

    async def history(self, task_id: UUID, what: str) -> list[Any]:
        return [entry for entry in await self.engine.views.timeline(task_id) if entry.what == what]

    async def rows(self, *tables: str) -> list[list[tuple[Any, ...]]]:
        """Everything that a refused call must not have changed."""
        async with self.engine.store.begin() as tx:
            connection = tx.session.connection
            return [
                [tuple(row) for row in await connection.fetch(f"select * from windlass.{table} order by 1, 2")]
                for table in tables or ("task", "heartbeat", "history", "outbox", "event", "publish")
            ]

    async def outbox(self, kind: str) -> list[dict[str, Any]]:
        async with self.engine.store.begin() as tx:
            found = await tx.session.connection.fetch("select body from windlass.outbox where kind = $1", kind)
        return [msgspec.json.decode(row[0]) for row in found]


@dataclass
class Holder:
    """Somebody who holds a task."""

    world: World
    told: dict[str, Any]

    @property
    def task_id(self) -> UUID:
        return UUID(self.told["task"]["task_id"])

    @property
    def fence(self) -> dict[str, Any]:
        return {
            "task_id": self.told["task"]["task_id"], "attempt": self.told["attempt"],
            "lease_token": self.told["lease_token"],
        }  # fmt: skip

    async def say(self, route: str, http: httpx.AsyncClient | None = None, **body: Any) -> httpx.Response:
        said = {**self.fence, **body}
        return await self.world.post(route, {name: value for name, value in said.items() if value is not ...}, http)

    async def heartbeat(self, **body: Any) -> httpx.Response:
        return await self.say("heartbeat", **body)

    async def complete(self, status: str = "Completed", **body: Any) -> httpx.Response:
        return await self.say("task-complete", status=status, **body)

    async def events(self, *events: dict[str, Any], **body: Any) -> httpx.Response:
        return await self.say("events", events=list(events), **body)

    async def publish(self, **body: Any) -> httpx.Response:
        batch = {
            "dataset_uuid": str(DATASET), "dataset_version": str(VERSION), "record_count": 1000,
            "batch_uri": self.batch_uri(), **body,
        }  # fmt: skip
        return await self.say("buffer-publish", **batch)

    def batch_uri(self, name: str = "batch.jsonl") -> str:
        return f"{SCRATCH}/buffers/{DATASET}/{self.task_id}/{self.told['attempt']}/{name}"

    async def task(self) -> Task:
        return await self.world.task(self.task_id)


def at_cursor(cursor: int = 12345, dataset: UUID = DATASET) -> dict[str, Any]:
    return {"dataset_uuid": str(dataset), "dataset_version": str(VERSION), "cursor": cursor}


def of_partition(start: int, end: int) -> dict[str, Any]:
    return {
        "dataset_uuid": str(DATASET), "dataset_version": str(VERSION), "partition_key": f"{start}-{end}",
        "start": start, "end": end,
    }  # fmt: skip


def refused(answer: httpx.Response, status: int, error: str) -> dict[str, Any]:
    """The body of a refusal, which is this one."""
    body: dict[str, Any] = answer.json()
    assert (answer.status_code, body["error"]) == (status, error), (answer.status_code, body)
    assert body["message"]
    return body


def ok(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 200, (answer.status_code, answer.text)
    body: dict[str, Any] = answer.json()
    return body


def nobody() -> str:
    return str(uuid4())


@asynccontextmanager
async def open_world(engine: Engine, clock: VirtualClock, papers: Papers) -> AsyncIterator[World]:
    engine.effects[ROUTE], engine.effects[BUFFER] = engine.holders.route, engine.holders.queue_batch
    app = make_lease_app(engine, "test", SCRATCH)
    async with (
        listening(app, "127.0.0.1", 0, guarded(papers.certificates)) as url,
        client(url, papers, papers.client) as http,
    ):
        yield World(engine, clock, papers, url, http)
