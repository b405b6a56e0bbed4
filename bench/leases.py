"""Claim and complete over the lease contract, task by task, with client certificates and without.

`python -m bench.leases rate URL` submits tasks, then lets many holders claim and complete each against one server
process: first one that trusts whoever calls and speaks plain HTTP, then the real one. It prints one line of JSON. The
server is a process of its own; who sends does nothing but that.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import ssl
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import msgspec
import uvloop

from bench import process
from bench.sender import Sender, senders, serving
from windlass import Engine
from windlass.contracts.lease.delivery import Wakeup
from windlass.contracts.lease.tls import certificates
from windlass.core.queue import QueueConfig
from windlass.core.submission import Submission
from windlass.store.store import Store

QUEUE = "leases"
BATCH = 1000


async def say(sender: Sender, route: str, **said: Any) -> Any:
    body = msgspec.json.encode(said)
    head = f"POST /internal/{route} HTTP/1.1\r\nHost: bench\r\nContent-Length: {len(body)}\r\n\r\n"
    answer = await sender.send(head.encode() + body)
    assert answer.status == 200, answer
    return msgspec.json.decode(answer.body)


# --------------------------------------------------------------------------------------------- what is measured


async def rate(url: str, tasks: int, database_pid: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        make_certificates(Path(folder))
        plain = await _drain(url, tasks, database_pid, None)
        guarded = await _drain(url, tasks, database_pid, Path(folder))
    return {**guarded, **{f"plain_{name}": value for name, value in plain.items()}}


async def _drain(url: str, tasks: int, database_pid: int, folder: Path | None) -> dict[str, float]:
    left = [str(task_id) for task_id in await submitted(url, tasks)]
    arguments = ["plain", url] if folder is None else ["serve", url, "--folder", str(folder)]
    context = None if folder is None else _trusting(folder)

    async def work(sender: Sender) -> None:
        while left:
            task_id = left.pop()
            told = await say(sender, "task-claim", task_id=task_id, worker_id="bench")
            fence = {"task_id": task_id, "attempt": told["attempt"], "lease_token": told["lease_token"]}
            await say(sender, "task-complete", status="Completed", **fence)

    async with serving("bench.leases", *arguments) as (port, pid), senders(port, context) as crew:
        for sender in crew:  # the end of its handshake is no part of the work
            await say(sender, "task-claim", task_id=str(UUID(int=9)), worker_id="bench")
        cpu_s, began_s = _cpu_s(pid, database_pid), time.perf_counter()
        await asyncio.gather(*map(work, crew))
        took_s = time.perf_counter() - began_s
        spent_s = _cpu_s(pid, database_pid) - cpu_s
    return {"rate": tasks / took_s, "cpu_us": 1e6 * spent_s / tasks}


def _cpu_s(pid: int, database_pid: int) -> float:
    return process.cpu_s(pid) + (process.cpu_s(database_pid) if database_pid else 0.0)


async def submitted(url: str, tasks: int) -> list[UUID]:
    engine = Engine(Store(url), listen=False)
    await engine.queues.put(QUEUE, delivery=Wakeup(carrier="postgres"), limits=QueueConfig())
    ids: list[UUID] = []
    while len(ids) < tasks:
        count = min(BATCH, tasks - len(ids))
        ids += await engine.submit_many([Submission(kind="noop", queue=QUEUE) for _ in range(count)])
    await engine.close()
    return ids


def make_certificates(folder: Path) -> None:
    now = datetime.now(UTC)
    authority = certificates.make_authority(now, 1)
    certificates.write(authority, certificates.files_of(folder, "ca"))
    server = certificates.issue_server(authority, ["127.0.0.1"], now, 1)
    certificates.write(server, certificates.files_of(folder, "server"))
    certificates.write(certificates.issue_client(authority, "bench", now, 1), certificates.files_of(folder, "client"))


def _trusting(folder: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=folder / "ca.pem")
    context.load_cert_chain(folder / "client.pem", folder / "client-key.pem")
    return context


# --------------------------------------------------------------------------------------------- servers


async def serve(url: str, folder: Path) -> None:
    from windlass.cli.process import freeze_heap
    from windlass.serve import open_engine, open_internal

    files = {"certificate": folder / "server.pem", "key": folder / "server-key.pem", "authority": folder / "ca.pem"}
    async with open_engine(url) as engine, open_internal(engine, internal="127.0.0.1:0", **files) as place:
        print(urlsplit(place).port, flush=True)
        freeze_heap()
        await asyncio.Event().wait()


async def plain(url: str) -> None:
    """The same routes for whoever calls: only here, to see what the certificates cost."""
    from windlass.cli.process import freeze_heap
    from windlass.contracts.lease.rules import Caller
    from windlass.contracts.lease.server.mount import make_lease_app
    from windlass.net.server.server import listening
    from windlass.serve import open_engine

    class Trusting:
        def __init__(self, app: Any) -> None:
            self._app, self.state = app, app.state

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            scope["state"]["caller"] = Caller("CN=bench", "00" * 32)
            await self._app(scope, receive, send)

    async with open_engine(url) as engine:
        app = Trusting(make_lease_app(engine, "bench", "s3://scratch"))
        async with listening(app, "127.0.0.1", 0) as place:
            print(urlsplit(place).port, flush=True)
            freeze_heap()
            await asyncio.Event().wait()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.leases")
    parser.add_argument("what", choices=("rate", "serve", "plain"))
    parser.add_argument("url")
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--database_pid", type=int, default=0)
    options = parser.parse_args()
    match options.what:
        case "serve":
            uvloop.run(serve(options.url, options.folder))
        case "plain":
            uvloop.run(plain(options.url))
        case "rate":
            print(json.dumps(uvloop.run(rate(options.url, options.tasks, options.database_pid))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
