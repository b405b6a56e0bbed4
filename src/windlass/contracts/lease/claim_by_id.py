"""Lease holders: workers that claim one task by its id, keep its lease, and report. This module does I/O only.

Most claims and successes need no decision: those of many callers share one statement, which commits by itself. The rest
is loaded, decided and applied: tasks of queues with limits under the lock of the queue, and rows that another
transaction has locked one by one, beside the batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import cast
from uuid import UUID

import msgspec

from windlass.contracts.lease import rules
from windlass.contracts.lease.delivery import Wakeup
from windlass.contracts.lease.rules import Caller, ClaimById, LeaseCredential, LeaseReport, NotClaimed
from windlass.contracts.lease.table import (
    ClaimableTask,
    ClaimLookup,
    HolderTable,
    LeaseState,
    WritingAttempt,
    finish_at_once,
)
from windlass.contracts.lease.wakeups.messages import put_messages
from windlass.core.attempt import HeartbeatAnswer, final_state
from windlass.core.command import Claimed, storable
from windlass.core.delivery import Delivery, type_of
from windlass.core.queue import QueueName, Usage
from windlass.core.states import Effect, State, Transition
from windlass.core.task import Outcome, Task
from windlass.datasets.rules.events import BUFFER, BatchReport, EventReport
from windlass.datasets.tables.invalidations import InvalidationTable
from windlass.datasets.tables.sink import SinkTable
from windlass.engine.commit.committer import Committer, Later
from windlass.engine.commit.lock_waits import LONG_MS
from windlass.engine.engine import Engine
from windlass.errors import NotFound, WindlassError
from windlass.store.errors import LockHeld

HEARTBEATS_MAX = 1000
WAKEUP = type_of(Wakeup)


class Held(msgspec.Struct, frozen=True):
    """A task that the caller holds from now on, with what is needed to run it."""

    task: Task
    payload: bytes
    wire: bytes | None
    expires_at: datetime
    now: datetime


Answer = Held | NotClaimed


class Holders:
    """Claims, heartbeats and reports of lease holders, for one engine."""

    def __init__(self, engine: Engine) -> None:
        parts, pause = engine.parts, engine.parts.pause
        self._engine, self._store, self._randomness = engine, parts.store, parts.randomness
        self._decider, self._lock_waits = parts.decider, parts.lock_waits
        self._claims: Committer[ClaimById, Answer] = Committer(self._claim, pause=pause)
        self._heartbeats: Committer[LeaseCredential, HeartbeatAnswer] = Committer(
            self._extend, batch_max=HEARTBEATS_MAX, pause=pause
        )
        self._ends: Committer[LeaseReport, Task | State] = Committer(self._finish, pause=pause)
        self._commands = parts.decider.line(pause=pause)
        parts.outgoing.settled.append(self._heartbeats.settled)
        engine.on_close(self.close)

    async def close(self) -> None:
        for line in (self._claims, self._heartbeats, self._ends, self._commands):
            await line.close()

    # ----------------------------------------------------------------------------------------- calls of holders

    async def claim(self, task_id: UUID, worker: str, caller: Caller, claim_id: UUID | None = None) -> Answer:
        """Start the next attempt of this task, if it is claimable. A repeat with the same `claim_id` gets the attempt
        that the first call started."""
        derived = None if claim_id is None else rules.claim_of(task_id, claim_id, caller)
        held = await self._claims.call(ClaimById(task_id, self._randomness.new_token(WAKEUP), worker, caller, derived))
        if isinstance(held, Held) and (tally := self._engine.tally) is not None:
            tally.started([Claimed(held.task, held.payload)])
        return held

    async def extend(self, credential: LeaseCredential) -> HeartbeatAnswer:
        """Extend a lease. Raises LeaseLost: the worker has to stop."""
        credential = credential.checked()
        answer = await self._heartbeats.call(credential)
        if answer.starts_grace:
            await self._commands.call(rules.SignalCancel(credential))
        return answer

    async def finish(self, report: LeaseReport) -> State:
        """Record a report. Returns what became of the attempt: failed, also if another one follows."""
        failure = None if report.failure is None else storable(report.failure)
        ended = await self._ends.call(
            msgspec.structs.replace(
                report, credential=report.credential.checked(), failure=failure, jitter=self._randomness.jitter()
            )
        )
        if isinstance(ended, State):
            return ended
        return State.CANCELLED if report.outcome is Outcome.CANCELLED else final_state(ended)

    async def attempt(self, task_id: UUID) -> WritingAttempt:
        """The current attempt of a task. Raises NotFound."""
        async with self._store.single() as tx:
            found = await HolderTable(tx.session).attempt(task_id)
        if found is None:
            raise NotFound(f"there is no task {task_id}", task_id=task_id)
        return found

    async def emit(self, credential: LeaseCredential, events: tuple[EventReport, ...]) -> None:
        """Record events. When this returns they are on their way."""
        await self._commands.call(rules.Emit(credential.checked(), events))

    async def publish(self, credential: LeaseCredential, batch: BatchReport, prefixes: tuple[str, ...]) -> UUID:
        """Record a batch and send its message. Returns the id of the record."""
        await self._commands.call(rules.PublishBatch(credential.checked(), batch, prefixes))
        return batch.id_of(credential.task_id, credential.attempt)

    async def invalidate(self, request: rules.Invalidate) -> UUID:
        """Record that a part of an output was wrong. Returns the id of the record; its tasks are on their way."""
        async with self._store.single() as tx:
            schema, known = await InvalidationTable(tx.session).output_facts(
                request.dataset_uuid, request.dataset_version, request.part.partition_key
            )
        await self._commands.call(
            msgspec.structs.replace(
                request, credential=request.credential.checked(), schema=schema, partition_known=known
            )
        )
        return request.id

    # ----------------------------------------------------------------------------------------- effects

    async def queue_batch(self, effect: Effect) -> None:
        """Send the message of a batch to the sinks, unless its dataset is none of theirs."""
        publish_id = UUID(str(effect.body["publish_id"]))
        async with self._store.begin() as tx:
            if await SinkTable(tx.session).publish_queued(publish_id):
                queue = f"{BUFFER}.{effect.body['dataset_uuid']}"
                await put_messages(tx, effect.namespace, queue, [(publish_id, msgspec.json.encode(effect.body))])

    # ----------------------------------------------------------------------------------------- batches of claims

    async def _claim(self, claims: list[ClaimById]) -> list[Later[Answer]]:
        """Of several claims for one task, only the first can get it."""
        first: dict[UUID, ClaimById] = {}
        for claim in claims:
            first.setdefault(claim.task_id, claim)
        unique = sorted(first.values(), key=lambda claim: claim.task_id.int)
        async with self._store.single() as tx:
            lookups = await HolderTable(tx.session).claim_at_once(unique)
        found: dict[UUID, Later[Answer] | ClaimLookup] = {
            claim.task_id: _answer_from(claim, lookup) or lookup for claim, lookup in zip(unique, lookups, strict=True)
        }
        limited: dict[QueueName, list[ClaimById]] = {}
        for claim in unique:
            lookup = found[claim.task_id]
            if isinstance(lookup, ClaimLookup) and lookup.found is not None and lookup.queue is not None:
                limited.setdefault(lookup.queue, []).append(claim)
        for queue, line in sorted(limited.items()):
            found.update(await self._claim_within(queue, line))
        return [self._answer_of(claim, found[claim.task_id], claim is first[claim.task_id]) for claim in claims]

    def _answer_of(self, claim: ClaimById, found: Later[Answer] | ClaimLookup, is_first: bool) -> Later[Answer]:
        """Wait for a row that another transaction has locked, beside the batches."""
        if isinstance(found, ClaimLookup):
            queue = found.queue
            assert queue is not None, claim
            return cast("Later[Answer]", self._lock_waits.later(lambda: self._claim_alone(queue, claim)))
        return found if is_first or not isinstance(found, Held) else NotClaimed(State.RUNNING)

    async def _claim_alone(self, queue: QueueName, claim: ClaimById) -> Answer | WindlassError:
        return (await self._claim_within(queue, [claim]))[claim.task_id]

    async def _claim_within(self, queue: QueueName, claims: Sequence[ClaimById]) -> dict[UUID, Answer | WindlassError]:
        """Claim within the limits of a queue, counted under its lock by statements that start after it. A lock that is
        held for too long is an answer; after any other error the claim is run again, and finds what it started."""
        answers: dict[UUID, Answer | WindlassError] = {}
        begun: list[tuple[ClaimById, Transition]] = []
        try:
            async with self._store.begin() as tx:
                await tx.limit_waits(LONG_MS)
                holders = HolderTable(tx.session)
                config, delivery = await holders.lock_wakeup_queue(*queue)
                rows = await holders.load_claimable(sorted(claim.task_id for claim in claims))
                usage = await tx.queues.queue_usage(*queue, config) if config.restricted else Usage()
                now = await tx.now()
                for claim in claims:  # each sees what started before it
                    found = rows.get(claim.task_id)
                    if found is None:
                        answers[claim.task_id] = NotClaimed(None)
                        continue
                    task = found.task
                    if not claim.has_begun(task, found.claim_id):
                        why = rules.why_not(task, delivery, found.labelled, now, found.wire)
                        why = why or rules.admits(config, usage, task, now)
                        if why is not None:
                            answers[claim.task_id] = why
                            continue
                        move = rules.claim(task, claim, now)
                        begun.append((claim, move))
                        usage, task = rules.began(usage, task, now), move.after
                    answers[claim.task_id] = _held_task(found, task, delivery, now)
                if begun:
                    await tx.apply([move for _, move in begun])
                    leases = [
                        (c.task_id, m.after.attempt, c.caller.fingerprint, c.claim_id, lease_ms(m.after, delivery))
                        for c, m in begun
                    ]
                    await holders.insert_leases(leases)
                    if config.rate is not None:
                        await tx.queues.insert_rate_start(*queue, now, len(begun), config.rate.period_s)
        except LockHeld as error:
            return dict.fromkeys((claim.task_id for claim in claims), error)
        return answers

    # ----------------------------------------------------------------------------------------- batches of reports

    async def _finish(self, ends: list[LeaseReport]) -> list[Later[Task | State]]:
        plain = [report for report in ends if report.outcome is Outcome.SUCCEEDED and not report.events]
        return await self._decider.carry_out_mostly(ends, plain, finish_at_once)

    async def _extend(self, credentials: list[LeaseCredential]) -> list[HeartbeatAnswer | WindlassError]:
        if not credentials:
            return []
        async with self._store.single() as tx:
            states = await HolderTable(tx.session).extend_held_leases(credentials)
        return [_heartbeat_answer(credential, state) for credential, state in zip(credentials, states, strict=True)]


def lease_ms(task: Task, delivery: Delivery) -> int:
    """How long a lease lasts: as the task says, else its queue. A task that was claimed before its queue changed its
    delivery has the default."""
    if task.policy.lease_s is not None:
        return int(task.policy.lease_s * 1000)
    return delivery.lease_ms if isinstance(delivery, Wakeup) else Wakeup().lease_ms


def _answer_from(claim: ClaimById, lookup: ClaimLookup) -> Answer | None:
    """The answer, if the lookup alone gives one."""
    if lookup.queue is None:
        return NotClaimed(None)
    if lookup.found is None:
        return None
    task = lookup.found.task
    if claim.has_begun(task, lookup.found.claim_id):  # now, or by a call whose reply was lost
        return _held_task(lookup.found, task, lookup.delivery, lookup.now)
    return rules.why_not(task, lookup.delivery, lookup.found.labelled, lookup.now, lookup.found.wire)


def _held_task(found: ClaimableTask, task: Task, delivery: Delivery, now: datetime) -> Held:
    began_at = task.started_at or now
    return Held(task, found.payload, found.wire, began_at + timedelta(milliseconds=lease_ms(task, delivery)), now)


def _heartbeat_answer(credential: LeaseCredential, lease: LeaseState | None) -> HeartbeatAnswer | WindlassError:
    if lease is None:
        return NotFound(f"there is no task {credential.task_id}", task_id=credential.task_id)
    if lease.expires_at is None:
        not_current = f"attempt {credential.attempt} under this token is not the current one"
        return rules.stale(lease.state, lease.attempt, "the lease is over" if lease.holds else not_current)
    return HeartbeatAnswer(lease.now, lease.expires_at, lease.cancel)
