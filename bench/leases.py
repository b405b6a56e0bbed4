"""Claim and complete over the lease contract, task by task, with client certificates and without.

`python -m bench.leases rate URL` submits tasks and lets many holders claim and complete them through one server
process: first through plain HTTP without authentication, then through mTLS. It prints one line of JSON.
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
from uuid import UUID

import msgspec
import uvloop

from bench.sender import Sender, cpu_s, senders, serve_forever, serving
from windlass import Engine
from windlass.contracts.lease.delivery import Wakeup
from windlass.contracts.lease.tls import certificates
from windlass.core.queue import QueueConfig
from windlass.core.submission import Submission
from windlass.store.store import Store

QUEUE = "leases"
BATCH = 1000


async def call(sender: Sender, route: str, **fields: Any) -> Any:
    body = msgspec.json.encode(fields)
    head = f"POST /internal/{route} HTTP/1.1\r\nHost: bench\r\nContent-Length: {len(body)}\r\n\r\n"
    answer = await sender.send(head.encode() + body)
    assert answer.status == 200, answer
    return msgspec.json.decode(answer.body)


# --------------------------------------------------------------------------------------------- measurements


async def rate(url: str, tasks: int, database_pid: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        make_certificates(Path(folder))
        plain = await _drain(url, tasks, database_pid, None)
        secured = await _drain(url, tasks, database_pid, Path(folder))
    return {**secured, **{f"plain_{name}": value for name, value in plain.items()}}


async def _drain(url: str, tasks: int, database_pid: int, folder: Path | None) -> dict[str, float]:
    left = [str(task_id) for task_id in await submit(url, tasks)]
    arguments = ["plain", url] if folder is None else ["serve", url, "--folder", str(folder)]
    context = None
    if folder is not None:
        context = ssl.create_default_context(cafile=folder / "ca.pem")
        context.load_cert_chain(folder / "client.pem", folder / "client-key.pem")

    async def work(sender: Sender) -> None:
        while left:
            task_id = left.pop()
            claim = await call(sender, "task-claim", task_id=task_id, worker_id="bench")
            fence = {"task_id": task_id, "attempt": claim["attempt"], "lease_token": claim["lease_token"]}
            await call(sender, "task-complete", status="Completed", **fence)

    async with serving("bench.leases", *arguments) as (port, pid), senders(port, context) as crew:
        for sender in crew:  # finish the handshake before the measurement
            await call(sender, "task-claim", task_id=str(UUID(int=9)), worker_id="bench")
        before_s, began_s = cpu_s(pid, database_pid), time.perf_counter()
        await asyncio.gather(*map(work, crew))
        took_s = time.perf_counter() - began_s
        spent_s = cpu_s(pid, database_pid) - before_s
    return {"rate": tasks / took_s, "cpu_us": 1e6 * spent_s / tasks}


async def submit(url: str, tasks: int) -> list[UUID]:
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


# --------------------------------------------------------------------------------------------- servers


async def serve(url: str, folder: Path) -> None:
    from windlass.serve import open_engine, open_internal

    files = {"certificate": folder / "server.pem", "key": folder / "server-key.pem", "authority": folder / "ca.pem"}
    async with open_engine(url) as engine, open_internal(engine, internal="127.0.0.1:0", **files) as place:
        await serve_forever(place)


async def plain(url: str) -> None:
    """The same routes without authentication, to show what the certificates cost."""
    from windlass.contracts.lease.mount import make_lease_app
    from windlass.net.server.server import listening
    from windlass.serve import open_engine

    async with open_engine(url) as engine:
        app = trusting(make_lease_app(engine, "bench", "s3://scratch"))
        async with listening(app, "127.0.0.1", 0) as place:
            await serve_forever(place)


def trusting(app: Any) -> Any:
    """An app of the lease contract that believes everyone who calls."""
    from windlass.contracts.lease.rules import Caller

    class Trusting:
        def __init__(self) -> None:
            self.state = app.state

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            scope["state"]["caller"] = Caller("CN=bench", "00" * 32)
            await app(scope, receive, send)

    return Trusting()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.leases")
    parser.add_argument("command", choices=("rate", "serve", "plain"))
    parser.add_argument("url")
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--database_pid", type=int, default=0)
    options = parser.parse_args()
    match options.command:
        case "serve":
            uvloop.run(serve(options.url, options.folder))
        case "plain":
            uvloop.run(plain(options.url))
        case "rate":
            print(json.dumps(uvloop.run(rate(options.url, options.tasks, options.database_pid))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
