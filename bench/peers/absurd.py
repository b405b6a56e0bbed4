"""absurd: durable workflows as stored procedures, with a thin client. One connection per client, one call at a time."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench import recorder
from bench.subject import Subject


class Absurd(Subject):
    name = "absurd"
    requirements = ("absurd-sdk>=0.5", "absurdctl>=0.5", "psycopg[binary]", "uvloop")
    settings = "concurrency 10, batch_size 50, poll_interval 0.25 s, 16 clients, uvloop"
    drain_tasks = 3_000
    flow_tasks = 1_000
    batches = False
    stored_sql = "select count(*) from absurd.t_q"
    done_sql = "select count(*) from absurd.t_q where state = 'completed'"

    async def setup(self, url: str) -> None:
        control = Path(sys.executable).with_name("absurdctl")
        for command in (["init"], ["create-queue", "q"]):
            subprocess.run([control, *command, "-d", url], check=True, capture_output=True)

    async def open(self, url: str) -> None:
        from absurd_sdk import AsyncAbsurd

        # It has no connection pool, and concurrent callers need one.
        self.clients: list[Any] = [AsyncAbsurd(url, queue_name="q") for _ in range(16)]
        self.free: asyncio.Queue[Any] = asyncio.Queue()
        for client in self.clients:
            self.free.put_nowait(client)

    async def close(self) -> None:
        for client in self.clients:
            await client.close()

    async def submit(self, index: int, sent_at: float) -> None:
        client = await self.free.get()
        await client.spawn(self.unit, {"index": index, "sent_at": sent_at}, queue="q")
        self.free.put_nowait(client)

    async def run_worker(self, url: str) -> None:
        from absurd_sdk import AsyncAbsurd

        application = AsyncAbsurd(url, queue_name="q")

        @application.register_task(name="noop", queue="q")
        async def noop(parameters: Any, context: Any) -> None:
            recorder.hit(parameters["index"], parameters["sent_at"])

        @application.register_task(name="flow", queue="q")
        async def flow(parameters: Any, context: Any) -> None:
            recorder.hit(parameters["index"], parameters["sent_at"])
            for number in range(3):
                await context.step(f"step {number}", _step)

        await application.start_worker(concurrency=10, batch_size=50, poll_interval=0.25)


async def _step() -> int:
    return 1


SUBJECT = Absurd
