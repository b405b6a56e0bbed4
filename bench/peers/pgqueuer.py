"""pgqueuer: a queue in PostgreSQL that submits and claims in batches. The fastest peer."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from bench import recorder
from bench.subject import Subject


class Pgqueuer(Subject):
    name = "pgqueuer"
    requirements = ("pgqueuer>=1.6", "asyncpg", "uvloop")
    settings = "batch_size 200, pool 4–16, asyncpg, uvloop, dequeue_timeout 30 s"
    drain_tasks = 30_000
    stored_sql = "select count(*) from pgqueuer"
    # A finished job leaves the queue table and is kept in the log.
    done_sql = "select count(*) from pgqueuer_log where status = 'successful'"

    async def setup(self, url: str) -> None:
        import asyncpg
        from pgqueuer.adapters.drivers.asyncpg import AsyncpgDriver
        from pgqueuer.queries import Queries

        connection = await asyncpg.connect(url)
        await Queries(AsyncpgDriver(connection)).install()
        await connection.close()

    async def open(self, url: str) -> None:
        import asyncpg
        from pgqueuer.adapters.drivers.asyncpg import AsyncpgPoolDriver
        from pgqueuer.queries import Queries

        self.pool = await asyncpg.create_pool(url, min_size=4, max_size=16)
        self.queries = Queries(AsyncpgPoolDriver(self.pool))

    async def close(self) -> None:
        await self.pool.close()

    async def submit(self, index: int, sent_at: float) -> None:
        await self.queries.enqueue("noop", json.dumps([index, sent_at]).encode())

    async def submit_many(self, indexes: range) -> None:
        count = len(indexes)
        await self.queries.enqueue(["noop"] * count, [json.dumps([i, 0]).encode() for i in indexes], [0] * count)

    async def run_worker(self, url: str) -> None:
        import asyncpg
        from pgqueuer import PgQueuer

        pool = await asyncpg.create_pool(url, min_size=4, max_size=16)
        application = PgQueuer.from_asyncpg_pool(pool)

        @application.entrypoint("noop")
        async def noop(job: Any) -> None:
            recorder.hit(*json.loads(job.payload))

        await application.run(batch_size=200, dequeue_timeout=timedelta(seconds=30))


SUBJECT = Pgqueuer
