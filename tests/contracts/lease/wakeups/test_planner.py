"""Which tasks messages are sent for, and when again; on PostgreSQL as the carrier."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from tests.contracts.lease.wakeups.side import Sender
from tests.kit.work import CRASH, job, jobs, soon, until

from windlass import Claimed, Engine, Rate, State
from windlass.contracts.lease.claim_by_id import Held, Holders
from windlass.contracts.lease.delivery import Wakeup
from windlass.contracts.lease.rules import Caller
from windlass.contracts.lease.wakeups import planner
from windlass.contracts.lease.wakeups.messages import Messages
from windlass.contracts.lease.wakeups.planner import Wakeups
from windlass.contracts.lease.wakeups.rules import LOST_AFTER_MAX_S, LOST_AFTER_S, WakeupMessage
from windlass.contracts.lease.wakeups.table import WakeupTable
from windlass.contracts.lease.wire.wakeup import task_of
from windlass.core.delivery import PULL
from windlass.core.queue import QueueConfig
from windlass.core.states import Effect
from windlass.engine.send.outbox import REPEATABLE_HOLD_S
from windlass.errors import InvalidState, NotFound, Unavailable
from windlass.testing.clock import VirtualClock

pytestmark = pytest.mark.slow

QUEUE = "wake"
CALLER = Caller("CN=wrapper", "00")


@pytest.fixture
async def waking(engine: Engine) -> AsyncIterator[Engine]:
    """An engine that sends wake-ups when a test lets it."""
    await set_up(engine)
    async with engine.service(Wakeups).carrying({}, loop=False):
        yield engine


async def set_up(engine: Engine, limits: QueueConfig | None = None, **delivery: Any) -> None:
    await engine.queues.put(QUEUE, delivery=Wakeup(**delivery), limits=limits or QueueConfig())


async def submit(engine: Engine, count: int = 1, **fields: Any) -> list[UUID]:
    return await engine.submit_many(jobs(count, queue=QUEUE, **fields))


async def speak(engine: Engine) -> None:
    """Until nothing is left to send."""
    while await engine.service(Wakeups).tick() + await engine.loops.effects_tick():
        pass


async def heard(engine: Engine, *, ack: bool = True) -> list[UUID]:
    """Of which tasks messages were received, in their order."""
    await speak(engine)
    found = await engine.service(Messages).receive("default", QUEUE, limit=1000, visibility_s=3600)
    if ack:
        for one in found:
            assert await engine.service(Messages).ack(one.id, one.deliveries)
    return [task_of(one.body) for one in found]


async def claim(engine: Engine, *ids: UUID) -> list[Claimed]:
    """What is told of these tasks, one after the other, which must be there."""
    held = [await engine.service(Holders).claim(task_id, "ada", CALLER) for task_id in ids]
    return [Claimed(one.task, one.payload) for one in held if isinstance(one, Held)]


async def test_each_task_that_can_be_claimed_is_announced_once(waking: Engine) -> None:
    ids = await submit(waking, 3)

    assert sorted(await heard(waking)) == sorted(ids)
    assert await heard(waking) == []
    assert await heard(waking) == []


async def test_tasks_of_other_queues_are_not_announced(waking: Engine) -> None:
    await waking.submit(job())
    await waking.submit(job(queue=QUEUE, namespace="other"))

    assert await heard(waking) == []


async def test_a_task_that_is_there_when_its_queue_begins_to_send_is_found(waking: Engine) -> None:
    await waking.queues.put(QUEUE, delivery=PULL, limits=QueueConfig())
    [task_id] = await submit(waking)
    assert await heard(waking) == []

    await set_up(waking)
    assert await heard(waking) == [task_id]


async def test_a_task_submitted_by_sql_is_found(waking: Engine, other_connection: asyncpg.Connection) -> None:
    await speak(waking)
    task_id = await other_connection.fetchval("select windlass.submit('job', queue => $1)", QUEUE)
    waking.parts.notifications.wake_queue("default", QUEUE)  # as its notification does

    assert await heard(waking) == [task_id]


async def test_a_task_that_is_not_due_is_announced_when_it_is(waking: Engine, clock: VirtualClock) -> None:
    [task_id] = await submit(waking, delay_s=30.0)

    assert await heard(waking) == []
    await clock.advance(29.0)
    assert await heard(waking) == []
    await clock.advance(1.0)
    assert await heard(waking) == [task_id]


async def test_a_retry_is_announced_when_its_delay_is_over(waking: Engine, clock: VirtualClock) -> None:
    [task_id] = await submit(waking)
    assert await heard(waking) == [task_id]
    [claimed] = await claim(waking, task_id)
    await waking.fail(claimed, CRASH)

    assert await heard(waking) == []
    await clock.advance(600.0)
    assert await heard(waking) == [task_id]


async def test_what_is_claimed_cancelled_or_ended_is_not_announced_again(waking: Engine, clock: VirtualClock) -> None:
    ids = await submit(waking, 3)
    assert len(await heard(waking)) == 3
    await waking.cancel(ids[0])
    one, _ = await claim(waking, *ids[1:])
    await waking.complete(one)

    await clock.advance(7200.0)
    assert await heard(waking) == []


async def test_nothing_is_sent_while_a_queue_is_paused(waking: Engine) -> None:
    await waking.pause_queue(QUEUE)
    [task_id] = await submit(waking)
    assert await heard(waking) == []

    await waking.pause_queue(QUEUE, paused=False)
    assert await heard(waking) == [task_id]


async def test_no_more_is_sent_than_a_limit_lets_start(waking: Engine) -> None:
    await set_up(waking, QueueConfig(max_running=2))
    await submit(waking, 5)

    first = await heard(waking)
    assert len(first) == 2
    assert await heard(waking) == []  # two are about to be claimed
    one, _ = await claim(waking, *first)
    assert await heard(waking) == []
    await waking.complete(one)
    assert len(await heard(waking)) == 1


async def test_the_limits_of_kinds_and_keys_hold(waking: Engine) -> None:
    await set_up(waking, QueueConfig(max_running_per_key=1, max_running_per_kind={"rare": 1}))
    for key in ("a", "a", "b"):
        await submit(waking, concurrency_key=key)
    await submit(waking, 2, kind="rare")

    kinds = [(await waking.tasks.get(id_)).task for id_ in await heard(waking)]
    assert sorted((task.kind, task.concurrency_key) for task in kinds) == [("job", "a"), ("job", "b"), ("rare", "")]
    assert await heard(waking) == []


async def test_a_rate_is_kept(waking: Engine, clock: VirtualClock) -> None:
    await set_up(waking, QueueConfig(rate=Rate(2, 10.0)))
    await submit(waking, 5)

    first = await heard(waking)
    assert len(await claim(waking, *first)) == 2
    assert await heard(waking) == []
    await clock.advance(10.0)
    assert len(await heard(waking)) == 2


async def test_a_message_that_was_lost_is_sent_again_ever_more_seldom(waking: Engine, clock: VirtualClock) -> None:
    await set_up(waking, resend_ms=10_000)
    [task_id] = await submit(waking)
    assert await heard(waking) == [task_id]  # and nobody claims it

    for wait_s in (10.0, 20.0, 40.0):
        await clock.advance(wait_s - 1)
        assert await heard(waking) == []
        await clock.advance(1.0)
        assert await heard(waking) == [task_id]


async def test_a_message_is_sent_again_at_least_as_often_as_the_queue_says(waking: Engine, clock: VirtualClock) -> None:
    await set_up(waking, resend_ms=10_000, resend_max_ms=30_000)
    [task_id] = await submit(waking)
    for wait_s in (0.0, 10.0, 20.0, 30.0, 30.0, 30.0):
        await clock.advance(wait_s)
        assert await heard(waking) == [task_id]


async def test_what_a_carrier_has_lost_is_sent_again_as_soon_as_somebody_misses_it(
    waking: Engine, clock: VirtualClock
) -> None:
    ids = await submit(waking, 3)
    for _ in range(6):  # nobody is there for a while: it is announced seldom by now
        assert sorted(await heard(waking)) == sorted(ids)
        await clock.advance(600.0)
    assert sorted(await heard(waking)) == sorted(ids)  # and lost
    await clock.advance(LOST_AFTER_MAX_S)
    assert await heard(waking) == []

    await waking.service(Wakeups).report_idle("default", QUEUE)
    assert sorted(await heard(waking)) == sorted(ids)


async def test_who_misses_messages_gets_them_with_more_patience_each_time(waking: Engine, clock: VirtualClock) -> None:
    await set_up(waking, resend_ms=3_600_000)
    [task_id] = await submit(waking)
    assert await heard(waking) == [task_id]

    for patience_s in (
        LOST_AFTER_S,
        2 * LOST_AFTER_S,
        4 * LOST_AFTER_S,
        8 * LOST_AFTER_S,
        LOST_AFTER_MAX_S,
        LOST_AFTER_MAX_S,
    ):
        await clock.advance(patience_s - 6.0)
        await waking.service(Wakeups).report_idle("default", QUEUE)
        assert await heard(waking) == []  # it may still be on its way
        await clock.advance(6.0)
        await waking.service(Wakeups).report_idle("default", QUEUE)
        await waking.service(Wakeups).report_idle("default", QUEUE)
        assert await heard(waking) == [task_id]


async def test_to_miss_messages_wakes_nobody_for_what_is_buried_taken_or_still_to_be_sent(
    engine: Engine, clock: VirtualClock
) -> None:
    await set_up(engine, carrier="nats", resend_ms=3_600_000)
    carrier = Away(engine)
    carrier.away = False
    async with engine.service(Wakeups).carrying({"nats": carrier}, loop=False):
        buried, taken, lost = await submit(engine, 3)
        assert len(await heard(engine)) == 3
        await dead_letter(engine, b"{}", task_id=buried)
        assert await claim(engine, taken)
        carrier.away = True
        [unsent] = await submit(engine)
        await speak(engine)

        await clock.advance(LOST_AFTER_S)
        await engine.service(Wakeups).report_idle("default", QUEUE)
        await engine.service(Wakeups).tick()
        assert sorted(effect.task_id for effect in await engine.parts.repair.effects()) == sorted([lost, unsent])
        carrier.away = False
        await clock.advance(60.0)
        assert sorted(await heard(engine)) == sorted([lost, unsent])
        engine.parts.notifications.wake_queue("default", QUEUE)
        assert await heard(engine) == []
        async with engine.store.single() as tx:
            states = [await WakeupTable(tx.session).get_wakeup(task_id) for task_id in (lost, unsent)]
        assert [state.times for state in states if state is not None] == [2, 1]


async def test_to_miss_messages_costs_a_statement_a_while_and_no_memory(
    waking: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner, "IDLE_QUEUES_MAX", 10)
    asked: list[tuple[str, str]] = []

    async def hasten(_: object, namespace: str, queue: str, *_limits: float) -> int:
        asked.append((namespace, queue))
        return 0

    monkeypatch.setattr("windlass.contracts.lease.wakeups.table.WakeupTable.resend_lost", hasten)
    for _ in range(100):
        await waking.service(Wakeups).report_idle("default", QUEUE)
    assert asked == [("default", QUEUE)]
    for number in range(50):
        await waking.service(Wakeups).report_idle("default", f"nobody's {number}")
    assert len(waking.service(Wakeups)._idle_until_s) <= 10


async def test_a_message_that_still_waits_is_not_doubled(waking: Engine, clock: VirtualClock) -> None:
    await set_up(waking, resend_ms=10_000)
    [task_id] = await submit(waking)
    await speak(waking)
    for _ in range(5):
        await clock.advance(3600.0)
        await speak(waking)

    assert await heard(waking) == [task_id]


async def test_a_claim_that_was_refused_is_announced_soon(waking: Engine, clock: VirtualClock) -> None:
    [task_id] = await submit(waking)
    await waking.pause_queue(QUEUE)
    assert await heard(waking) == []
    await waking.pause_queue(QUEUE, paused=False)
    assert await heard(waking) == [task_id]
    await waking.pause_queue(QUEUE)  # before it is claimed
    await waking.service(Wakeups).refused(task_id)

    await clock.advance(30.0)
    assert await heard(waking) == []
    await waking.pause_queue(QUEUE, paused=False)
    assert await heard(waking) == [task_id]


async def test_refusals_make_no_storm(waking: Engine, clock: VirtualClock) -> None:
    [task_id] = await submit(waking)
    assert await heard(waking) == [task_id]
    for _ in range(5):
        await waking.service(Wakeups).refused(task_id)
        assert await heard(waking) == []
    await clock.advance(1.0)
    assert await heard(waking) == [task_id]


async def test_so_many_messages_are_under_way_at_most(waking: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "IN_FLIGHT_MAX", 5)
    await submit(waking, 12)
    assert len(await claim(waking, *await heard(waking))) == 5

    waking.parts.notifications.wake_queue("default", QUEUE)
    assert len(await heard(waking)) == 5


async def test_a_full_line_is_looked_at_again_by_itself(
    waking: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner, "IN_FLIGHT_MAX", 1)
    await submit(waking, 2)
    assert len(await claim(waking, *await heard(waking))) == 1

    await clock.advance(planner.FULL_AGAIN_MAX_S)
    assert len(await heard(waking)) == 1


async def test_what_a_server_was_about_to_send_when_it_was_killed_is_sent_by_another_soon(
    engine: Engine, clock: VirtualClock
) -> None:
    await set_up(engine, carrier="nats")
    begun = asyncio.Event()

    async def never(_effect: Effect) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with engine.service(Wakeups).carrying({"nats": Sender(engine)}, loop=False):
        [task_id] = await submit(engine)
        await engine.service(Wakeups).tick()
        engine.parts.effects["wakeup"] = never
        killed = asyncio.create_task(engine.loops.effects_tick())
        await soon(begun.wait())
        killed.cancel()
        await asyncio.gather(killed, return_exceptions=True)

        engine.parts.effects["wakeup"] = engine.service(Wakeups).send
        await clock.advance(REPEATABLE_HOLD_S - 1)
        assert await heard(engine) == []
        await clock.advance(1.0)
        assert await heard(engine) == [task_id]


async def test_two_engines_speak_of_a_task_once(waking: Engine, new_engine: Any) -> None:
    other = await new_engine()
    await submit(waking, 50)
    async with other.service(Wakeups).carrying({}, loop=False):
        sent = await asyncio.gather(*(one.service(Wakeups).tick() for one in (waking, other) for _ in range(2)))
        assert sum(sent) == 50
    assert len(set(await heard(waking))) == 50


@pytest.mark.parametrize(
    ("carrier", "write"),
    [
        ("postgres", "windlass.contracts.lease.wakeups.table.WakeupTable.put_messages"),
        ("nats", "windlass.store.tables.outbox.OutboxTable.insert_outbox"),
    ],
)
async def test_a_look_whose_commit_failed_is_taken_again(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, carrier: str, write: str
) -> None:
    await set_up(engine, carrier=carrier)

    async def fails(*_: object) -> None:
        raise Unavailable("the server stopped between two lines")

    async with engine.service(Wakeups).carrying({"nats": Sender(engine)}, loop=False):
        [task_id] = await submit(engine)
        await engine.service(Wakeups).tick()  # knows its queues
        [other] = await submit(engine)
        with monkeypatch.context() as patch:
            patch.setattr(write, fails)
            with pytest.raises(Unavailable):
                await engine.service(Wakeups).tick()

        assert sorted(await heard(engine)) == sorted([task_id, other])


async def test_a_message_in_postgres_is_written_with_its_announcement(
    waking: Engine, other_connection: asyncpg.Connection
) -> None:
    [task_id] = await submit(waking)
    assert await waking.service(Wakeups).tick() == 1

    assert await other_connection.fetchval("select count(*) from windlass.outbox") == 0
    [message] = await waking.service(Messages).receive("default", QUEUE, limit=10, visibility_s=60.0)
    assert task_of(message.body) == task_id


class Away(Sender):
    """A carrier that is away until it is told otherwise."""

    away, asked = True, 0

    async def send(self, messages: Sequence[WakeupMessage]) -> None:
        self.asked += 1
        if self.away:
            raise Unavailable("nobody is there")
        await super().send(messages)


async def test_while_a_carrier_is_away_messages_wait_and_are_no_more_than_tasks(
    engine: Engine, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    await set_up(engine, carrier="nats", resend_ms=1000)
    carrier = Away(engine)
    async with engine.service(Wakeups).carrying({"nats": carrier}, loop=False):
        ids = await submit(engine, 3)
        for _ in range(40):
            await engine.service(Wakeups).tick()
            await engine.loops.effects_tick()
            await clock.advance(20.0)
        assert await other_connection.fetchval("select count(*) from windlass.outbox where kind = 'wakeup'") == 3
        assert carrier.asked <= 40
        carrier.away = False
        await clock.advance(60.0)
        assert sorted(await heard(engine)) == sorted(ids)
        assert await other_connection.fetchval("select count(*) from windlass.outbox") == 0


class Places(Sender):
    """A carrier with an address for each queue, of which one cannot be reached."""

    asked = 0

    async def send(self, messages: Sequence[WakeupMessage]) -> None:
        if any(message.queue == "broken" for message in messages):
            self.asked += 1
            raise Unavailable("there is no such queue")
        await super().send(messages)


async def test_a_queue_whose_place_cannot_be_reached_holds_up_no_other(engine: Engine, clock: VirtualClock) -> None:
    await set_up(engine, carrier="nats")
    await engine.queues.put("broken", delivery=Wakeup(carrier="nats"), limits=QueueConfig())
    carrier = Places(engine)
    async with engine.service(Wakeups).carrying({"nats": carrier}, loop=False):
        for _ in range(3):
            await engine.submit(job(queue="broken"))
            [task_id] = await submit(engine)
            assert await heard(engine) == [task_id]
            await clock.advance(0.1)
        assert carrier.asked == 1  # it is away, and left alone for a while


async def test_a_queue_that_cannot_be_looked_at_holds_up_no_other(
    waking: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await waking.queues.put("broken", delivery=Wakeup(), limits=QueueConfig())
    await speak(waking)
    await waking.submit(job(queue="broken"))
    [task_id] = await submit(waking)
    real = waking.service(Wakeups)._announce

    async def announce(namespace: str, queue: str) -> int:
        if queue == "broken":
            raise RuntimeError("it cannot be looked at")
        return await real(namespace, queue)

    with monkeypatch.context() as patch:
        patch.setattr(waking.service(Wakeups), "_announce", announce)
        with pytest.raises(RuntimeError, match="cannot be looked at"):
            await waking.service(Wakeups).tick()
    await waking.loops.effects_tick()
    [message] = await waking.service(Messages).receive("default", QUEUE, limit=10, visibility_s=60.0)
    assert task_of(message.body) == task_id
    await speak(waking)
    assert len(await waking.service(Messages).receive("default", "broken", limit=10, visibility_s=60.0)) == 1


@pytest.mark.parametrize(("old", "new"), [("postgres", "nats"), ("nats", "postgres"), ("nats", "sqs")])
async def test_when_a_queue_changes_its_carrier_its_tasks_are_announced_there(
    engine: Engine, other_connection: asyncpg.Connection, old: str, new: str
) -> None:
    await set_up(engine, carrier=old)
    async with engine.service(Wakeups).carrying({"nats": Sender(engine), "sqs": Sender(engine)}, loop=False):
        engine.parts.effects["wakeup"] = discarded
        [task_id] = await submit(engine)
        await speak(engine)
        await other_connection.execute("delete from windlass.message")  # lost with the old carrier
        engine.parts.effects["wakeup"] = engine.service(Wakeups).send
        assert await heard(engine) == []

        await set_up(engine, carrier=new)
        assert await heard(engine) == [task_id]


async def test_a_message_that_its_old_carrier_did_not_take_goes_through_postgres(
    engine: Engine, clock: VirtualClock
) -> None:
    await set_up(engine, carrier="nats")
    async with engine.service(Wakeups).carrying({"nats": Away(engine)}, loop=False):
        [task_id] = await submit(engine)
        await speak(engine)
        assert len(await engine.parts.repair.effects()) == 1

        await set_up(engine)
        await clock.advance(60.0)
        assert await heard(engine) == [task_id]
        assert await engine.parts.repair.effects() == []


async def discarded(_effect: Effect) -> None:
    pass


async def test_a_message_that_could_not_be_sent_for_an_hour_is_a_dead_letter_and_sent_again(
    engine: Engine, clock: VirtualClock
) -> None:
    await set_up(engine, carrier="nats")
    carrier = Away(engine)
    async with engine.service(Wakeups).carrying({"nats": carrier}, loop=False):
        [task_id] = await submit(engine)
        while not await engine.parts.repair.effects(dead=True):
            await engine.service(Wakeups).tick()
            await engine.loops.effects_tick()
            await clock.advance(30.0)
        carrier.away = False
        await clock.advance(3600.0)
        assert await heard(engine) == [task_id]
        assert await engine.parts.repair.effects() == []


# --------------------------------------------------------------------------------------------- dead letters


async def dead_letter(engine: Engine, body: bytes, **fields: Any) -> None:
    told = {"message_id": "m1", "task_id": None, "deliveries": 11, "reason": "nobody can read it"}
    await engine.service(Wakeups).dead_letter("default", QUEUE, body=body, **{**told, **fields})


async def test_a_buried_message_is_kept_once_and_its_task_is_announced_no_more(
    waking: Engine, clock: VirtualClock
) -> None:
    [task_id] = await submit(waking)
    await heard(waking)
    for _ in range(2):
        await dead_letter(waking, b"{}", task_id=task_id)

    [letter] = await waking.service(Wakeups).dead_messages()
    assert (letter.task_id, letter.deliveries, letter.reason) == (task_id, 11, "nobody can read it")
    await clock.advance(86400.0)
    assert await heard(waking) == []


async def test_an_id_that_a_carrier_gave_twice_is_two_letters(waking: Engine) -> None:
    """One that lost all it had counts from the beginning; a task whose letter nobody kept would wait for ever."""
    ids = await submit(waking, 2)
    await heard(waking)
    for task_id in ids:
        await dead_letter(waking, str(task_id).encode(), task_id=task_id, message_id="WINDLASS_WAKEUPS:1")

    letters = await waking.service(Wakeups).dead_messages()
    assert sorted(letter.task_id for letter in letters if letter.task_id) == sorted(ids)


async def test_letters_are_kept_for_a_while_and_those_of_tasks_that_wait_until_they_do_not(
    waking: Engine, clock: VirtualClock
) -> None:
    waits, over = await submit(waking, 2)
    await heard(waking)
    await dead_letter(waking, b"1", task_id=waits, message_id="1")
    await dead_letter(waking, b"2", task_id=over, message_id="2")
    await dead_letter(waking, b"no wake-up", message_id="3")
    await waking.cancel(over)
    await tidy(waking)
    assert len(await waking.service(Wakeups).dead_messages()) == 3

    await clock.advance(8 * 86400.0)
    await tidy(waking)
    [letter] = await waking.service(Wakeups).dead_messages()
    assert letter.task_id == waits
    await waking.cancel(waits)
    await tidy(waking)
    assert await waking.service(Wakeups).dead_messages() == []


async def tidy(engine: Engine) -> None:
    while await engine.loops.retention_tick():
        pass


async def test_a_replayed_letter_wakes_a_worker_again(waking: Engine) -> None:
    [task_id] = await submit(waking)
    await heard(waking)
    await dead_letter(waking, b"{}", task_id=task_id)
    [letter] = await waking.service(Wakeups).dead_messages()
    with pytest.raises(InvalidState, match="replay it, or cancel"):
        await waking.service(Wakeups).discard(letter)

    await waking.service(Wakeups).replay(letter)
    assert await heard(waking) == [task_id]
    assert await waking.service(Wakeups).dead_messages() == []


async def test_the_letter_of_a_task_that_has_moved_on_can_be_replayed_or_discarded(waking: Engine) -> None:
    ids = await submit(waking, 2)
    await heard(waking)
    for place, task_id in enumerate(ids):
        await dead_letter(waking, b"{}", task_id=task_id, message_id=str(place))
        await waking.cancel(task_id)
    await speak(waking)
    one, two = await waking.service(Wakeups).dead_messages(queue=QUEUE)

    await waking.service(Wakeups).replay(one)
    await waking.service(Wakeups).discard(two)
    assert await heard(waking) == []
    assert await waking.service(Wakeups).dead_messages() == []
    with pytest.raises(NotFound):
        await waking.service(Wakeups).dead_message(two.id)


async def test_what_is_no_wake_up_is_kept_and_discarded(waking: Engine) -> None:
    await dead_letter(waking, b"\xff\x00 no JSON")
    [letter] = await waking.service(Wakeups).dead_messages()
    with pytest.raises(InvalidState, match="names neither a task nor a batch"):
        await waking.service(Wakeups).replay(letter)

    assert (await waking.service(Wakeups).discard(letter)).body == b"\xff\x00 no JSON"


# --------------------------------------------------------------------------------------------- messages of PostgreSQL


def receivers(engine: Engine) -> int:
    """How many have looked, found nothing, and wait."""
    return sum(waiter.idle for waiter in engine.parts.notifications._lines.get(("message", "default", QUEUE), ()))


async def test_a_message_is_hidden_while_somebody_has_it(waking: Engine, clock: VirtualClock) -> None:
    await submit(waking)
    await speak(waking)
    receive = {"limit": 10, "visibility_s": 60.0}
    [first] = await waking.service(Messages).receive("default", QUEUE, **receive)

    assert await waking.service(Messages).receive("default", QUEUE, **receive) == []
    await clock.advance(59.0)
    assert await waking.service(Messages).extend(first.id, first.deliveries, 60.0)
    await clock.advance(59.0)
    assert await waking.service(Messages).receive("default", QUEUE, **receive) == []
    await clock.advance(1.0)
    [again] = await waking.service(Messages).receive("default", QUEUE, **receive)
    assert (again.id, again.deliveries) == (first.id, 2)
    assert not await waking.service(Messages).extend(first.id, first.deliveries, 60.0)
    assert not await waking.service(Messages).ack(first.id, first.deliveries)
    assert not await waking.service(Messages).nack(first.id, first.deliveries, 0.0)
    assert await waking.service(Messages).ack(again.id, again.deliveries)


async def test_a_message_that_was_given_back_is_received_after_its_delay(waking: Engine, clock: VirtualClock) -> None:
    await submit(waking)
    await speak(waking)
    [one] = await waking.service(Messages).receive("default", QUEUE, limit=1, visibility_s=60.0)
    assert await waking.service(Messages).nack(one.id, one.deliveries, 5.0)

    waiting = asyncio.create_task(
        waking.service(Messages).receive("default", QUEUE, limit=1, visibility_s=60.0, wait_s=30.0)
    )
    await until(lambda: receivers(waking) == 1)
    await clock.advance(5.0)
    assert [found.deliveries for found in await asyncio.wait_for(waiting, 30)] == [2]


async def test_who_waits_is_told_of_a_message(waking: Engine) -> None:
    waiting = [
        asyncio.create_task(
            waking.service(Messages).receive("default", QUEUE, limit=1, visibility_s=60.0, wait_s=600.0)
        )
        for _ in range(3)
    ]
    await until(lambda: receivers(waking) == 3)
    await submit(waking, 3)
    await speak(waking)

    found = await asyncio.wait_for(asyncio.gather(*waiting), 45)
    assert len({one.id for some in found for one in some}) == 3


async def test_what_nobody_wants_for_two_weeks_is_forgotten(waking: Engine, clock: VirtualClock) -> None:
    [task_id] = await submit(waking)
    await speak(waking)
    await waking.cancel(task_id)
    await clock.advance(planner.KEPT_S + 61.0)

    assert await heard(waking) == []
    assert (await waking.tasks.get(task_id)).task.state is State.CANCELLED


async def test_a_message_that_somebody_is_just_taking_is_not_asked_for_again_and_again(
    waking: Engine, clock: VirtualClock, other_connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await submit(waking)
    await speak(waking)
    looks, real = [], WakeupTable.receive_messages

    async def look(table: WakeupTable, *said: Any) -> Any:
        looks.append(said)
        return await real(table, *said)

    monkeypatch.setattr(WakeupTable, "receive_messages", look)
    async with other_connection.transaction():
        await other_connection.execute("select from windlass.message for update")
        receiving = asyncio.create_task(
            waking.service(Messages).receive("default", QUEUE, limit=1, visibility_s=60.0, wait_s=60.0)
        )
        await until(lambda: receivers(waking) == 1)
        for _ in range(200):
            await asyncio.sleep(0)
        assert len(looks) == 1
    await clock.advance(1.0)
    assert len(await soon(receiving)) == 1
