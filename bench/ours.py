"""Windlass as a subject: an app and its handlers, with all guarantees on. Its workers connect to the database."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from bench import recorder
from bench.agent import paced
from bench.process import free_ports
from bench.subject import Subject

if TYPE_CHECKING:
    from windlass import App

KEY = "wl_for_the_length_of_a_benchmark_only"
CONCURRENCY = 1_000  # gives batches of 500, the size of the limit's
FINISHED_AT_ONCE = 500_000
FINISHED = """
insert into windlass.task (id, namespace, queue, kind, state, available_at, attempt, outcome, lease_id, worker,
                           created_at, started_at, finished_at, payload, result)
select uuidv7(interval '-1 hour'), 'default', 'default', 'noop', 'succeeded', t.at, 1, 'succeeded', gen_random_uuid(),
       'worker', t.at, t.at, t.at, convert_to(json_build_object('index', i, 'sent_at', 0.0)::text, 'UTF8'), 'null'
  from generate_series(1, $1::int) i, (select now() - interval '1 hour' as at) t"""


class Windlass(Subject):
    name = "windlass"
    part = ""
    settings = f"concurrency {CONCURRENCY}, else defaults; uvloop"
    drain_tasks = 80_000
    flow_tasks = 10_000
    stored_sql = "select count(*) from windlass.task"
    done_sql = "select count(*) from windlass.task where state = 'succeeded'"
    pooled = False

    async def setup(self, url: str) -> None:
        from windlass.serve import migrate_database

        await migrate_database(url)

    async def open(self, url: str) -> None:
        self.app = await self._app(url).__aenter__()

    async def close(self) -> None:
        await self.app.__aexit__(None, None, None)

    async def submit(self, index: int, sent_at: float) -> None:
        await self.app.handlers[self.unit].submit(index, sent_at)

    async def submit_many(self, indexes: range) -> None:
        await self.app.handlers[self.unit].submit_many([(index, 0.0) for index in indexes])

    async def run_worker(self, url: str) -> None:
        async with self._app(url) as app:
            worker = app.worker(concurrency=CONCURRENCY)
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
            await worker.run()

    def _app(self, url: str, hit: Callable[[int, float], None] = recorder.hit) -> App:
        from bench.handlers import with_handlers
        from windlass import App

        return with_handlers(App("bench", url, pooled=self.pooled), hit)

    async def fill_finished(self, url: str, count: int) -> None:
        import asyncpg

        # Inserted as finished tasks: to run ten million would take longer than all other measurements.
        connection = await asyncpg.connect(url)
        for first in range(0, count, FINISHED_AT_ONCE):
            await connection.execute(FINISHED, min(FINISHED_AT_ONCE, count - first), timeout=600)
        await connection.execute("vacuum analyze windlass.task", timeout=600)
        await connection.close()

    async def hand_off(self, url: str, count: int, rate: float) -> list[float]:
        latencies: list[float] = []

        def hit(index: int, sent_at: float) -> None:
            if index >= 0:
                latencies.append(time.monotonic() - sent_at)

        async with self._app(url, hit) as self.app:
            worker = self.app.worker(concurrency=CONCURRENCY)
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
    """A worker behind a transaction-mode pooler: no prepared statements and no LISTEN."""

    name = "windlass-pooled"
    pooled = True


class Remote(Windlass):
    """A worker that reaches its queue through a server. The costs of both are counted."""

    name = "windlass-remote"

    def worker_commands(self, python: Path, url: str, count: int) -> list[list[str]]:
        address = f"127.0.0.1:{free_ports(1)[0]}"
        serve = [str(python.with_name("windlass")), "serve", "--database-url", url, "--http", "127.0.0.1:0"]
        workers = super().worker_commands(python, f"http://{address}", count)
        return [[*serve, "--grpc", address, "--api-key", KEY], *workers]

    def _app(self, url: str, hit: Callable[[int, float], None] = recorder.hit) -> App:
        from bench.handlers import with_handlers
        from windlass import App

        if not url.startswith("http"):
            return super()._app(url, hit)
        return with_handlers(App("bench", server=url, api_key=KEY), hit)


SUBJECTS = {subject.name: subject for subject in (Windlass, Pooled, Remote)}
