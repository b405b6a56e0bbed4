"""What a handler says while it runs: from async code and from threads, not too often, and the last word always."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from tests.kit.work import begin

from windlass import App, Claimed, Context, Engine, Invalid, InvalidState, LeaseLost, State, Task, WindlassError
from windlass.core.progress import LINES_MAX, Amount, ProgressReport
from windlass.errors import StoreBusy
from windlass.sdk.worker.progress import ProgressSender


@dataclass
class Cursor:
    row: int
    file: str = ""


async def lines_of(app: App, task_id: Any) -> list[tuple[int, str, str]]:
    engine: Any = app.client
    return [(line.attempt, line.level, line.message) for line in (await engine.parts.progress.log(task_id)).lines]


async def test_progress_is_seen_while_the_handler_runs_and_its_last_word_stays(app: App, working: Any) -> None:
    seen, go_on = asyncio.Event(), asyncio.Event()

    @app.task
    async def count(ctx: Context) -> None:
        ctx.progress(1, 3, "one")
        await ctx.checkpoint("one")  # goes with the progress
        seen.set()
        await go_on.wait()
        for number in (2, 3):
            ctx.progress(number, 3)

    async with working():
        handle = await count.submit()
        await seen.wait()
        progress = await handle.progress()
        assert progress is not None
        assert (progress.current, progress.maximum, progress.message, progress.attempt) == (1, 3, "one", 1)
        go_on.set()
        await handle.result("20s")
        last = await handle.progress()
    assert last is not None
    assert last.fraction == 1.0


async def test_a_thread_says_the_same(app: App, working: Any) -> None:
    @app.task
    def count(ctx: Context) -> None:
        ctx.progress(7)
        ctx.checkpoint({"row": 7}).wait("10s")
        ctx.log.info("at row %d", 7)

    async with working():
        handle = await count.submit()
        await handle.result("20s")
        progress = await handle.progress()
        assert progress is not None
        assert (progress.current, progress.maximum, progress.fraction) == (7, None, None)
        assert await app.client.checkpoint(handle.id) == b'{"row":7}'
        assert await lines_of(app, handle.id) == [(1, "INFO", "at row 7")]


async def test_the_next_attempt_goes_on_where_the_last_one_was(app: App, working: Any) -> None:
    @app.task(retry_delay="1ms")
    async def walk(ctx: Context) -> list[int]:
        begun = ctx.last_checkpoint(Cursor) or Cursor(0)
        for row in range(begun.row, begun.row + 3):
            ctx.checkpoint(Cursor(row + 1, "a.csv"))
        if ctx.attempt < 3:
            raise OSError("the disk is gone")
        return [begun.row, ctx.last_checkpoint(Cursor).row, ctx.last_checkpoint()["row"]]  # type: ignore[union-attr]

    async with working():
        assert await (await walk.submit()).result("20s") == [6, 9, 9]


async def test_a_checkpoint_that_was_awaited_is_in_the_database(app: App, working: Any) -> None:
    seen: list[bytes | None] = []

    @app.task
    async def save(ctx: Context) -> None:
        await ctx.checkpoint([1, 2])
        seen.append(await app.client.checkpoint(ctx.task_id))
        with pytest.raises(InvalidState, match="await it"):
            ctx.checkpoint([3]).wait()

    async with working():
        await (await save.submit()).result("20s")
    assert seen == [b"[1,2]"]


async def test_log_lines_are_kept_with_their_attempt_whatever_the_program_logs(
    app: App, working: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)

    @app.task(retry_delay="1ms")
    async def talk(ctx: Context) -> None:
        ctx.log.debug("too much detail")
        ctx.log.info("try %d", ctx.attempt)
        ctx.log.info("%d is not a number", "x")  # a mistake in a log line is no reason to fail
        try:
            int("no")
        except ValueError:
            ctx.log.exception("it failed")
        if ctx.attempt == 1:
            raise OSError("again")

    async with working():
        handle = await talk.submit()
        await handle.result("20s")
        kept = await lines_of(app, handle.id)
    assert [line[:2] for line in kept] == [
        (attempt, level) for attempt in (1, 2) for level in ("INFO", "INFO", "ERROR")
    ]
    assert [line[2] for line in kept if line[2].startswith("try")] == ["try 1", "try 2"]
    assert "ValueError: invalid literal" in kept[-1][2]
    assert {record.message for record in caplog.records} == {"it failed"}
    assert caplog.records[0].filename == "test_progress.py"


async def test_a_handler_that_fails_or_is_cancelled_leaves_its_last_words(app: App, working: Any) -> None:
    begun = asyncio.Event()

    @app.task
    async def stay(ctx: Context) -> None:
        try:
            begun.set()
            await asyncio.sleep(3600)
        finally:
            ctx.log.warning("interrupted")

    async with working():
        handle = await stay.submit()
        await begun.wait()
        await handle.cancel()
        with pytest.raises(WindlassError):
            await handle.result("20s")
        assert await lines_of(app, handle.id) == [(1, "WARNING", "interrupted")]


def test_what_cannot_be_said_is_refused() -> None:
    context = Context(_claimed())
    for wrong in (
        lambda: context.progress(-1),
        lambda: context.progress(1, float("inf")),
        lambda: context.progress("half"),  # type: ignore[arg-type]
        lambda: context.checkpoint(object()),
        lambda: context.checkpoint("x" * 300_000),
        lambda: context.say("LOUD", "hear"),
    ):
        with pytest.raises(Invalid):
            wrong()


def _claimed() -> Claimed:
    return Claimed(Task(uuid4(), "default", "default", "job", State.RUNNING, datetime(2030, 1, 1, tzinfo=UTC)), b"null")


# --------------------------------------------------------------------------------------------- how often


class Counting:
    """An engine that is watched, and can be away."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.sent, self.away = engine, list[list[ProgressReport]](), False

    async def note(self, notes: Sequence[ProgressReport]) -> list[WindlassError | None]:
        if self.away:
            raise StoreBusy
        self.sent.append(list(notes))
        return await self.engine.note(notes)


class Pauses:
    """A pause that ends when the test says so."""

    def __init__(self) -> None:
        self.begun, self.over = asyncio.Event(), asyncio.Event()

    async def __call__(self, _seconds: float) -> None:
        self.begun.set()
        await self.over.wait()
        self.over.clear()

    async def next(self) -> None:
        self.begun.clear()
        self.over.set()
        await asyncio.wait_for(self.begun.wait(), 20)


async def test_the_first_word_goes_out_at_once_then_only_the_latest_between_two_pauses(engine: Engine) -> None:
    target, pauses = Counting(engine), Pauses()
    notes = ProgressSender(target, pause=pauses)
    attempts = [notes.attempt(await begin(engine)) for _ in range(2)]
    for number in range(100):
        for attempt in attempts:
            attempt.progress(Amount(number))
    await asyncio.wait_for(pauses.begun.wait(), 20)
    assert [[note.progress for note in group] for group in target.sent] == [[Amount(99), Amount(99)]]

    for number in range(100, 200):
        attempts[0].progress(Amount(number))
    assert len(target.sent) == 1
    await pauses.next()
    assert [note.progress for note in target.sent[1]] == [Amount(199)]
    await notes.close()


async def test_the_last_word_does_not_wait_for_the_pause(engine: Engine) -> None:
    target, pauses = Counting(engine), Pauses()
    notes = ProgressSender(target, pause=pauses)
    attempt = notes.attempt(await begin(engine))
    attempt.progress(Amount(1))
    await asyncio.wait_for(pauses.begun.wait(), 20)
    attempt.progress(Amount(2))
    await attempt.close()
    assert [group[0].progress for group in target.sent] == [Amount(1), Amount(2)]
    await notes.close()


async def test_who_says_nothing_costs_nothing(engine: Engine) -> None:
    target = Counting(engine)
    await ProgressSender(target).attempt(await begin(engine)).close()
    assert target.sent == []


async def test_what_could_not_be_sent_goes_with_the_next_behind_what_was_said_since(engine: Engine) -> None:
    target, pauses = Counting(engine), Pauses()
    notes = ProgressSender(target, pause=pauses)
    attempt = notes.attempt(await begin(engine))
    target.away = True
    attempt.progress(Amount(1))
    attempt.line("INFO", "first")
    saved = attempt.checkpoint(b"1")
    await asyncio.wait_for(pauses.begun.wait(), 20)
    target.away = False
    attempt.progress(Amount(2))
    attempt.line("INFO", "second")
    await pauses.next()
    [[note]] = target.sent
    assert note.progress == Amount(2)
    assert note.checkpoint == b"1"
    assert [(line.number, line.message) for line in note.lines] == [(0, "first"), (1, "second")]
    await asyncio.wait_for(saved, 20)
    await notes.close()


async def test_a_checkpoint_of_an_attempt_that_is_over_is_told_so(engine: Engine) -> None:
    claimed = await begin(engine)
    notes = ProgressSender(engine)
    attempt = notes.attempt(claimed)
    await engine.complete(claimed)
    with pytest.raises(LeaseLost):
        await attempt.checkpoint(b"1")
    await attempt.close()
    await notes.close()


async def test_a_flood_of_lines_from_threads_is_bounded_and_keeps_the_last(engine: Engine) -> None:
    notes = ProgressSender(engine, pause=Pauses())
    claimed = await begin(engine)
    attempt = notes.attempt(claimed)

    def flood() -> None:
        for number in range(LINES_MAX):
            attempt.line("INFO", str(number))

    threads = [threading.Thread(target=flood) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join)
    await attempt.close()
    kept = (await engine.parts.progress.log(claimed.task.id, limit=5000)).lines
    assert len(kept) == LINES_MAX
    assert kept[-1].number == 4 * LINES_MAX - 1
    await notes.close()
