"""Bugs planted in routing, commits, backfills and sinks, each a small change of the real code: see `bugs`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar
from itertools import count
from typing import Any
from uuid import UUID

import msgspec
from msgspec.structs import replace
from tests.sim.bugs import Bug, Plant, patched, reworded, together

from windlass.contracts.lease import rules as lease_rules
from windlass.core.ids import derived_id
from windlass.datasets import backfills, router, sink
from windlass.datasets.data import batches as data_batches
from windlass.datasets.data.batches import BatchCommit
from windlass.datasets.rules import events, writer
from windlass.datasets.rules import route as route_rules
from windlass.datasets.rules.batch import BatchReader
from windlass.datasets.sink import Sink
from windlass.datasets.tables.jobs import JobTable
from windlass.datasets.tables.sink import SinkTable

BUGS: dict[str, Bug] = {}


def bug(first: int = 0) -> Any:
    """Adds a bug under the name of its function. A hunt for it begins at the seed `first`."""

    def add(plant: Plant) -> Plant:
        name = getattr(plant, "__name__", "")
        BUGS[name] = Bug(name, plant, (plant.__doc__ or "").strip(), "dag", first)
        return plant

    return add


async def nothing(*_: Any) -> None:
    """Instead of something that was forgotten."""


# --------------------------------------------------------------------------------------------- routing


@bug()
def a_cursor_moves_though_its_task_failed() -> AbstractContextManager[None]:
    """A window counts as read, whatever became of the task that was to read it."""
    return reworded(ended_windows=("and t.state = 'succeeded'", ""))


@bug()
def an_event_makes_no_task() -> AbstractContextManager[None]:
    """An event is marked as routed, and the tasks that it owes are left to a reconcile that does not know of them."""
    real = route_rules.route

    def route(*args: Any) -> Any:
        return replace(real(*args), owed=())

    return patched(router, "route", route)


@bug()
def consumption_is_not_written() -> AbstractContextManager[None]:
    """What a job was given is not recorded."""
    return patched(JobTable, "insert_consumptions", nothing)


@bug()
def a_repeated_commit_is_the_same_revision() -> AbstractContextManager[None]:
    """Another task that commits a partition again does not count it."""
    real = events._commit

    def commit(event: Any, *args: Any) -> Any:
        event, made = real(event, *args)
        return (event if event.revision is None else replace(event, revision=1)), tuple(
            replace(one, revision=1) if isinstance(one, events.PartitionCommit) else one for one in made
        )

    return patched(events, "_commit", commit)


@bug(2)
def jobs_are_not_locked() -> AbstractContextManager[None]:
    """Two servers make tasks of one job at the same time."""
    return reworded(lock_jobs=("order by j.id for update", "order by j.id"))


@bug()
def a_job_is_caught_up_too_early() -> AbstractContextManager[None]:
    """A job to which more is owed than one tick makes counts as caught up."""
    real = JobTable.owed_partitions

    async def first(self: JobTable, *args: Any) -> Any:
        return (await real(self, *args))[:1]  # fewer than the limit: the tick takes them for all

    return patched(JobTable, "owed_partitions", first)


@bug()
def a_paused_job_is_caught_up() -> AbstractContextManager[None]:
    """A job that is paused or held while it is compared counts as caught up."""
    lock_behind, edges_of = JobTable.lock_behind, JobTable.edges_of
    comparing: set[int] = set()

    async def lock(self: JobTable, limit: int) -> Any:
        comparing.add(id(self))
        return await lock_behind(self, limit)

    async def edges(self: JobTable, ids: Any) -> Any:
        found = await edges_of(self, ids)
        if id(self) not in comparing:
            return found
        comparing.discard(id(self))
        return [edge for edge in found if edge.is_fed]

    return together(patched(JobTable, "lock_behind", lock), patched(JobTable, "edges_of", edges))


@bug()
def a_paused_dag_gets_tasks() -> AbstractContextManager[None]:
    """Routing does not ask whether a DAG is paused."""
    return reworded(live_edges=("d.paused, j.held", "false, j.held"), live_jobs=("d.paused, j.held", "false, j.held"))


@bug()
def a_held_job_gets_tasks() -> AbstractContextManager[None]:
    """Routing does not ask whether a job is held."""
    return reworded(
        live_edges=("d.paused, j.held", "d.paused, false"), live_jobs=("d.paused, j.held", "d.paused, false")
    )


@bug()
def two_definitions_always_run() -> AbstractContextManager[None]:
    """A job that always runs starts before the task of its earlier definition has ended."""
    return reworded(always_on_jobs=("t.finished_at is null", "t.finished_at is null and false"))


@bug()
def a_backfill_is_made_twice() -> AbstractContextManager[None]:
    """A page of a backfill is made without its lock, and the key of its tasks is not the same for all who make it."""
    turn = count()
    keys = patched(backfills, "backfill_task", lambda id_, key: f"backfill:{id_}:{key}:{next(turn)}")
    return together(keys, reworded(lock_backfill=("for update skip locked", "")))


# --------------------------------------------------------------------------------------------- commits


@bug()
def an_event_commits_files() -> AbstractContextManager[None]:
    """A partition in the lake is committed by an event alone, without its files."""
    return patched(writer.Production, "in_lake", lambda *_: False)


@bug()
def a_stale_attempt_commits() -> AbstractContextManager[None]:
    """A report is believed whichever attempt it is about."""
    return together(
        patched(lease_rules.LeaseCredential, "denial", lambda *_: None),
        patched(lease_rules.LeaseCredential, "check_live", lambda *_, **__: None),
    )


# --------------------------------------------------------------------------------------------- sinks


@bug()
def a_sink_commit_is_not_checked() -> AbstractContextManager[None]:
    """A batch is written again whenever its message comes again."""

    async def none(*_: Any) -> dict[UUID, BatchCommit]:
        return {}

    again = "as u(publish_id, rows_in, rows_new, cursor, published_at)"
    return together(
        patched(sink, "find_commits", none),
        patched(data_batches, "_commits", none),
        reworded(
            insert_sink_commits=(again, f"{again} on conflict (publish_id) do update set cursor = excluded.cursor")
        ),
    )


@bug(36)
def an_event_is_reported_twice() -> AbstractContextManager[None]:
    """The task of a batch has another id in every delivery."""
    turns, turn = count(), ContextVar("turn", default=0)
    record = Sink._record

    async def recorded(self: Sink, *args: Any) -> None:
        turn.set(next(turns))
        await record(self, *args)

    return together(
        patched(Sink, "_record", recorded),
        patched(sink, "sink_task_id", lambda publish_id: derived_id("sink", publish_id, turn.get())),
    )


@bug()
def a_message_is_acknowledged_too_early() -> AbstractContextManager[None]:
    """The message of a batch is deleted when it is received."""
    receive = SinkTable.receive

    async def received(self: SinkTable, *args: Any) -> dict[UUID, int]:
        held = await receive(self, *args)
        await self.ack(list(held))
        return held

    return patched(SinkTable, "receive", received)


@bug(4)
def the_org_id_of_a_row_is_believed() -> AbstractContextManager[None]:
    """Rows that name an organisation belong to it."""
    read, read_lines = Sink._read, BatchReader.read

    async def believed(self: Sink, one: Any) -> Any:
        batch, size = await read(self, one)
        first = msgspec.json.decode((await self._scratch.read(one.batch_uri)).split(b"\n")[0])
        return replace(batch, org_id=first.get("org_id", batch.org_id)), size

    def without(self: BatchReader, content: bytes, record_count: int) -> Any:
        return read_lines(self, content.replace(b',"org_id":"somebody"', b""), record_count)

    return together(patched(Sink, "_read", believed), patched(BatchReader, "read", without))
