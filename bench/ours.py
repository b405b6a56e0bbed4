"""Windlass itself, through the interface that every subject has: the engine's public calls, all promises on.

A worker process is an engine and a worker beside the database, as `open_engine` and `Worker` make them.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from bench import recorder
from bench.agent import paced
from bench.subject import Subject

if TYPE_CHECKING:
    from windlass import Engine, Submission

CONCURRENCY = 1_000  # batches of 500, as the limit's
FINISHED_AT_ONCE = 500_000
FINISHED = """
insert into windlass.task (id, namespace, queue, kind, state, available_at, attempt, outcome, lease_id, worker,
                           created_at, started_at, finished_at, payload, result)
select uuidv7(interval '-1 hour'), 'default', 'default', 'noop', 'succeeded', t.at, 1, 'succeeded', gen_random_uuid(),
       'worker', t.at, t.at, t.at, convert_to(json_build_array(i, 0.0)::text, 'UTF8'), 'null'
  from generate_series(1, $1::int) i, (select now() - interval '1 hour' as at) t"""


class Windlass(Subject):
    name = "windlass"
    part = ""
    settings = f"concurrency {CONCURRENCY}, else defaults; uvloop"
    drain_tasks = 80_000
    stored_sql = "select count(*) from windlass.task"
    done_sql = "select count(*) from windlass.task where state = 'succeeded'"
    options: dict[str, Any] = {}  # noqa: RUF012 - of the worker's engine

    async def setup(self, url: str) -> None:
        from windlass.app import migrate_database

        await migrate_database(url)

    async def open(self, url: str) -> None:
        from windlass import open_engine

        self.stack = AsyncExitStack()
        self.engine: Engine = await self.stack.enter_async_context(open_engine(url))

    async def close(self) -> None:
        await self.stack.aclose()

    async def submit(self, index: int, sent_at: float) -> None:
        await self.engine.submit(_submission(index, sent_at))

    async def submit_many(self, indexes: range) -> None:
        await self.engine.submit_many([_submission(index, 0.0) for index in indexes])

    def work(self, url: str) -> None:
        import uvloop

        uvloop.run(self._work(url))

    async def _work(self, url: str) -> None:
        from windlass import Worker, open_engine

        async with open_engine(url, **self.options) as engine:
            worker = Worker(engine, {"noop": _noop}, concurrency=CONCURRENCY)
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
            await worker.run()

    async def fill_finished(self, url: str, count: int) -> None:
        import asyncpg

        # Written as retention would find them: running ten million first would take longer than all the rest.
        connection = await asyncpg.connect(url)
        for first in range(0, count, FINISHED_AT_ONCE):
            await connection.execute(FINISHED, min(FINISHED_AT_ONCE, count - first), timeout=600)
        await connection.execute("vacuum analyze windlass.task", timeout=600)
        await connection.close()

    async def hand_off(self, url: str, count: int, rate: float) -> list[float]:
        from windlass import Worker, open_engine

        latencies: list[float] = []

        async def noop(payload: Any) -> None:
            if payload[0] >= 0:
                latencies.append(time.monotonic() - payload[1])

        async with open_engine(url) as self.engine:
            worker = Worker(self.engine, {"noop": noop}, concurrency=CONCURRENCY)
            running = asyncio.create_task(worker.run())
            await asyncio.sleep(1)
            await self.submit(-1, time.monotonic())
            await asyncio.sleep(0.5)
            await paced(count, rate, self.submit)
            await asyncio.sleep(0.5)
            worker.stop()
            await running
        return latencies


class Pooled(Windlass):
    """A worker as it works behind a transaction-mode pooler: nothing prepared, nothing listened for."""

    name = "windlass-pooled"
    options = {"pooled": True, "listen": False}  # noqa: RUF012


def _submission(index: int, sent_at: float) -> Submission:
    from windlass import Submission

    return Submission(kind="noop", payload=json.dumps([index, sent_at]).encode())


async def _noop(payload: Any) -> None:
    recorder.hit(payload[0], payload[1])


SUBJECTS = {subject.name: subject for subject in (Windlass, Pooled)}
