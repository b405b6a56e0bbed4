"""procrastinate: a task queue in PostgreSQL with stored procedures and LISTEN; one claim per job."""

from __future__ import annotations

import logging
from typing import Any

from bench import recorder
from bench.subject import Subject


class Procrastinate(Subject):
    name = "procrastinate"
    requirements = ("procrastinate>=3.10", "psycopg[binary,pool]", "uvloop")
    settings = "concurrency 20, pool 4–16, psycopg (binary), uvloop, delete_jobs never"
    drain_tasks = 2_000
    stored_sql = "select count(*) from procrastinate_jobs"
    done_sql = "select count(*) from procrastinate_jobs where status = 'succeeded'"

    def _application(self, url: str) -> tuple[Any, Any]:
        import procrastinate

        logging.getLogger("procrastinate").setLevel(logging.ERROR)  # a line per job would be measured too
        application = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url, min_size=4, max_size=16))

        @application.task(name="noop", queue="q")
        async def noop(index: int, sent_at: float) -> None:
            recorder.hit(index, sent_at)

        return application, noop

    async def setup(self, url: str) -> None:
        application, _ = self._application(url)
        async with application.open_async():
            await application.schema_manager.apply_schema_async()

    async def open(self, url: str) -> None:
        self.application, self.noop = self._application(url)
        await self.application.open_async()

    async def close(self) -> None:
        await self.application.close_async()

    async def submit(self, index: int, sent_at: float) -> None:
        await self.noop.defer_async(index=index, sent_at=sent_at)

    async def submit_many(self, indexes: range) -> None:
        await self.noop.batch_defer_async(*({"index": index, "sent_at": 0.0} for index in indexes))

    async def run_worker(self, url: str) -> None:
        application, _ = self._application(url)
        async with application.open_async():
            await application.run_worker_async(queues=["q"], concurrency=20, delete_jobs="never", listen_notify=True)


SUBJECT = Procrastinate
