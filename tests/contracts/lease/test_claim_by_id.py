"""Holders beside the wire: directly and through a pooler, when replies are lost, and beside other ways to a task."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec
import pytest
from tests.conftest import NewEngine
from tests.kit.work import job, worker

from windlass import Engine, LeaseLost, State
from windlass.contracts.lease.claim_by_id import Held, Holders
from windlass.contracts.lease.delivery import Wakeup
from windlass.contracts.lease.rules import Caller, LeaseCredential, LeaseReport, NotClaimed
from windlass.core.delivery import PULL
from windlass.core.queue import QueueConfig
from windlass.core.task import Outcome
from windlass.datasets.read import Datasets
from windlass.datasets.rules.events import ROUTE, EventReport
from windlass.engine.read.metrics import Tally
from windlass.store.errors import DatabaseUnavailable
from windlass.store.pool import Session
from windlass.testing.clock import VirtualClock

pytestmark = pytest.mark.slow

QUEUE, CALLER = "remote", Caller("CN=wrapper", "ab" * 32, ("URI:windlass:worker:wrapper",))
DATASET, VERSION = UUID(int=1), UUID(int=2)
EVENT = EventReport(DATASET, VERSION, 7)


@pytest.fixture(autouse=True)
async def queue(engine: Engine) -> None:
    await engine.queues.put(QUEUE, delivery=Wakeup(carrier="postgres", lease_ms=60_000), limits=QueueConfig())


async def hold(engine: Engine, **fields: Any) -> Held:
    wire = msgspec.json.encode({"outputs": [{"dataset_uuid": str(DATASET), "dataset_version": str(VERSION)}]})
    task_id = await engine.submit(job(queue=QUEUE, wire=wire, **fields))
    held = await engine.service(Holders).claim(task_id, "ada", CALLER)
    assert isinstance(held, Held), held
    return held


def credential(held: Held) -> LeaseCredential:
    task = held.task
    return LeaseCredential(task.id, attempt=task.attempt, token=task.lease_id, caller=CALLER)


def done(held: Held, **said: Any) -> LeaseReport:
    return LeaseReport(credential(held), Outcome.SUCCEEDED, b"1", **said)


def lose_reply(monkeypatch: pytest.MonkeyPatch, query: str) -> list[str]:
    """The first of these statements is carried out, and its answer lost with the connection."""
    fetch, lost = Session.fetch, []

    async def fetched(self: Session, name: str, *args: object) -> Sequence[Any]:
        rows = await fetch(self, name, *args)
        if name == query and not lost:
            lost.append(name)
            self.broken = True
            raise DatabaseUnavailable("lost on purpose")
        return rows

    monkeypatch.setattr(Session, "fetch", fetched)
    return lost


async def test_a_task_is_claimed_kept_and_finished(engine: Engine, clock: VirtualClock) -> None:
    held = await hold(engine)
    assert held.payload == b"0"
    await clock.advance(59)
    extended = await engine.service(Holders).extend(credential(held))
    assert (extended.expires_at - extended.now).total_seconds() == 60
    await engine.service(Holders).emit(credential(held), (EVENT,))

    assert await engine.service(Holders).finish(done(held)) is State.SUCCEEDED

    assert (await engine.tasks.get(held.task.id)).task.result == b"1"
    assert [one.cursor for one in (await Datasets(engine.store).events(held.task.id)).items] == [7]


async def test_what_is_claimed_and_what_ends_is_counted(engine: Engine) -> None:
    engine.count(tally := Tally())
    held = await hold(engine)

    await engine.service(Holders).finish(done(held))

    assert tally.ended[QUEUE, "job", "succeeded"] == 1
    assert sum(tally.latencies[QUEUE].counts) == 1


async def test_a_claim_whose_reply_was_lost_finds_what_it_began(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    task_id = await engine.submit(job(queue=QUEUE))
    lost = lose_reply(monkeypatch, "claim_at_once")

    held = await engine.service(Holders).claim(task_id, "ada", CALLER)

    assert lost
    assert isinstance(held, Held)
    assert (held.task.attempt, held.task.lease_id) == (1, (await engine.tasks.get(task_id)).task.lease_id)
    await engine.service(Holders).finish(done(held))


async def test_a_claim_within_limits_whose_reply_was_lost_is_run_again(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await engine.queues.put(
        QUEUE, delivery=Wakeup(carrier="postgres", lease_ms=60_000), limits=QueueConfig(max_running=1)
    )
    task_id = await engine.submit(job(queue=QUEUE))
    lose_reply(monkeypatch, "insert_leases")

    held = await engine.service(Holders).claim(task_id, "ada", CALLER)

    assert isinstance(held, Held)
    assert held.task.attempt == 1


async def test_a_report_whose_reply_was_lost_is_the_same_once_more(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = await hold(engine)
    lost = lose_reply(monkeypatch, "finish_at_once")

    assert await engine.service(Holders).finish(done(held)) is State.SUCCEEDED

    assert lost
    entries = [entry.what for entry in await engine.tasks.timeline(held.task.id)]
    assert entries.count("reported") == 1


async def test_events_whose_reply_was_lost_are_recorded_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    held = await hold(engine)
    lose_reply(monkeypatch, "insert_events")

    await engine.service(Holders).emit(credential(held), (EVENT,))

    assert len((await Datasets(engine.store).events(held.task.id)).items) == 1


async def test_a_worker_that_claims_and_a_holder_never_have_the_same_task(
    engine: Engine, new_engine: NewEngine
) -> None:
    """Also where the worker was there before the queue was set to wake its workers."""
    other = await new_engine()
    lease = await worker(other, "moved")
    ids = [await engine.submit(job(queue="moved")) for _ in range(20)]
    pulled = await other.claim(lease, 5)
    await engine.queues.put("moved", delivery=Wakeup(), limits=QueueConfig())

    found, more = await asyncio.gather(
        asyncio.gather(*(engine.service(Holders).claim(id_, "ada", CALLER) for id_ in ids)), other.claim(lease, 20)
    )

    held = {one.task.id for one in found if isinstance(one, Held)}
    rest = {claimed.task.id for claimed in (*pulled, *more)}
    assert len(pulled) == 5
    assert held & rest == set()
    assert held | rest == set(ids)


async def test_silence_and_a_sign_of_life_at_the_same_time_agree(
    engine: Engine, new_engine: NewEngine, clock: VirtualClock
) -> None:
    """Whoever is first: a lease is extended, or lost, and not both."""
    other = await new_engine()
    held = [await hold(engine) for _ in range(10)]
    await clock.advance(60)

    extended, _ = await asyncio.gather(
        asyncio.gather(*(engine.service(Holders).extend(credential(one)) for one in held), return_exceptions=True),
        other.parts.outgoing.silence_tick(),
    )

    assert all(isinstance(one, LeaseLost) for one in extended)
    await other.parts.outgoing.silence_tick()
    assert {(await engine.tasks.get(one.task.id)).task.state for one in held} == {State.QUEUED}


async def test_claims_and_ends_of_a_crowd_share_statements(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [await engine.submit(job(queue=QUEUE)) for _ in range(60)]
    fetch, said = Session.fetch, []

    async def fetched(self: Session, name: str, *args: object) -> Sequence[Any]:
        said.append(name)
        return await fetch(self, name, *args)

    monkeypatch.setattr(Session, "fetch", fetched)

    async def life(task_id: UUID) -> None:
        held = await engine.service(Holders).claim(task_id, "ada", CALLER)
        assert isinstance(held, Held)
        assert await engine.service(Holders).finish(done(held)) is State.SUCCEEDED

    await asyncio.gather(*(life(id_) for id_ in ids))

    assert set(said) == {"claim_at_once", "finish_at_once"}
    assert len(said) < 20


async def test_a_task_whose_queue_was_set_otherwise_is_finished_by_its_holder_all_the_same(engine: Engine) -> None:
    held = await hold(engine)
    await engine.queues.put(QUEUE, delivery=PULL, limits=QueueConfig())

    assert await engine.service(Holders).claim(held.task.id, "bob", CALLER) == NotClaimed(State.RUNNING)
    await engine.service(Holders).extend(credential(held))
    assert await engine.service(Holders).finish(done(held)) is State.SUCCEEDED


async def test_what_is_kept_of_data_goes_with_its_task(engine: Engine, clock: VirtualClock) -> None:
    held = await hold(engine)
    await engine.service(Holders).emit(credential(held), (EVENT,))
    await engine.service(Holders).finish(done(held))
    await clock.advance(8 * 86400)

    await engine.loops.retention_tick()

    assert (await Datasets(engine.store).events(held.task.id)).items == []


async def test_an_effect_of_an_event_that_is_given_up_takes_nothing_from_the_attempt(
    engine: Engine, clock: VirtualClock
) -> None:
    async def broken(_: object) -> None:
        raise ValueError("no")

    engine.parts.effects[ROUTE] = broken
    held = await hold(engine)
    await engine.service(Holders).emit(credential(held), (EVENT,))
    for _ in range(12):
        await engine.service(Holders).extend(credential(held))
        await engine.loops.effects_tick()
        for _ in range(8):
            await clock.advance(50)
            await engine.service(Holders).extend(credential(held))

    assert [effect.kind for effect in await engine.parts.repair.effects(dead=True)] == [ROUTE]
    assert (await engine.tasks.get(held.task.id)).task.state is State.RUNNING
