"""Claims: each task to one claimer, by priority then age, fair between keys, and never past a row that is held."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import chain
from typing import Any

import asyncpg
import pytest
from msgspec.structs import replace
from tests.kit.work import held, job, jobs, soon, waits_for, work_off, worker

from windlass import Claimed, Engine, LeaseLost, State
from windlass.engine.claim.strategies import LANES_MAX
from windlass.store.errors import DatabaseUnavailable
from windlass.store.pool import Session
from windlass.store.store import Store
from windlass.testing.clock import VirtualClock


async def test_many_concurrent_claimers_never_get_the_same_task(new_engine: Any) -> None:
    engines = [await new_engine() for _ in range(4)]
    ids = await engines[0].submit_many(jobs(300))
    leases = [(engine, await worker(engine)) for engine in engines for _ in range(4)]

    async def take_all(engine: Engine, lease: Any) -> list[Claimed]:
        taken = []
        while claimed := await engine.claim(lease, 7):
            taken += claimed
        return taken

    taken = list(chain(*await soon(asyncio.gather(*(take_all(*pair) for pair in leases)), 60)))
    assert Counter(c.task.id for c in taken) == Counter(ids)
    assert {c.task.attempt for c in taken} == {1}


async def test_claims_take_the_lowest_priority_number_first_then_the_oldest(
    engine: Engine, clock: VirtualClock
) -> None:
    expected = {}
    for number, priority in enumerate([0, 5, -5, 0, 5, -5]):
        expected[await engine.submit(job(number, priority=priority))] = (priority, number)
        await clock.advance(1)
    claimed = await engine.claim(await worker(engine), 6)
    order = [expected[c.task.id] for c in claimed]
    assert order == sorted(expected.values())


async def test_a_task_that_became_available_earlier_is_older(engine: Engine, clock: VirtualClock) -> None:
    now = await clock.advance(10)
    late = await engine.submit(job(available_at=now))
    early = await engine.submit(job(available_at=now.replace(year=now.year - 1)))
    assert [c.task.id for c in await engine.claim(await worker(engine), 2)] == [early, late]


async def test_a_lane_that_comes_or_goes_is_noticed(engine: Engine) -> None:
    lease = await worker(engine)
    for keys in ([""], ["", "a", "b"], ["b"], ["", "c"]):
        ids = await engine.submit_many([job(concurrency_key=key) for key in keys])
        assert {c.task.id for c in await engine.claim(lease, 10)} == set(ids), keys
    assert await engine.claim(lease, 10) == []


async def test_a_claim_whose_reply_was_lost_is_found_again(
    engine: Engine, other_connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, lease = await engine.submit_many(jobs(3)), await worker(engine)
    fetch, lost = Session.fetch, []

    async def fetch_and_lose(self: Session, query: str, *args: object) -> Any:
        rows = await fetch(self, query, *args)
        if query == "start_due" and not lost:
            lost.append(query)
            self.broken = True
            await other_connection.fetch("select pg_terminate_backend($1)", self.connection.get_server_pid())
            raise DatabaseUnavailable
        return rows

    before = await engine.claim(lease, 1)
    monkeypatch.setattr(Session, "fetch", fetch_and_lose)
    claimed = before + await engine.claim(lease, 10)

    if lost == ["start_due"] and not engine.store.pooled:
        assert {c.task.id for c in claimed} == set(ids)
    claimed += await engine.claim(lease, 10)
    assert Counter(c.task.id for c in claimed) == Counter(ids)
    assert {c.task.attempt for c in claimed} == {1}


@pytest.mark.parametrize(("keys", "wanted"), [(2, 10), (4, 8), (10, 100), (7, 7)])
async def test_backlogged_keys_get_an_equal_share_of_one_batch(engine: Engine, keys: int, wanted: int) -> None:
    for key in range(keys):
        await engine.submit_many(jobs(wanted, concurrency_key=f"key {key}"))
    claimed = await engine.claim(await worker(engine), wanted)
    shares = Counter(c.task.concurrency_key for c in claimed)
    assert len(claimed) == wanted
    assert len(shares) == keys
    assert max(shares.values()) - min(shares.values()) <= 1


async def test_one_at_a_time_the_keys_take_turns(engine: Engine) -> None:
    for key in "abc":
        await engine.submit_many(jobs(4, concurrency_key=key))
    lease = await worker(engine)
    turns = [(await engine.claim(lease))[0].task.concurrency_key for _ in range(12)]
    assert [sorted(turns[i : i + 3]) for i in range(0, 12, 3)] == [["a", "b", "c"]] * 4


async def test_a_key_with_a_long_backlog_does_not_keep_a_new_key_waiting(engine: Engine) -> None:
    await engine.submit_many(jobs(500, concurrency_key="crowd"))
    lone = await engine.submit(job(concurrency_key="lone"))
    assert lone in [c.task.id for c in await engine.claim(await worker(engine), 2)]


async def test_no_lower_priority_is_claimed_while_a_higher_one_waits(engine: Engine) -> None:
    """Also where one key has much and another has little, so that equal shares are not used up."""
    await engine.submit_many(jobs(50, concurrency_key="much"))
    await engine.submit_many(jobs(1, concurrency_key="little"))
    await engine.submit_many(jobs(50, priority=1))
    lease, seen = await worker(engine), []
    while claimed := await engine.claim(lease, 20):
        seen += [c.task.priority for c in claimed]
    assert seen == [0] * 51 + [1] * 50


@pytest.mark.parametrize("lanes", [LANES_MAX - 1, LANES_MAX, LANES_MAX + 44])
async def test_however_many_keys_there_are_a_claim_finds_one_that_has_work(engine: Engine, lanes: int) -> None:
    await engine.submit_many([job(i, concurrency_key=f"key {i % lanes:04}") for i in range(lanes * 2)])
    lease, claimed = await worker(engine), 0
    while claimed < lanes * 2:
        batch = await engine.claim(lease, 100)
        assert batch, f"nothing found after {claimed} of {lanes * 2}"
        claimed += len(batch)


async def test_a_claim_looks_beyond_lanes_whose_tasks_are_for_others(engine: Engine) -> None:
    await engine.submit_many([job(kind="other", concurrency_key=f"a {i:04}") for i in range(LANES_MAX + 10)])
    mine = await engine.submit(job(concurrency_key="z"))
    lease = await worker(engine, kinds=["job"])
    assert [c.task.id for c in await engine.claim(lease)] == [mine]


async def test_a_row_that_somebody_holds_is_passed_by(engine: Engine, other_connection: asyncpg.Connection) -> None:
    ids = await engine.submit_many(jobs(3))
    lease = await worker(engine)
    async with held(other_connection, ids[0]):
        claimed = await soon(engine.claim(lease, 3))
    assert {c.task.id for c in claimed} == set(ids[1:])
    assert [c.task.id for c in await engine.claim(lease, 3)] == [ids[0]]


async def test_a_claim_carries_the_payload_and_begins_an_attempt(engine: Engine, clock: VirtualClock) -> None:
    await engine.submit(job(payload=b'{"to": "ada"}'))
    lease = await worker(engine)
    [claimed] = await engine.claim(lease)
    assert claimed.payload == b'{"to": "ada"}'
    assert (claimed.task.state, claimed.task.attempt, claimed.task.lease_id) == (State.RUNNING, 1, lease.id)
    assert claimed.task.started_at == await clock.now()


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        pytest.param({"kind": "other"}, {"kinds": ["job"]}, id="kind"),
        pytest.param({"queue": "other"}, {}, id="queue"),
        pytest.param({"namespace": "other"}, {}, id="namespace"),
        pytest.param({"requires": ("gpu", "eu")}, {"labels": ["gpu"]}, id="labels"),
    ],
)
async def test_a_worker_gets_only_what_it_can_take(engine: Engine, fields: Any, options: Any) -> None:
    await engine.submit(job(**fields))
    mine = await engine.submit(job(kind="job"))
    claimed = await engine.claim(await worker(engine, **options), 10)
    assert [c.task.id for c in claimed] == [mine]


async def test_a_worker_with_more_labels_than_needed_takes_the_task(engine: Engine) -> None:
    await engine.submit(job(requires=("gpu", "eu")))
    assert len(await engine.claim(await worker(engine, labels=["eu", "fast", "gpu"]))) == 1


async def test_a_lease_on_many_queues_serves_each_of_them(engine: Engine) -> None:
    for queue in ("a", "b", "c"):
        await engine.submit_many(jobs(2, queue=queue))
    lease = await worker(engine, "a", "b", "c")
    first = [(await engine.claim(lease))[0].task.queue for _ in range(3)]
    assert sorted(first) == ["a", "b", "c"]
    assert len(await work_off(engine, lease)) == 3


async def test_a_lease_that_has_run_out_claims_nothing(engine: Engine, clock: VirtualClock) -> None:
    await engine.submit(job())
    lease = await worker(engine, ttl_s=10)
    await clock.advance(10)
    with pytest.raises(LeaseLost):
        await engine.claim(lease)
    assert await engine.claim(await worker(engine)) != []


async def test_a_claim_whose_commit_is_still_on_its_way_is_waited_for_before_it_is_looked_up(
    engine: Engine, store: Store, other_connection: asyncpg.Connection
) -> None:
    """The reply was lost with the connection, but the server still works on the commit."""
    await engine.submit(job())
    lease = await worker(engine)
    transaction = other_connection.transaction()
    await transaction.start()
    await other_connection.execute("select from windlass.lease for key share")
    await other_connection.execute("update windlass.task set state = 'running', attempt = 1, lease_id = $1", lease.id)
    tried = [Claimed(replace((await engine.tasks.page()).tasks[0].task, attempt=1), b"")]
    found = asyncio.create_task(engine.parts.claimer.lost_replies.find_attempts(lease, tried))
    await waits_for(other_connection)
    await transaction.commit()
    assert [c.task.id for c in await soon(found)] == [tried[0].task.id]
