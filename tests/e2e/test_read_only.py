"""A failover to a standby: for a while the database answers and takes no writes."""

from __future__ import annotations

import asyncio
from uuid import UUID

import asyncpg
import httpx
import pytest
from tests.api.conftest import problem
from tests.kit.database import Server
from tests.kit.outage import read_only
from tests.kit.work import soon

from windlass import App, open_engine
from windlass.serve import open_server
from windlass.store.errors import DatabaseUnavailable, translate

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.ReadOnlySQLTransactionError("cannot execute INSERT in a read-only transaction"),
        asyncpg.PostgresIOError("could not read block 7"),
        asyncpg.IdleInTransactionSessionTimeoutError("terminating connection"),
        asyncpg.TransactionTimeoutError("terminating connection"),
    ],
    ids=["read only", "disk", "idle in transaction", "transaction timeout"],
)
def test_what_the_database_says_of_itself_means_later(error: Exception) -> None:
    assert isinstance(translate(error), DatabaseUnavailable)


async def test_a_read_only_database_is_503_and_workers_wait(database: str, postgres: Server) -> None:
    app = App("shop", database)

    @app.task
    async def double(number: int) -> int:
        return 2 * number

    async with (
        open_engine(database) as engine,
        open_server(engine, http="127.0.0.1:0", api_key="k") as url,
        httpx.AsyncClient(base_url=url, headers={"Authorization": "Bearer k"}, timeout=60) as api,
        app,
    ):
        worker = app.worker(lease_ttl_s=30.0)
        working = asyncio.create_task(worker.run())
        assert await (await double.submit(1)).result(timeout=60) == 2
        async with read_only(postgres, database):
            body = {"kind": double.kind, "payload": {"number": 21}}
            submitting = asyncio.create_task(api.post("/api/v1/tasks", json=body))
            answer = await api.post("/api/v1/keys", json={"name": "ada", "role": "viewer", "namespace": "default"})
            problem(answer, 503, "store_busy")
            assert answer.headers["retry-after"] == "1"
        assert not working.done(), working
        submitted = await soon(submitting)
        assert submitted.status_code == 201, submitted.text
        task_id = UUID(submitted.json()["id"])
        while not (await soon(engine.wait(task_id, 20))).task.terminal:
            pass
        worker.stop()
        await soon(working)
