"""The loops by themselves: everything that can run in the server does, woken by notifications."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.kit.work import SOON_S

from windlass import Engine
from windlass.datasets.dags import Dags
from windlass.datasets.loops import routing
from windlass.datasets.sources import Sources
from windlass.datasets.tables.jobs import JobTable

pytestmark = pytest.mark.slow

SERVER_ONLY = """\
name: counts
jobs:
  - name: begin
    activation: source
    runtime: dispatcher
    operator: manual_source
    source: {kind: manual}
    outputs: 1
    update_strategy: replace
  - name: tick
    activation: source
    runtime: dispatcher
    operator: cron_source
    source: {kind: cron, schedule: "* * * * * *"}
    outputs: 1
    update_strategy: replace
  - name: ranges
    activation: reactive
    runtime: dispatcher
    operator: range_aggregator
    execution_strategy: PerUpdate
    inputs: [{from: {job: begin}}]
    config: {range_size: 1000, start: 0}
    outputs: 1
    update_strategy: replace
  - name: parts
    activation: reactive
    runtime: dispatcher
    operator: range_splitter
    execution_strategy: PerPartition
    inputs: [{from: {job: ranges}}]
    config: {range_size: 250}
    outputs: 1
    update_strategy: replace
"""


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(SOON_S):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def succeeded(engine: Engine, kind: str) -> int:
    async with engine.store.begin() as tx:
        count: int = await tx.session.connection.fetchval(
            "select count(*) from windlass.task where kind = $1 and state = 'succeeded'", kind
        )
    return count


async def test_a_chain_of_server_jobs_runs_by_itself(live_engine: Engine) -> None:
    dags = live_engine.service(Dags)
    async with routing(live_engine):
        made, _ = await dags.deploy("counts", SERVER_ONLY)
        await eventually(lambda: _is(dags, made.id, "active"))

        await live_engine.service(Sources).emit("counts", "begin", cursor=3500)

        await eventually(lambda: _counted(live_engine, "range_splitter", 3))
        await eventually(lambda: _counted(live_engine, "cron_source", 2))
    async with live_engine.store.begin() as tx:
        rows = await tx.session.connection.fetch(
            """select count(*), min(p.first), max(p.last) from windlass.partition p
                 join windlass.dataset_version v on v.id = p.dataset_version
                 join windlass.dataset d on d.id = v.dataset_uuid where d.job = 'parts'"""
        )
        load = await JobTable(tx.session).load([])
    assert [tuple(row) for row in rows] == [(12, 0, 2999)]
    assert load == {}


async def _is(dags: Dags, deployment_id: object, state: str) -> bool:
    return (await dags.deployment("counts", deployment_id)).state == state  # type: ignore[arg-type]


async def _counted(engine: Engine, kind: str, count: int) -> bool:
    return await succeeded(engine, kind) >= count
