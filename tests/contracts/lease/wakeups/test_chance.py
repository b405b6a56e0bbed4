"""Wake-ups under chance: messages are lost, come twice and late, workers and servers die at any line, queues are
paused, letters are buried. A seed decides; whatever it was, once nobody does harm any more every task is run, and soon.

The time between two messages for a task is longer than a test lasts, so that what is lost is found by who misses it or
not at all. Bugs are planted to see that they are found.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from random import Random
from typing import Any
from uuid import UUID

import pytest
from tests.contracts.lease.wakeups.side import Sender
from tests.kit.work import job

from windlass import Engine, Policy, State
from windlass.contracts.lease.delivery import Wakeup
from windlass.contracts.lease.rules import Caller
from windlass.contracts.lease.server.service import Service
from windlass.contracts.lease.wakeups.messages import Messages
from windlass.contracts.lease.wakeups.planner import Wakeups
from windlass.contracts.lease.wakeups.rules import LOST_AFTER_S, WAKEUP
from windlass.contracts.lease.wakeups.table import Stored, WakeupTable
from windlass.contracts.lease.wire.messages import ClaimedAnswer
from windlass.contracts.lease.wire.wakeup import task_of
from windlass.core.queue import QueueConfig
from windlass.engine.send.outbox import HOLD_S, REPEATABLE_HOLD_S
from windlass.store.tables.outbox import OutboxTable
from windlass.testing.clock import VirtualClock

pytestmark = pytest.mark.slow

QUEUE, NEVER_MS = "chance", 86_400_000
PATIENT = Policy(max_attempts=1000, retry_delay_s=1.0, retry_delay_max_s=5.0)
STEPS, ROUNDS_MAX, SENT_MAX = 40, 30, 30
SEEDS = range(3)


class Randomness:
    """One world, in which everything is done by hand."""

    def __init__(self, engine: Engine, clock: VirtualClock, seed: int) -> None:
        self.engine, self.clock, self.random = engine, clock, Random(seed)
        self.service, self.caller = Service(engine, "s3://scratch"), Caller("CN=worker", "00")
        self.tasks: list[UUID] = []
        self.runs: Counter[tuple[UUID, int]] = Counter()
        self.successes: Counter[UUID] = Counter()

    async def submit(self) -> None:
        delay_s = self.random.choice([0.0, 0.0, 5.0])
        self.tasks.append(await self.engine.submit(job(queue=QUEUE, delay_s=delay_s, policy=PATIENT)))

    async def speak(self) -> None:
        while await self.engine.service(Wakeups).tick() + await self.engine.loops.effects_tick():
            pass

    async def look_only(self) -> None:
        await self.engine.service(Wakeups).tick()

    async def die_while_sending(self) -> None:
        """A server that is killed with what it has taken from the outbox."""
        await self.engine.service(Wakeups).tick()
        async with self.engine.store.begin() as tx:
            await tx.outbox.take_effects([WAKEUP], 100, HOLD_S, [WAKEUP], REPEATABLE_HOLD_S)

    async def lose(self) -> None:
        async with self.engine.store.begin() as tx:
            await tx.session.connection.execute("delete from windlass.message")

    async def pause(self) -> None:
        await self.engine.pause_queue(QUEUE, paused=self.random.random() < 0.5)

    async def wait(self) -> None:
        await self.later(self.random.choice([1.0, 5.0, 20.0, 65.0]))

    async def later(self, seconds: float) -> None:
        await self.clock.advance(seconds)
        await self.engine.parts.outgoing.silence_tick()

    async def work(self, *, harm: bool = True) -> int:
        """A worker that receives, and does what workers do, right or wrong."""
        found = await self.engine.service(Messages).receive("default", QUEUE, limit=3, visibility_s=30.0)
        if not found:
            await self.engine.service(Wakeups).report_idle("default", QUEUE)
        for message in found:
            luck = self.random.random() if harm else 1.0
            if luck < 0.12:
                continue  # it died before it could claim
            if luck < 0.3:
                await self._dead_letter(message)
                continue
            await self._run(task_of(message.body), luck)
            if luck > 0.5:  # else its acknowledgement was lost
                await self.engine.service(Messages).ack(message.id, message.deliveries)
        return len(found)

    async def _dead_letter(self, message: Stored) -> None:
        await self.engine.service(Wakeups).dead_letter(
            "default", QUEUE, message_id=str(message.id), task_id=task_of(message.body), body=message.body,
            deliveries=message.deliveries, reason="a worker of chance",
        )  # fmt: skip
        await self.engine.service(Messages).ack(message.id, message.deliveries)

    async def worst(self) -> None:
        """What chance may have left out: a dead letter, a lost message, one that a worker took to its death, and one
        that a server did."""
        await self.engine.pause_queue(QUEUE, paused=False)
        for harm in ("bury", "lose", "die"):
            self.tasks.append(await self.engine.submit(job(queue=QUEUE, policy=PATIENT)))
            await self.speak()
            if harm == "lose":
                await self.lose()
                continue
            for message in await self.engine.service(Messages).receive("default", QUEUE, limit=100, visibility_s=30.0):
                if harm == "bury":
                    await self._dead_letter(message)
        self.tasks.append(await self.engine.submit(job(queue=QUEUE, policy=PATIENT)))
        await self.die_while_sending()

    async def _run(self, task_id: UUID, luck: float) -> None:
        said = {"task_id": str(task_id), "worker_id": "w"}
        told = await self.service.claim(json.dumps(said).encode(), self.caller)
        if not isinstance(told, ClaimedAnswer):
            return
        self.runs[task_id, told.attempt] += 1
        if luck < 0.4:
            return  # it died with its task
        report = {"task_id": str(task_id), "attempt": told.attempt, "lease_token": str(told.lease_token)}
        status = "Failed" if luck < 0.65 else "Completed"
        answer = await self.service.complete(json.dumps({**report, "status": status}).encode(), self.caller)
        self.successes[task_id] += answer.status == "Completed"

    async def end(self) -> None:
        """Nobody does harm any more, and a worker is there."""
        await self.engine.pause_queue(QUEUE, paused=False)
        for _ in range(ROUNDS_MAX):
            for letter in await self.engine.service(Wakeups).dead_messages():
                await self.engine.service(Wakeups).replay(letter)
            await self.speak()
            while await self.work(harm=False):
                pass
            left = [view for view in await self.engine.tasks.get_many(self.tasks) if not view.task.terminal]
            if not left:
                return
            await self.later(LOST_AFTER_S)
        raise AssertionError(f"{len(left)} of {len(self.tasks)} tasks wait for ever")

    async def check(self, sent: Counter[UUID]) -> None:
        views = await self.engine.tasks.get_many(self.tasks)
        assert {view.task.state for view in views} <= {State.SUCCEEDED}
        assert set(self.successes.values()) <= {1}, "a task succeeded twice"
        assert max(self.runs.values()) == 1, "an attempt was run twice"
        for view in views:
            assert sent[view.task.id] <= SENT_MAX * (view.task.attempt + 1), "a storm of messages"


@pytest.fixture(params=["postgres", "nats"])
async def waking(request: pytest.FixtureRequest, engine: Engine) -> AsyncIterator[Engine]:
    delivery = Wakeup(carrier=request.param, resend_ms=NEVER_MS, resend_max_ms=NEVER_MS, lease_ms=60_000)
    await engine.queues.put(QUEUE, delivery=delivery, limits=QueueConfig())
    async with engine.service(Wakeups).carrying({"nats": Sender(engine)}, loop=False):
        yield engine


async def play(engine: Engine, clock: VirtualClock, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    world, sent, real = Randomness(engine, clock, seed), Counter[UUID](), WakeupTable.put_wakeups

    async def count(table: WakeupTable, namespace: str, queue: str, said: Any) -> None:
        sent.update(one[0] for one in said)
        await real(table, namespace, queue, said)

    monkeypatch.setattr(WakeupTable, "put_wakeups", count)
    moves: list[Callable[[], Any]] = [
        world.submit, world.submit, world.speak, world.speak, world.look_only, world.die_while_sending, world.lose,
        world.pause, world.wait, world.wait, world.work, world.work, world.work,
    ]  # fmt: skip
    for _ in range(STEPS):
        await world.random.choice(moves)()
    await world.worst()
    await world.end()
    await world.check(sent)


@pytest.mark.parametrize("seed", SEEDS)
async def test_whatever_chance_does_every_task_is_run_and_none_twice(
    waking: Engine, clock: VirtualClock, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    await play(waking, clock, seed, monkeypatch)


async def _nothing(*_: object, **__: object) -> None:
    pass


async def _none_found(*_: object, **__: object) -> int:
    return 0


def _hidden_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    real = WakeupTable.receive_messages

    async def receive(table: WakeupTable, namespace: str, queue: str, limit: int, _visibility_s: float) -> Any:
        return await real(table, namespace, queue, limit, 86_400.0)

    monkeypatch.setattr(WakeupTable, "receive_messages", receive)


def _held_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    real = OutboxTable.take_effects

    async def take(table: OutboxTable, kinds: Sequence[str], limit: int, *_: object) -> Any:
        return await real(table, kinds, limit, 86_400.0)

    monkeypatch.setattr(OutboxTable, "take_effects", take)


BUGS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "idle workers are ignored": lambda patch: patch.setattr(Wakeups, "report_idle", _nothing),
    "a lost message is not sent again": lambda patch: patch.setattr(WakeupTable, "resend_lost", _none_found),
    "a replayed dead letter wakes no worker": lambda patch: patch.setattr(WakeupTable, "revive_wakeup", _nothing),
}
# A carrier of its own gets a second message for a task whose first is hidden. PostgreSQL sends none while it has one.
POSTGRES_BUGS = {"a message stays hidden after its worker died": _hidden_for_ever}
OUTBOX_BUGS = {
    "an effect stays held after its server died": _held_for_ever,
    "a task is announced without its effect": lambda patch: patch.setattr(OutboxTable, "insert_outbox", _nothing),
}


@pytest.mark.parametrize(
    ("waking", "bug"),
    [
        *(("postgres", bug) for bug in (BUGS | POSTGRES_BUGS).values()),
        *(("nats", bug) for bug in (BUGS | OUTBOX_BUGS).values()),
    ],
    ids=[*(f"postgres-{name}" for name in BUGS | POSTGRES_BUGS), *(f"outbox-{name}" for name in BUGS | OUTBOX_BUGS)],
    indirect=["waking"],
)
async def test_a_planted_bug_is_found(
    waking: Engine, clock: VirtualClock, bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    with pytest.raises(AssertionError, match="wait for ever"):
        await play(waking, clock, 0, monkeypatch)
