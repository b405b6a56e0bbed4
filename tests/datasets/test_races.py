"""What happens between two statements of another server: nothing that is owed is lost, and nothing is made twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from tests.contracts.lease.world import Holder, TlsFiles, open_world
from tests.contracts.lease.world import World as LeaseWorld
from tests.datasets.test_deploy import CHANGED
from tests.datasets.world import World, output
from tests.kit.work import held, waits_for
from tests.kit.world import ok, open_still
from tests.sim.bugs import reworded

from windlass.datasets.deployments import Deployments
from windlass.datasets.router import Router
from windlass.datasets.server_jobs import ServerJobs
from windlass.datasets.tables.events import DatasetTable
from windlass.datasets.tables.jobs import JobTable
from windlass.testing.clock import VirtualClock

pytestmark = pytest.mark.slow


def before(monkeypatch: pytest.MonkeyPatch, name: str, does: Callable[[], Awaitable[object]]) -> None:
    """Another server does something just before the next call of a method of JobTable."""
    real = getattr(JobTable, name)

    async def call(self: JobTable, *args: Any) -> Any:
        monkeypatch.setattr(JobTable, name, real)
        await does()
        return await real(self, *args)

    monkeypatch.setattr(JobTable, name, call)


async def either(work: asyncio.Task[Any], waiting: asyncio.Task[None]) -> None:
    """Until the work waits for a lock, or is done without."""
    await asyncio.wait({work, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def job_id_of(world: World, name: str) -> UUID:
    async with world.engine.store.begin() as tx:
        found: UUID = await tx.session.connection.fetchval("select id from windlass.job where name = $1", name)
    return found


async def test_a_job_that_is_marked_while_a_reconcile_clears_it_stays_behind(world: World) -> None:
    await world.deploy()
    job_id = await job_id_of(world, "alert")

    async def mark() -> None:
        async with world.engine.store.begin() as tx:
            await JobTable(tx.session).mark_behind([job_id])

    await mark()
    async with world.engine.store.begin() as tx:
        jobs = JobTable(tx.session)
        assert await jobs.lock_behind(10) == [job_id]
        marking = asyncio.create_task(mark())
        waiting = asyncio.create_task(waits_for(tx.session.connection))
        await either(marking, waiting)
        await jobs.caught_up([job_id])
    await marking

    async with world.engine.store.begin() as tx:
        assert await JobTable(tx.session).lock_behind(10) == [job_id]


async def test_what_is_owed_to_a_build_of_a_paused_dag_stays_owed_until_it_is_resumed(world: World) -> None:
    await world.deploy()
    source = await world.emit()
    second = await world.deploy(CHANGED, auto_cutover=False)
    ok(await source.complete(events=[{**output(source), "cursor": 150}]))
    await world.engine.service(Router).route_tick()
    assert await world.engine.service(ServerJobs).tick() == 1, "it has committed a range"
    await world.dags.pause("chain")
    await world.settle()
    assert await world.tasks("compact") == []

    await world.dags.pause("chain", paused=False)
    await world.settle()

    assert second.state == "ready"
    assert len(await world.tasks("compact", "queued")) == 2, "of the active version and of the other one"


async def test_no_task_is_made_for_a_job_that_leaves_while_its_event_is_routed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.deploy()
    source = await world.emit()
    second = await world.deploy(CHANGED, auto_cutover=False)
    ok(await source.complete(events=[{**output(source), "cursor": 150}]))
    await world.engine.service(Router).route_tick()
    await world.engine.service(ServerJobs).tick()

    async def cut_over() -> None:
        await world.dags.activate("chain", second.number)
        await world.engine.service(Deployments).tick()

    before(monkeypatch, "lock_jobs", cut_over)
    await world.settle()

    assert len(await world.tasks("compact")) == 1, "of the new version alone"


async def test_a_task_whose_row_is_locked_when_its_turn_comes_is_waited_for(
    world: World, other_connection: asyncpg.Connection
) -> None:
    await world.deploy()
    for cursor in (10, 20):
        await world.report(await world.emit(), cursor=cursor)
    [task_id] = await world.tasks("alert", "blocked")
    ok(await (await world.hold("alert")).complete())

    async with held(other_connection, task_id):  # as a claim that was refused does
        advance = asyncio.create_task(world.engine.service(Router).advance_tick())
        waiting = asyncio.create_task(waits_for(other_connection))
        await either(advance, waiting)
    await advance

    assert await world.tasks("alert", "queued") == [task_id]


async def commit_at_once(
    world: World, other: LeaseWorld, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[int], list[dict[str, Any]]]:
    """Two servers complete tasks that commit the same partition. The second comes when the first has read the newest
    revision. Returns their answers and the revisions."""
    await world.deploy()
    ours, theirs = await world.emit(), await world.emit()
    event, real = {**output(ours), "partition_key": "a"}, DatasetTable.committed
    answers: list[asyncio.Task[Any]] = []

    async def committed(self: DatasetTable, places: Any) -> Any:
        found = await real(self, places)
        monkeypatch.setattr(DatasetTable, "committed", real)
        answers.append(asyncio.create_task(Holder(other, theirs.reply).complete(events=[event])))
        await either(answers[0], asyncio.create_task(waits_for(self._session.connection)))
        return found

    monkeypatch.setattr(DatasetTable, "committed", committed)
    answer = await ours.complete(events=[event])
    statuses = [answer.status_code, (await answers[0]).status_code]
    async with world.engine.store.begin() as tx:
        rows = await tx.session.connection.fetch(
            "select revision, task_id from windlass.partition_revision order by revision"
        )
    return statuses, [{row["revision"]: row["task_id"]} for row in rows]


@pytest.fixture
async def other_server(database: str, clock: VirtualClock, tls_files: TlsFiles) -> AsyncIterator[LeaseWorld]:
    async with open_still(database, clock) as engine, open_world(engine, clock, tls_files) as leases:
        yield leases


async def test_two_servers_that_commit_a_partition_at_once_write_two_revisions(
    world: World, other_server: LeaseWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    statuses, revisions = await commit_at_once(world, other_server, monkeypatch)

    assert statuses == [200, 200]
    assert [list(row) for row in revisions] == [[1], [2]]
    assert len({task_id for row in revisions for task_id in row.values()}) == 2


async def test_revisions_that_are_counted_without_a_lock_are_noticed(
    world: World, other_server: LeaseWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    with reworded(lock_dataset_versions=("pg_advisory_xact_lock(hashtextextended(v.id::text, 0))", "v.id")):
        statuses, revisions = await commit_at_once(world, other_server, monkeypatch)

    assert statuses != [200, 200]
    assert len(revisions) == 1
