"""A run that is submitted again, as a caller does who was killed before the answer came: it must still end."""

from __future__ import annotations

from uuid import UUID, uuid4

import asyncpg
import pytest

from windlass import Conflict, Engine, Lease, State, Submission

pytestmark = pytest.mark.slow


@pytest.fixture
async def lease(engine: Engine) -> Lease:
    return await engine.open_lease("worker", ["default"])


def fan_in(run_id: UUID, members: int) -> list[Submission]:
    parts = [Submission(kind="part", id=uuid4(), run_id=run_id) for _ in range(members)]
    after = tuple(part.id for part in parts if part.id is not None)
    return [*parts, Submission(kind="whole", id=uuid4(), run_id=run_id, after=after)]


async def run_one(engine: Engine, lease: Lease) -> None:
    [claimed] = await engine.claim(lease, 1)
    await engine.complete(claimed)
    while await engine.loops.settle_tick():
        pass


async def test_a_run_that_is_submitted_again_after_each_of_its_tasks_still_ends(engine: Engine, lease: Lease) -> None:
    run_id = uuid4()
    group = fan_in(run_id, members=3)
    first = await engine.submit_many(group)
    for _ in group:
        await run_one(engine, lease)
        assert await engine.submit_many(group) == first
    assert await engine.tasks.run_totals(run_id) == {State.SUCCEEDED: 4}


async def test_a_repeat_leaves_no_edges_behind(
    engine: Engine, lease: Lease, other_connection: asyncpg.Connection
) -> None:
    group = fan_in(uuid4(), members=2)
    await engine.submit_many(group)
    for _ in group:
        await run_one(engine, lease)
    await engine.submit_many(group)
    assert await other_connection.fetchval("select count(*) from windlass.edge") == 0


async def test_a_new_task_may_come_together_with_a_repeat_of_the_ended_task_that_it_waits_for(
    engine: Engine, lease: Lease
) -> None:
    run_id = uuid4()
    group = fan_in(run_id, members=1)
    await engine.submit_many(group[:1])
    await run_one(engine, lease)
    await engine.submit_many(group)
    while await engine.loops.settle_tick():
        pass
    await run_one(engine, lease)
    assert await engine.tasks.run_totals(run_id) == {State.SUCCEEDED: 2}


async def test_a_new_task_may_come_together_with_a_repeat_of_the_waiting_task_that_it_waits_for(
    engine: Engine, lease: Lease
) -> None:
    run_id = uuid4()
    group = fan_in(run_id, members=1)
    await engine.submit_many(group[:1])
    await engine.submit_many(group)
    for _ in group:
        await run_one(engine, lease)
    assert await engine.tasks.run_totals(run_id) == {State.SUCCEEDED: 2}


async def test_a_repeat_with_other_content_is_refused_and_adds_nothing(engine: Engine) -> None:
    run_id = uuid4()
    group = fan_in(run_id, members=2)
    await engine.submit_many(group[:1])
    other = Submission(kind="another", id=group[0].id, run_id=run_id)
    with pytest.raises(Conflict):
        await engine.submit_many([other, *group[1:2]])
    assert await engine.tasks.run_totals(run_id) == {State.QUEUED: 1}
