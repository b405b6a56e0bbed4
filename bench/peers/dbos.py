"""DBOS: durable workflows as a library on PostgreSQL. A task is a workflow without steps."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from bench import recorder
from bench.subject import Subject


class Dbos(Subject):
    name = "dbos"
    requirements = ("dbos>=3.3",)
    # Handlers in its thread pool, and 20 polls of the queue a second: the fastest configuration that we found.
    settings = "worker_concurrency 100, polling_interval 0.05 s, pool 20, handlers in threads"
    drain_tasks = 1_200
    flow_tasks = 400
    batches = False
    stored_sql = "select count(*) from dbos.workflow_status where queue_name = 'q'"
    done_sql = "select count(*) from dbos.workflow_status where status = 'SUCCESS'"

    def _launch(self, url: str) -> None:
        from dbos import DBOS

        DBOS(
            config={
                "name": "bench",
                "system_database_url": url,
                "log_level": "ERROR",
                "sys_db_pool_size": 20,
                "executor_id": f"worker-{os.getpid()}",
                "application_version": "v1",
                "run_admin_server": False,
            }
        )

        @DBOS.workflow(name="noop")
        def noop(index: int, sent_at: float) -> None:
            recorder.hit(index, sent_at)

        @DBOS.step(name="step")
        def step() -> int:
            return 1

        @DBOS.workflow(name="flow")
        def flow(index: int, sent_at: float) -> None:
            recorder.hit(index, sent_at)
            for _ in range(3):
                step()

        DBOS.launch()
        DBOS.register_queue("q", worker_concurrency=100, polling_interval_sec=0.05)

    async def setup(self, url: str) -> None:
        from dbos import DBOS

        await asyncio.to_thread(self._launch, url)
        await asyncio.to_thread(DBOS.destroy)

    async def open(self, url: str) -> None:
        from dbos import DBOSClient

        self.client: Any = await asyncio.to_thread(DBOSClient, system_database_url=url)

    async def close(self) -> None:
        await asyncio.to_thread(self.client.destroy)

    async def submit(self, index: int, sent_at: float) -> None:
        target = {"queue_name": "q", "workflow_name": self.unit, "app_version": "v1"}
        await self.client.enqueue_async(target, index, sent_at)

    def work(self, url: str) -> None:
        self._launch(url)
        while True:
            time.sleep(60)


SUBJECT = Dbos
