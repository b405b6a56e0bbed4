"""A queue of wake-ups, an engine whose time stands still, a port that asks for certificates, and who has some."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar
from uuid import UUID, uuid4

import httpx
import msgspec
from tests.kit import world as kit
from tests.kit.world import ok

from windlass import Engine, Task
from windlass.contracts.lease.claim_by_id import Holders
from windlass.contracts.lease.delivery import Wakeup
from windlass.contracts.lease.mount import make_lease_app
from windlass.contracts.lease.tls import certificates
from windlass.contracts.lease.tls.certificates import LOCAL_HOSTS, Files
from windlass.contracts.lease.tls.server import Certificates, guarded
from windlass.core.delivery import RetryForm
from windlass.core.queue import QueueConfig
from windlass.datasets.rules.events import BUFFER
from windlass.net.server.server import listening
from windlass.testing.clock import VirtualClock

QUEUE = "remote"
WORKER = "ecs:cluster/service/task"
SCRATCH = "s3://trace-scratch"
LEASE_S = 60
DATASET, VERSION = UUID(int=0xD1), UUID(int=0xE1)
OTHER_DATASET = UUID(int=0xD2)


@dataclass(frozen=True)
class TlsFiles:
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


def make_tls_files(folder: Path) -> TlsFiles:
    now = datetime.now(UTC)
    ours, theirs = certificates.make_authority(now, 10), certificates.make_authority(now, 10)
    made = {
        "ca": ours,
        "other-ca": theirs,
        "server": certificates.issue_server(ours, LOCAL_HOSTS, now, 5),
        "client": certificates.issue_client(ours, "wrapper-1", now, 5),
        "second": certificates.issue_client(ours, "wrapper-2", now, 5),
        "bound": certificates.issue_client(ours, "tenant", now, 5, ["shop", "räume & mehr"]),
        "expired": certificates.issue_client(ours, "late", now - timedelta(days=9), 5),
        "foreign": certificates.issue_client(theirs, "wrapper-1", now, 5),
    }
    files = {name: certificates.files_of(folder, name) for name in made}
    for name, pair in made.items():
        certificates.write(pair, files[name])
    return TlsFiles(
        files["ca"].certificate, files["server"], files["client"], files["second"], files["bound"], files["expired"],
        files["foreign"],
        files["other-ca"].certificate,
    )  # fmt: skip


def client(url: str, tls_files: TlsFiles, shown: Files | None, **options: Any) -> httpx.AsyncClient:
    """A client that trusts our authority and shows this certificate."""
    context = ssl.create_default_context(cafile=str(tls_files.authority))
    if shown is not None:
        context.load_cert_chain(shown.certificate, shown.key)
    return httpx.AsyncClient(base_url=url, verify=context, timeout=40.0, **options)


@dataclass
class World(kit.World[UUID]):
    """A server of leases that asks for certificates, and a client that has one."""

    SUBMISSION: ClassVar[dict[str, Any]] = {"kind": "block_follower", "payload": b'{"chain": 1}', "queue": QUEUE}
    TABLES = (*kit.World.TABLES, "event", "publish")

    tls_files: TlsFiles
    url: str
    http: httpx.AsyncClient

    async def queue(self, name: str = QUEUE, *, retry: RetryForm | None = None, **limits: Any) -> None:
        wakeup = Wakeup(carrier="postgres", lease_ms=LEASE_S * 1000)
        await self.engine.queues.put(name, delivery=wakeup, retry=retry, limits=QueueConfig(**limits))

    async def submit(self, **fields: Any) -> UUID:
        wire = fields.pop("wire", None)
        if wire is not None:
            fields["wire"] = msgspec.json.encode(wire)
        return await super().submit(**fields)

    async def post(self, route: str, body: Any, http: httpx.AsyncClient | None = None) -> httpx.Response:
        return await (http or self.http).post(f"/internal/{route}", json=body)

    async def claim(self, task_id: UUID | str, http: httpx.AsyncClient | None = None) -> Any:
        return ok(await self.post("task-claim", {"task_id": str(task_id), "worker_id": WORKER}, http))

    async def held(self, **fields: Any) -> Holder:
        """A task that is held by us."""
        return await self.hold(await self.submit(**fields))

    async def hold(self, task_id: UUID) -> Holder:
        reply = await self.claim(task_id)
        assert reply["status"] == "Claimed", reply
        return Holder(self, reply)

    async def writing(self, **fields: Any) -> Holder:
        """A task that may write a dataset."""
        outputs = [{"dataset_uuid": str(DATASET), "dataset_version": str(VERSION)}]
        return await self.held(wire={"outputs": outputs}, **fields)

    async def expire(self, seconds: float = LEASE_S) -> None:
        await self.clock.advance(seconds)
        await self.engine.parts.outgoing.silence_tick()

    async def outbox(self, kind: str) -> list[dict[str, Any]]:
        async with self.engine.store.begin() as tx:
            found = await tx.session.connection.fetch("select body from windlass.outbox where kind = $1", kind)
        return [msgspec.json.decode(row[0]) for row in found]


@dataclass
class Holder:
    """A worker that holds the lease of a task; `reply` is the answer to its claim."""

    world: World
    reply: dict[str, Any]

    @property
    def task_id(self) -> UUID:
        return UUID(self.reply["task"]["task_id"])

    @property
    def fence(self) -> dict[str, Any]:
        return {
            "task_id": self.reply["task"]["task_id"], "attempt": self.reply["attempt"],
            "lease_token": self.reply["lease_token"],
        }  # fmt: skip

    async def say(self, route: str, http: httpx.AsyncClient | None = None, **body: Any) -> httpx.Response:
        request = {**self.fence, **body}
        return await self.world.post(route, {name: value for name, value in request.items() if value is not ...}, http)

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
        return f"{SCRATCH}/buffers/{DATASET}/{self.task_id}/{self.reply['attempt']}/{name}"

    async def task(self) -> Task:
        return await self.world.task(self.task_id)


def at_cursor(cursor: int = 12345, dataset: UUID = DATASET) -> dict[str, Any]:
    return {"dataset_uuid": str(dataset), "dataset_version": str(VERSION), "cursor": cursor}


def of_partition(start: int, end: int) -> dict[str, Any]:
    return {
        "dataset_uuid": str(DATASET), "dataset_version": str(VERSION), "partition_key": f"{start}-{end}",
        "start": start, "end": end,
    }  # fmt: skip


def nobody() -> str:
    return str(uuid4())


@asynccontextmanager
async def open_world(engine: Engine, clock: VirtualClock, tls_files: TlsFiles) -> AsyncIterator[World]:
    engine.parts.effects[BUFFER] = engine.service(Holders).queue_batch
    app = make_lease_app(engine, "test", SCRATCH)
    async with (
        listening(app, "127.0.0.1", 0, guarded(tls_files.certificates)) as url,
        client(url, tls_files, tls_files.client) as http,
    ):
        yield World(engine, clock, tls_files, url, http)
