"""Holders: workers that are told of a task by its id, claim it, keep its lease, and report. I/O and no decisions.

Most claims and successes have nothing to be weighed: those of many callers share one statement, which commits itself.
What is left takes the way of load, decide, apply: tasks of queues with limits under the lock of the queue, rows that
somebody else holds with patience, beside the batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import cast
from uuid import UUID

import msgspec

from windlass.core import holder as rules
from windlass.core.command import Claimed, storable
from windlass.core.dataset import SaidEvent, SaidPublish
from windlass.core.delivery import Delivery, Wakeup, type_of
from windlass.core.error import NotFound, WindlassError
from windlass.core.holder import Caller, ClaimOne, Emit, Fence, Finish, HearCancel, NotClaimed, PublishBatch
from windlass.core.queue import QueueConfig, QueueName, Usage
from windlass.core.report import final_state
from windlass.core.task import Cancel, Outcome, Task
from windlass.core.transition import Effect, State, Transition
from windlass.engine.chance import Chance
from windlass.engine.committer import Committer, Later, Pause
from windlass.engine.decide import Decider
from windlass.engine.metrics import Tally
from windlass.engine.patience import LONG_MS, Patience
from windlass.store.fault import LockHeld
from windlass.store.holder_table import Hold, Holdable, Looked
from windlass.store.store import Store
from windlass.store.tx import Tx

BEATS_MAX = 1000
WAKEUP = type_of(Wakeup)


class Held(msgspec.Struct, frozen=True):
    """A task that somebody holds from now on, with what is needed to run it."""

    task: Task
    payload: bytes
    wire: bytes | None
    expires_at: datetime
    now: datetime


Answer = Held | NotClaimed


class Beat(msgspec.Struct, frozen=True):
    """A holder's sign of life."""

    fence: Fence
    caller: Caller


class Extended(msgspec.Struct, frozen=True):
    """Its answer: until when the lease is good, and the cancel that the holder is to be told of."""

    expires_at: datetime
    now: datetime
    cancel: Cancel | None


class Holders:
    """What holders say to one engine."""

    def __init__(
        self,
        store: Store,
        chance: Chance,
        decider: Decider,
        patience: Patience,
        *,
        pause: Pause,
    ) -> None:
        self._store, self._chance, self._decider, self._patience = store, chance, decider, patience
        self.tally: Tally | None = None
        self._claims: Committer[ClaimOne, Answer] = Committer(self._claim, pause=pause)
        self._beats: Committer[Beat, Extended] = Committer(self._hear, batch_max=BEATS_MAX, pause=pause)
        self._ends: Committer[Finish, Task | State] = Committer(self._finish, pause=pause)
        self._commands = decider.line(pause=pause)

    async def settled(self) -> None:
        """Until all signs of life that have come by now are written down."""
        await self._beats.settled()

    async def close(self) -> None:
        for line in (self._claims, self._beats, self._ends, self._commands):
            await line.close()

    # ----------------------------------------------------------------------------------------- what holders say

    async def claim(
        self, task_id: UUID, worker: str, caller: Caller, claim_id: UUID | None = None
    ) -> Held | NotClaimed:
        """Begin the next attempt of this task, if nobody else has and nothing keeps it. Who asks again with the same
        `claim_id` gets what he has begun."""
        said = None if claim_id is None else rules.claim_of(task_id, claim_id, caller)
        held = await self._claims.call(ClaimOne(task_id, self._chance.new_token(WAKEUP), worker, caller, said))
        if self.tally is not None and isinstance(held, Held):
            self.tally.started([Claimed(held.task, held.payload)])
        return held

    async def extend(self, fence: Fence, caller: Caller) -> Extended:
        """A sign of life. LeaseLost tells the worker to stop."""
        fence = fence.checked()
        extended = await self._beats.call(Beat(fence, caller))
        if extended.cancel is not None and extended.cancel.signalled_at is None:
            await self._commands.call(HearCancel(fence))
        return extended

    async def finish(self, said: Finish) -> State:
        """A report. What became of it: a failed attempt has failed, also if another one follows."""
        failure = None if said.failure is None else storable(said.failure)
        made = msgspec.structs.replace(said, fence=said.fence.checked(), failure=failure, jitter=self._chance.jitter())
        ended = await self._ends.call(made)
        if isinstance(ended, State):
            return ended
        return State.CANCELLED if said.outcome is Outcome.CANCELLED else final_state(ended)

    async def emit(self, fence: Fence, caller: Caller, events: tuple[SaidEvent, ...]) -> None:
        """Events. When this returns they are recorded, and on their way."""
        await self._commands.call(Emit(fence.checked(), caller, events))

    async def publish(self, fence: Fence, caller: Caller, batch: SaidPublish, prefixes: tuple[str, ...]) -> UUID:
        """A batch. When this returns it is recorded, and its message on its way. Returns the id of the record."""
        await self._commands.call(PublishBatch(fence.checked(), caller, batch, prefixes))
        return batch.id_of(fence.task_id, fence.attempt)

    # ----------------------------------------------------------------------------------------- what follows from it

    async def route(self, effect: Effect) -> None:
        """Tell whoever waits for a dataset of this event. Nobody can yet: it is kept, and known to be dealt with."""
        async with self._store.single() as tx:
            await tx.datasets.event_routed(UUID(str(effect.body["event_id"])))

    async def queue_batch(self, effect: Effect) -> None:
        """Give the message of a batch to whoever writes it to its table. Nobody does yet: the record is its queue."""
        async with self._store.single() as tx:
            await tx.datasets.publish_queued(UUID(str(effect.body["publish_id"])))

    # ----------------------------------------------------------------------------------------- claims, together

    async def _claim(self, claims: list[ClaimOne]) -> list[Later[Answer]]:
        """The first who asks for a task gets it if anybody does."""
        first: dict[UUID, ClaimOne] = {}
        for said in claims:
            first.setdefault(said.task_id, said)
        asked = sorted(first.values(), key=lambda said: said.task_id.int)
        async with self._store.single() as tx:
            looks = await tx.holders.claim_at_once(asked)
        found: dict[UUID, Later[Answer] | Looked] = {
            said.task_id: _seen(said, look) or look for said, look in zip(asked, looks, strict=True)
        }
        limited: dict[QueueName, list[ClaimOne]] = {}
        for said in asked:
            look = found[said.task_id]
            if isinstance(look, Looked) and look.found is not None and look.queue is not None:
                limited.setdefault(look.queue, []).append(said)
        for queue, line in sorted(limited.items()):
            found.update(await self._claim_within(queue, line))
        return [self._told(said, found[said.task_id], said is first[said.task_id]) for said in claims]

    def _told(self, said: ClaimOne, found: Later[Answer] | Looked, is_first: bool) -> Later[Answer]:
        """A row that somebody else holds is waited for, beside the batches."""
        if isinstance(found, Looked):
            queue = found.queue
            assert queue is not None, said
            return cast("Later[Answer]", self._patience.later(lambda: self._claim_alone(queue, said)))
        return found if is_first or not isinstance(found, Held) else NotClaimed(State.RUNNING)

    async def _claim_alone(self, queue: QueueName, said: ClaimOne) -> Answer | WindlassError:
        return (await self._claim_within(queue, [said]))[said.task_id]

    async def _claim_within(self, queue: QueueName, claims: Sequence[ClaimOne]) -> dict[UUID, Answer | WindlassError]:
        """Within the limits of a queue, counted under its lock by statements that begin after it. Only a lock
        that is held for too long is an answer; whatever else went wrong is run again, and finds what it began."""
        try:
            async with self._store.begin() as tx:
                await tx.limit_waits(LONG_MS)
                config, delivery = await tx.holders.lock_wakeup_queue(*queue)
                rows = await tx.holders.load_holdable(sorted(said.task_id for said in claims))
                usage = await tx.queues.queue_usage(*queue, config) if config.restricted else Usage()
                now = await tx.now()
                answers = _decided(claims, rows, config, delivery, usage, now)
                await self._begin(tx, queue, config, delivery, answers, claims, now)
        except LockHeld as error:
            return dict.fromkeys((said.task_id for said in claims), error)
        return {id_: answer if isinstance(answer, NotClaimed) else answer[1] for id_, answer in answers.items()}

    async def _begin(
        self,
        tx: Tx,
        queue: QueueName,
        config: QueueConfig,
        delivery: Delivery,
        answers: dict[UUID, NotClaimed | tuple[Transition | None, Held]],
        claims: Sequence[ClaimOne],
        now: datetime,
    ) -> None:
        moves = [a[0] for a in answers.values() if not isinstance(a, NotClaimed) and a[0] is not None]
        if not moves:
            return
        callers = {said.task_id: said.caller.fingerprint for said in claims}
        await tx.apply(moves)
        claims_of = {said.task_id: said.claim_id for said in claims}
        begun = [
            (move.after.id, move.after.attempt, callers[move.after.id], claims_of[move.after.id]) for move in moves
        ]
        await tx.holders.begin_holds(begun, lease_ms(delivery))
        if config.rate is not None:
            await tx.queues.insert_rate_start(*queue, now, len(moves), config.rate.period_s)

    # ----------------------------------------------------------------------------------------- reports, together

    async def _finish(self, ends: list[Finish]) -> list[Later[Task | State]]:
        plain = [said for said in ends if said.outcome is Outcome.SUCCEEDED and not said.events]
        return await self._decider.carry_out_mostly(ends, plain, Tx.finish)

    async def _hear(self, beats: list[Beat]) -> list[Extended | WindlassError]:
        if not beats:
            return []
        async with self._store.single() as tx:
            holds = await tx.holders.extend_holds([(beat.fence, beat.caller) for beat in beats])
        return [_extended(beat, hold) for beat, hold in zip(beats, holds, strict=True)]


def lease_ms(delivery: Delivery) -> int:
    """How long a lease is good for. What was claimed before its queue was set otherwise has the usual time."""
    return delivery.lease_ms if isinstance(delivery, Wakeup) else Wakeup().lease_ms


def _seen(said: ClaimOne, look: Looked) -> Held | NotClaimed | None:
    """The answer, where the look alone gives one."""
    if look.queue is None:
        return NotClaimed(None)
    if look.found is None:
        return None
    task = look.found.task
    if said.has_begun(task, look.found.claim_id):  # now, or by a try whose reply was lost
        return _held(look.found, task, look.delivery, look.now)
    return rules.why_not(task, look.delivery, look.found.labelled, look.now)


def _held(found: Holdable, task: Task, delivery: Delivery, now: datetime) -> Held:
    began_at = task.started_at or now
    return Held(task, found.payload, found.wire, began_at + timedelta(milliseconds=lease_ms(delivery)), now)


def _decided(
    claims: Sequence[ClaimOne],
    rows: dict[UUID, Holdable],
    config: QueueConfig,
    delivery: Delivery,
    usage: Usage,
    now: datetime,
) -> dict[UUID, NotClaimed | tuple[Transition | None, Held]]:
    """Ask the rules, one after the other: each sees what began before it."""
    answers: dict[UUID, NotClaimed | tuple[Transition | None, Held]] = {}
    for said in claims:
        found = rows.get(said.task_id)
        if found is None:
            answers[said.task_id] = NotClaimed(None)
            continue
        task = found.task
        if said.has_begun(task, found.claim_id):
            answers[said.task_id] = None, _held(found, task, delivery, now)
            continue
        refused = rules.why_not(task, delivery, found.labelled, now) or rules.admits(config, usage, task, now)
        if refused is not None:
            answers[said.task_id] = refused
            continue
        move = rules.claim(task, said, now)
        usage = rules.began(usage, task, now)
        answers[said.task_id] = move, _held(found, move.after, delivery, now)
    return answers


def _extended(beat: Beat, hold: Hold | None) -> Extended | WindlassError:
    if hold is None:
        return NotFound(f"there is no task {beat.fence.task_id}", task_id=beat.fence.task_id)
    if hold.expires_at is None:
        why = (
            "the lease is over"
            if hold.holds
            else f"attempt {beat.fence.attempt} under this token is not the current one"
        )
        return rules.stale(hold.state, hold.attempt, why)
    return Extended(hold.expires_at, hold.now, hold.cancel)
