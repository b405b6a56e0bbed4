"""Notes of attempts: the last word counts, nothing of an attempt that is over, and no task is touched."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from tests.kit.work import CRASH, begin, worker

from windlass import Claimed, Engine, Invalid, LeaseLost, NotFound, Policy
from windlass.core.progress import (
    ATTEMPTS_KEPT,
    CHECKPOINT_MAX_BYTES,
    LINE_MAX,
    LINES_MAX,
    Amount,
    Line,
    ProgressReport,
)
from windlass.store.tables.progress import ProgressTable
from windlass.testing.clock import VirtualClock


def note(claimed: Claimed, **said: Any) -> ProgressReport:
    assert claimed.task.lease_id is not None
    return ProgressReport(claimed.task.id, claimed.task.attempt, claimed.task.lease_id, **said)


def lines(first: int, count: int) -> tuple[Line, ...]:
    return tuple(Line(number, "INFO", f"line {number}") for number in range(first, first + count))


async def said(engine: Engine, *notes: ProgressReport) -> None:
    for answer in await engine.note(notes):
        if answer is not None:
            raise answer


async def next_attempt(engine: Engine, claimed: Claimed, clock: VirtualClock) -> Claimed:
    """It fails, and is tried again."""
    await engine.fail(claimed, CRASH)
    await clock.advance(3600)
    [again] = await engine.claim(await worker(engine))
    assert again.task.id == claimed.task.id
    return again


async def test_the_last_progress_counts_and_says_when_and_in_which_attempt(engine: Engine, clock: VirtualClock) -> None:
    claimed = await begin(engine)
    await said(engine, note(claimed, progress=Amount(1, 10, "begun")))
    at = await clock.advance(5)
    await said(engine, note(claimed, progress=Amount(6, 10)), note(claimed, progress=Amount(7, 10, "soon")))

    seen = await engine.progress(claimed.task.id)
    assert seen is not None
    assert (seen.current, seen.maximum, seen.message, seen.attempt, seen.at) == (7, 10, "soon", 1, at)
    assert seen.fraction == 0.7


async def test_a_task_that_said_nothing_has_no_progress_no_checkpoint_and_no_log(engine: Engine) -> None:
    claimed = await begin(engine)
    assert await engine.progress(claimed.task.id) is None
    assert await engine.checkpoint(claimed.task.id) is None
    assert (await engine.parts.progress.log(claimed.task.id)).lines == []


async def test_an_attempt_that_is_over_changes_nothing(engine: Engine, clock: VirtualClock) -> None:
    first = await begin(engine)
    await said(engine, note(first, progress=Amount(1), checkpoint=b'"first"', lines=lines(0, 1)))
    second = await next_attempt(engine, first, clock)
    late = note(first, progress=Amount(2), checkpoint=b'"late"', lines=lines(1, 1))
    other_lease = ProgressReport(second.task.id, second.task.attempt, first.task.lease_id, Amount(3))  # type: ignore[arg-type]

    answers = await engine.note([late, other_lease, note(second, lines=lines(0, 1))])

    assert [type(answer) for answer in answers] == [LeaseLost, LeaseLost, type(None)]
    assert (await engine.progress(first.task.id)).current == 1  # type: ignore[union-attr]
    assert await engine.checkpoint(first.task.id) == b'"first"'
    kept = (await engine.parts.progress.log(first.task.id)).lines
    assert [(line.attempt, line.number) for line in kept] == [(1, 0), (2, 0)]


async def test_a_task_that_has_ended_takes_no_notes(engine: Engine) -> None:
    claimed = await begin(engine)
    await engine.complete(claimed)
    with pytest.raises(LeaseLost):
        await said(engine, note(claimed, progress=Amount(1)))
    assert await engine.progress(claimed.task.id) is None


async def test_a_note_that_was_on_its_way_does_not_replace_that_of_a_later_attempt(
    engine: Engine, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    """The first attempt was found alive; the second one began and spoke before the note of the first was written."""
    first = await begin(engine)
    second = await next_attempt(engine, first, clock)
    await said(engine, note(second, progress=Amount(5), checkpoint=b"5"))

    async with engine.store.begin() as tx:
        await ProgressTable(tx.session).write_progress_reports([note(first, progress=Amount(1), checkpoint=b"1")])

    assert (await engine.progress(first.task.id)).current == 5  # type: ignore[union-attr]
    assert await engine.checkpoint(first.task.id) == b"5"


async def test_the_next_attempt_finds_the_checkpoint(engine: Engine, clock: VirtualClock) -> None:
    first = await begin(engine)
    await said(engine, note(first, checkpoint=b'{"row": 1}'), note(first, checkpoint=b'{"row": 2}'))
    second = await next_attempt(engine, first, clock)
    assert await engine.checkpoint(second.task.id) == b'{"row": 2}'


async def test_the_last_lines_of_an_attempt_are_kept_and_a_repeat_is_one_line(engine: Engine) -> None:
    claimed = await begin(engine)
    await said(engine, note(claimed, lines=lines(0, 300)))
    await said(engine, note(claimed, lines=lines(290, LINES_MAX)))

    page = await engine.parts.progress.log(claimed.task.id, limit=5000)

    numbers = [line.number for line in page.lines]
    assert numbers == list(range(290, 290 + LINES_MAX))
    assert page.next is None


async def test_a_log_is_read_page_by_page(engine: Engine, clock: VirtualClock) -> None:
    first = await begin(engine)
    await said(engine, note(first, lines=lines(0, 3)))
    second = await next_attempt(engine, first, clock)
    await said(engine, note(second, lines=lines(0, 2)))
    seen, after = [], None
    while True:
        page = await engine.parts.progress.log(first.task.id, after=after, limit=2)
        seen += [(line.attempt, line.number) for line in page.lines]
        after = page.next
        if after is None:
            break
    assert seen == [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1)]
    assert len((await engine.parts.progress.log(first.task.id, attempt=2)).lines) == 2


async def test_a_line_is_as_old_as_its_worker_says_by_the_clock_of_the_database(
    engine: Engine, clock: VirtualClock
) -> None:
    claimed = await begin(engine)
    await said(engine, note(claimed, lines=(Line(0, "WARNING", "hot", age_s=2.5),)))
    [line] = (await engine.parts.progress.log(claimed.task.id)).lines
    assert line.at == await clock.now() - timedelta(seconds=2.5)
    assert (line.level, line.message) == ("WARNING", "hot")


async def test_only_the_lines_of_the_last_attempts_are_kept(engine: Engine, clock: VirtualClock) -> None:
    claimed = await begin(engine, policy=Policy(max_attempts=100))
    for _ in range(ATTEMPTS_KEPT + 2):
        await said(engine, note(claimed, lines=lines(0, 1)))
        claimed = await next_attempt(engine, claimed, clock)
    kept = (await engine.parts.progress.log(claimed.task.id)).lines
    assert [line.attempt for line in kept] == list(range(3, ATTEMPTS_KEPT + 3))


async def test_text_is_mended_and_cut_rather_than_refused(engine: Engine) -> None:
    claimed = await begin(engine)
    await said(engine, note(claimed, progress=Amount(1, message="a\x00b"), lines=(Line(0, "INFO", "x" * 10_000),)))
    [line] = (await engine.parts.progress.log(claimed.task.id)).lines
    assert len(line.message) == LINE_MAX
    assert line.message.endswith("…")
    assert (await engine.progress(claimed.task.id)).message == "a\ufffdb"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "wrong",
    [
        {"progress": Amount(-1)},
        {"progress": Amount(1, float("nan"))},
        {"checkpoint": b"{"},
        {"checkpoint": b'"' + b"x" * CHECKPOINT_MAX_BYTES + b'"'},
        {"lines": (Line(-1, "INFO", ""),)},
        {"lines": (Line(0, "LOUD", ""),)},
        {"lines": ("a line",)},
    ],
)
async def test_a_note_that_cannot_be_kept_is_refused(engine: Engine, wrong: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        await engine.note([note(await begin(engine), **wrong)])


async def test_notes_end_with_their_task(
    engine: Engine, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    gone, kept = [await begin(engine) for _ in range(2)]
    for claimed in (gone, kept):
        await said(engine, note(claimed, progress=Amount(1), checkpoint=b"1", lines=lines(0, 3)))
    await engine.complete(gone)
    await clock.advance(8 * 86400)
    while await engine.loops.retention_tick():
        pass
    with pytest.raises(NotFound):
        await engine.tasks.get(gone.task.id)
    counts = [
        await other_connection.fetchval(f"select count(*) from windlass.{table}")
        for table in ("progress", "checkpoint", "log_line")
    ]
    assert counts == [1, 1, 3]


async def test_notes_leave_the_task_alone_and_updates_stay_on_their_page(
    engine: Engine, other_connection: asyncpg.Connection
) -> None:
    claimed = await begin(engine)
    place = "select ctid, xmin from windlass.task where id = $1"
    before = await other_connection.fetchrow(place, claimed.task.id)
    for number in range(20):
        await said(engine, note(claimed, progress=Amount(number, 20), checkpoint=str(number).encode()))
    assert await other_connection.fetchrow(place, claimed.task.id) == before
    indexed = """select c.relname, array_agg(a.attname::text) from pg_index i join pg_class c on c.oid = i.indrelid
                   join pg_attribute a on a.attrelid = c.oid and a.attnum = any(i.indkey)
                  where c.oid in ('windlass.progress'::regclass, 'windlass.checkpoint'::regclass) group by 1"""
    assert dict(await other_connection.fetch(indexed)) == {"progress": ["task_id"], "checkpoint": ["task_id"]}


async def test_many_workers_share_a_transaction(engine: Engine, other_connection: asyncpg.Connection) -> None:
    claims = [await begin(engine) for _ in range(30)]
    await asyncio.gather(*(said(engine, note(claimed, progress=Amount(1))) for claimed in claims))
    transactions = await other_connection.fetchval("select count(distinct xmin::text) from windlass.progress")
    assert transactions <= 3
    assert len(await engine.parts.progress.progress([claimed.task.id for claimed in claims])) == 30
