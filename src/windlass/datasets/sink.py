"""The sink: writes the batches of buffered datasets to their tables, each once, and reports the event of each.

1. In the data database: rows and `sink_commit`, in one transaction. 2. In the state database, in another: the task
`windlass.sink` of the batch with its event, the publish, and the end of the message. A sink that dies between the two
leaves a message; the next one finds the commit and repeats only the second. Any number of sinks may run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from uuid import UUID

import msgspec
from msgspec.structs import replace

from windlass.core import task as rules
from windlass.core.delivery import PULL, type_of
from windlass.core.ids import derived_id
from windlass.core.states import Instant, Transition
from windlass.core.submission import Submission
from windlass.core.task import Task
from windlass.datasets.columnar import decode, ending_of
from windlass.datasets.data.batches import Batch, BatchCommit, find_commits, write_batches
from windlass.datasets.data.database import DataDatabase
from windlass.datasets.data.tables import DataTables
from windlass.datasets.rules.batch import BatchInvalid, BatchReader
from windlass.datasets.rules.events import DatasetContext, EventReport, record_events
from windlass.datasets.rules.writer import OutputPlace, Production, Writer
from windlass.datasets.scratch import Scratch
from windlass.datasets.sink_metrics import DUPLICATE, REFUSED, WRITTEN, SinkRows
from windlass.datasets.tables.events import load_context
from windlass.datasets.tables.sink import SinkTable, WaitingBatch
from windlass.engine.engine import Engine
from windlass.errors import Invalid, NotFound, Rejected, Unavailable
from windlass.store.notify import PendingNotifications
from windlass.store.transaction import Transaction

log = logging.getLogger("windlass.sink")

KIND = QUEUE = CALLER = "windlass.sink"
RECEIVE_MAX, GROUP_BYTES = 100, 2 * 1024 * 1024
VISIBILITY_S = 120.0
DELIVERIES_MAX = 10
AGAIN_FIRST_S, AGAIN_MAX_S = 1.0, 60.0  # before an object that cannot be read is tried again
UNAVAILABLE_FIRST_S, UNAVAILABLE_MAX_S = 0.5, 10.0  # before the data database is asked again
LOST_S = 60.0
KEEP_S = 3600.0
REMOVE_BATCH = 200
DECODED_SHARE = 4  # Parquet and Arrow may decode to this many times the size that an object may have


class Outcome(msgspec.Struct, frozen=True):
    """What became of batches: in their table, wrong for good, or not readable now. The last two with the reason."""

    commits: dict[UUID, BatchCommit]
    wrong: dict[UUID, str]
    unread: dict[UUID, str]


class _Group(msgspec.Struct, frozen=True):
    """The first batches of a line, which are written together: their number, and those that are to be written."""

    taken: int
    read: list[Batch]
    outcome: Outcome


class _DataUnavailable(Exception):
    """The data database does not answer. An error of its own: the state database may be there."""


@contextmanager
def _data_unavailable() -> Iterator[None]:
    try:
        yield
    except Unavailable as error:
        raise _DataUnavailable(str(error)) from error


def sink_task_id(publish_id: UUID) -> UUID:
    """The task of a batch: the same, however often the batch is delivered."""
    return derived_id("sink", publish_id)


class Sink:
    """Writes batches, for one engine. After `visibility_s`, another sink gets the batches of one that has died."""

    def __init__(
        self, engine: Engine, scratch: Scratch, *, keep_s: float = KEEP_S, visibility_s: float = VISIBILITY_S
    ) -> None:
        self._store, self._randomness, self._stopwatch = (
            engine.parts.store, engine.parts.randomness, engine.parts.stopwatch,
        )  # fmt: skip
        self._data, self._tables = engine.service(DataDatabase), engine.service(DataTables)
        self._engine, self._scratch, self._keep_s, self._visibility_s = engine, scratch, keep_s, visibility_s
        self._unavailable_s, self._ask_at_s = 0.0, 0.0
        self._rows = engine.service(SinkRows)
        self._readers: dict[UUID, BatchReader] = {}

    # ----------------------------------------------------------------------------------------- batches

    async def tick(self) -> int:
        """Write the batches of one dataset that wait. Returns the number of messages received."""
        if not await self._answers():
            return 0
        async with self._store.begin() as tx:
            table = SinkTable(tx.session)
            held = await table.receive(RECEIVE_MAX, self._visibility_s)
            if not held:
                return 0
            found = await table.batches(held)
            await table.ack([id_ for id_ in held if id_ not in found or found[id_].sunk_at is not None])
        waiting = sorted((one for one in found.values() if one.sunk_at is None), key=lambda one: (one.at, one.id))
        for version in dict.fromkeys(one.dataset_version for one in waiting):
            await self._sink(held, [one for one in waiting if one.dataset_version == version])
        return len(held)

    async def _sink(self, held: Mapping[UUID, int], batches: Sequence[WaitingBatch]) -> None:
        """Write batches of one version, as many at a time as fit into memory. The next ones are read meanwhile."""
        left, ahead = list(batches), None
        try:
            known = await self._commits(batches)
            while left:
                group = await (ahead or self._read_group(left, known))
                rest = left[group.taken :]
                ahead = asyncio.create_task(self._read_group(rest, known)) if rest else None
                if group.read:
                    await self._insert(left[0], group.read, group.outcome)
                await self._record(held, {one.id: one for one in left[: group.taken]}, group.outcome)
                left = rest
                if left:  # the first ones may have taken long
                    await self._delay(held, left, self._visibility_s)
        except _DataUnavailable as error:
            self._left(error)
            await self._delay(held, left, UNAVAILABLE_FIRST_S, counted=False)
        finally:
            if ahead is not None:
                ahead.cancel()
                await asyncio.wait([ahead])

    async def _commits(self, batches: Sequence[WaitingBatch]) -> dict[UUID, BatchCommit]:
        """Make the table of the version if it is missing. Returns those of the batches that are in it."""
        with _data_unavailable():
            if not batches[0].has_table:
                await self._tables.make()
            return await find_commits(self._data, [one.id for one in batches])

    async def _read_group(self, batches: Sequence[WaitingBatch], known: Mapping[UUID, BatchCommit]) -> _Group:
        """Read the first of these batches, and check them. What is in its table is not read again."""
        outcome, read = Outcome({}, {}, {}), []
        size = taken = 0
        for one in batches:
            taken += 1
            if one.id in known:
                outcome.commits[one.id] = known[one.id]
                continue
            try:
                batch, length = await self._read(one)
            except (BatchInvalid, Rejected) as error:
                into = outcome.unread if isinstance(error, NotFound) else outcome.wrong
                into[one.id] = str(error)
            except Unavailable as error:
                outcome.unread[one.id] = str(error)
            else:
                read.append(batch)
                size += length
            if size >= GROUP_BYTES:
                break
        return _Group(taken, read, outcome)

    async def _read(self, one: WaitingBatch) -> tuple[Batch, int]:
        """Read a batch and check all of it. Returns it with the size of its object."""
        if one.purged:
            raise BatchInvalid("the version of the dataset was purged")
        content = await self._scratch.read(one.batch_uri)
        size = len(content)
        if (ending := ending_of(one.batch_uri)) is not None:
            limit = DECODED_SHARE * self._scratch.batch_max_bytes
            content = await decode(content, ending, one.schema, one.record_count, limit)
        reader = self._readers.get(one.dataset_version)
        if reader is None:
            reader = self._readers[one.dataset_version] = BatchReader(one.schema)
        records = await asyncio.to_thread(reader.read, content, one.record_count)
        return Batch(one.id, one.namespace, one.task_id, one.attempt, one.at, records), max(size, len(content))

    async def _insert(self, one: WaitingBatch, read: Sequence[Batch], outcome: Outcome) -> None:
        """Write batches together. If the database does not store a value, alone, so that only its batch is refused."""
        try:
            with _data_unavailable():
                outcome.commits.update(await write_batches(self._data, one.dataset_version, one.schema, read))
        except Invalid as error:
            if len(read) == 1:
                outcome.wrong[read[0].publish_id] = error.message
                return
            for batch in read:
                await self._insert(one, [batch], outcome)

    # ----------------------------------------------------------------------------------------- state

    async def _record(self, held: Mapping[UUID, int], batches: Mapping[UUID, WaitingBatch], outcome: Outcome) -> None:
        """Complete the tasks of the batches that are in their table, in one transaction with their messages."""
        commits = {id_: one for id_, one in outcome.commits.items() if id_ in batches}
        if commits:
            async with self._store.begin() as tx:
                await self._complete(tx, batches, commits)
                table = SinkTable(tx.session)
                await table.mark_sunk({id_: sink_task_id(id_) for id_ in commits})
                await table.ack(list(commits))
            for id_, commit in commits.items():
                self._rows.add(batches[id_].dataset, WRITTEN, commit.rows_new)
                self._rows.add(batches[id_].dataset, DUPLICATE, commit.rows_in - commit.rows_new)
        for id_, reason in outcome.wrong.items():
            await self._dead_letter(batches[id_], held[id_], reason)
        for id_, reason in outcome.unread.items():
            if held[id_] >= DELIVERIES_MAX:
                await self._dead_letter(batches[id_], held[id_], f"after {held[id_]} deliveries: {reason}")
            else:
                again_s = min(AGAIN_FIRST_S * 2.0 ** (held[id_] - 1), AGAIN_MAX_S)
                log.warning("batch %s is tried again in %.0f s: %s", id_, again_s, reason)
                await self._delay(held, [batches[id_]], again_s)

    async def _complete(
        self, tx: Transaction, batches: Mapping[UUID, WaitingBatch], commits: Mapping[UUID, BatchCommit]
    ) -> None:
        """Add the tasks of batches and complete them, with one event each, in the order of their cursors."""
        ordered = sorted(commits, key=lambda id_: commits[id_].cursor)
        added = await tx.add_missing([_submission(batches[id_]) for id_ in ordered])
        tasks = await tx.tasks.lock_tasks(sorted(added))
        events = {
            sink_task_id(id_): EventReport(
                batches[id_].dataset_uuid, batches[id_].dataset_version, cursor=commits[id_].cursor
            )
            for id_ in ordered
        }  # fmt: skip
        writers = {id_: _writer(event) for id_, event in events.items() if id_ in tasks}
        context = await load_context(tx.session, writers, [(id_, events[id_]) for id_ in writers])
        now, token = await tx.now(), self._randomness.new_token(type_of(PULL))
        for id_ in ordered:
            task = tasks.get(sink_task_id(id_))
            if task is not None:
                await tx.apply(_run(task, token, events[task.id], commits[id_], context, now))

    async def _dead_letter(self, one: WaitingBatch, deliveries: int, reason: str) -> None:
        """Keep the message of a batch that cannot be written, until a person replays it."""
        async with self._store.begin() as tx:
            new_id = self._randomness.new_id()
            if not await SinkTable(tx.session).dead_letter(new_id, one.id, deliveries, reason[:2000]):
                return  # another sink has received it since
        self._rows.add(one.dataset, REFUSED, one.record_count)
        log.error("batch %s is a dead letter: %s", one.id, reason)

    async def _delay(
        self, held: Mapping[UUID, int], batches: Sequence[WaitingBatch], delay_s: float, *, counted: bool = True
    ) -> None:
        async with self._store.single() as tx:
            await SinkTable(tx.session).delay({one.id: held[one.id] for one in batches}, delay_s, counted=counted)

    # ----------------------------------------------------------------------------------------- the data database

    async def _answers(self) -> bool:
        """Whether the data database answers. While it is away, no message is received."""
        if not self._unavailable_s:
            return True
        if self._stopwatch() < self._ask_at_s:
            return False
        try:
            await self._data.check()
        except (Unavailable, Rejected) as error:
            self._left(error)
            return False
        log.warning("the data database answers again")
        self._unavailable_s = 0.0
        return True

    def _left(self, error: Exception) -> None:
        """The data database does not answer: ask it again later, less and less often."""
        if not self._unavailable_s:
            log.warning("the data database does not answer; batches wait: %s", error)
        self._unavailable_s = min(max(2 * self._unavailable_s, UNAVAILABLE_FIRST_S), UNAVAILABLE_MAX_S)
        self._ask_at_s = self._stopwatch() + self._unavailable_s

    # ----------------------------------------------------------------------------------------- upkeep

    async def reconcile_tick(self) -> int:
        """Send the messages of batches that have lost theirs. Returns their number."""
        async with self._store.begin() as tx:
            table = SinkTable(tx.session)
            lost = await table.lost(LOST_S, RECEIVE_MAX)
            if lost:
                await table.put_messages(lost)
                await tx.wake(PendingNotifications(wakeup_messages={(one.namespace, one.queue) for one in lost}))
        return len(lost)

    async def clean_up_tick(self) -> int:
        """Delete the objects of batches that have been in their table for long enough. Returns their number."""
        async with self._store.single() as tx:
            old = await SinkTable(tx.session).batches_to_remove(self._keep_s, REMOVE_BATCH)
        if not old:
            return 0
        committed = await find_commits(self._data, list(old))  # the record says what is written, nothing else
        gone = {id_: uri for id_, uri in old.items() if id_ in committed}
        await self._scratch.delete(gone.values())
        async with self._store.single() as tx:
            await SinkTable(tx.session).mark_removed(gone)
        return len(gone)


def _submission(one: WaitingBatch) -> Submission:
    """The task of a batch, in the namespace and the trace of the task that published it."""
    payload = {"publish_id": one.id, "dataset_uuid": one.dataset_uuid, "dataset_version": one.dataset_version}
    return Submission(
        kind=KIND, queue=QUEUE, namespace=one.namespace, id=sink_task_id(one.id), payload=msgspec.json.encode(payload),
        trace=one.trace,
    )  # fmt: skip


def _writer(event: EventReport) -> Writer:
    """The right of a sink: to raise the cursor of this version."""
    place = OutputPlace(0, "postgres")  # not buffered: what this event reports is in the table
    production = Production({event.dataset_uuid: place}, "[]", event.dataset_version)
    return Writer(1, {event.dataset_uuid: event.dataset_version}, production)


def _run(
    task: Task, token: UUID, event: EventReport, commit: BatchCommit, context: DatasetContext, now: Instant
) -> list[Transition]:
    """Claim and complete a task, with its event."""
    claim = rules.claim(task, token, CALLER, now)
    recorded = record_events(claim.after, (event,), context, CALLER, now)
    result = msgspec.json.encode(commit._asdict())
    done = rules.complete(claim.after, claim.after.attempt, token, result, now)
    done = replace(done, writes=recorded.writes, effects=(*done.effects, *recorded.effects))
    context.note(done)
    return [claim, done]
