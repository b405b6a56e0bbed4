"""Payloads and results that are too long for a row: users see no difference, and nothing is lost or left behind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from pathlib import Path

import asyncpg
import pytest
from tests.conftest import NewEngine
from tests.kit.s3 import open_s3
from tests.kit.work import FATAL, job, only_direct, soon, worker

from windlass import Claimed, Conflict, Engine, Invalid, LeaseLost, State, Submission, Unavailable
from windlass.blobs.object_store import open_store
from windlass.core.command import Complete
from windlass.core.payload_reference import is_reference
from windlass.core.progress import ProgressReport
from windlass.core.schedule import ScheduleSpec
from windlass.core.step import Place
from windlass.core.step_command import StepChild, StepResult
from windlass.core.validation import LARGE_MAX_BYTES, PAYLOAD_MAX_BYTES
from windlass.doctor import examine
from windlass.engine.payloads.blob_port import Blob, Blobs, Found
from windlass.engine.payloads.objects import MARKER, RETRY_S, UNCOMMITTED_S, examine_objects
from windlass.engine.read.doctor import Finding, Level
from windlass.errors import TooLarge
from windlass.testing.clock import VirtualClock

BIG = json.dumps({"text": "é" * PAYLOAD_MAX_BYTES}, ensure_ascii=False).encode()
OTHER = json.dumps({"text": "o" * PAYLOAD_MAX_BYTES}).encode()
DAY = 86400.0
pytestmark = [pytest.mark.slow, only_direct]


class Gate:
    """A blob store that does what a test wants it to do."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs, self.url = blobs, blobs.url
        self.away = False
        self.before_put: Callable[[], None] = lambda: None
        self.puts: list[str] = []

    def _check(self) -> None:
        if self.away:
            raise Unavailable("the store is away")

    async def put(self, key: str, content: bytes | AsyncIterable[bytes], *, new: bool = False) -> int:
        self._check()
        self.before_put()
        self.puts.append(key)
        return await self._blobs.put(key, content, new=new)

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> Blob:
        self._check()
        return await self._blobs.get(key, start=start, end=end)

    async def size(self, key: str) -> int | None:
        self._check()
        return await self._blobs.size(key)

    async def sizes(self, keys: Sequence[str]) -> Sequence[int | None]:
        return [await self.size(key) for key in keys]

    async def delete(self, keys: Sequence[str]) -> None:
        self._check()
        await self._blobs.delete(keys)

    async def clear(self, path: str) -> None:
        self._check()
        await self._blobs.clear(path)

    async def leftovers(self) -> str | None:
        return "nobody lists them"

    async def list(self, prefix: str) -> AsyncIterator[Found]:
        self._check()
        async for found in self._blobs.list(prefix):
            yield found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "blobs"


@pytest.fixture
def gate(folder: Path) -> Gate:
    return Gate(open_store(str(folder)))


@pytest.fixture
async def engine(new_engine: NewEngine, gate: Gate) -> Engine:
    made: Engine = await new_engine(blobs=lambda: gate)
    return made


def objects(folder: Path) -> list[Path]:
    """All files but the store's own."""
    return [file for file in folder.rglob("*") if file.is_file() and file.name != MARKER]


async def effects(other_connection: asyncpg.Connection) -> int:
    return int(await other_connection.fetchval("select count(*) from windlass.outbox where kind = 'delete_object'"))


async def tidy(engine: Engine) -> None:
    """What retention and the outbox have to do now."""
    while await engine.loops.retention_tick():
        pass
    while await engine.loops.effects_tick():
        pass


async def begin_big(engine: Engine, payload: bytes = BIG, **fields: object) -> Claimed:
    await engine.submit(job(payload=payload, **fields))
    [claimed] = await engine.claim(await worker(engine))
    return claimed


# --------------------------------------------------------------------------------------------- no difference


async def test_a_large_payload_and_a_large_result_are_seen_as_any_other(
    engine: Engine, folder: Path, other_connection: asyncpg.Connection
) -> None:
    claimed = await begin_big(engine)
    assert claimed.payload == BIG
    await engine.complete(claimed, OTHER)

    seen = await engine.wait(claimed.task.id, 0)
    assert (seen.task.state, seen.task.result) == (State.SUCCEEDED, OTHER)
    assert await engine.results([claimed.task.id]) == {claimed.task.id: OTHER}
    whole = await engine.parts.objects.whole(await engine.tasks.get(claimed.task.id))
    assert (whole.payload, whole.task.result) == (BIG, OTHER)
    assert len(objects(folder)) == 2
    assert await other_connection.fetchval("select max(octet_length(payload)) from windlass.task") < 1000
    assert await effects(other_connection) == 0


async def test_what_fits_into_a_row_is_kept_there(engine: Engine, folder: Path, gate: Gate) -> None:
    exactly = b'"' + b"x" * (PAYLOAD_MAX_BYTES - 2) + b'"'
    claimed = await begin_big(engine, exactly)
    await engine.report([Complete(claimed.task.id, 1, claimed.task.lease_id, exactly)])

    assert claimed.payload == exactly
    assert (await engine.wait(claimed.task.id, 0)).task.result == exactly
    assert gate.puts == []
    assert objects(folder) == []


async def test_many_are_submitted_all_or_none(
    engine: Engine, folder: Path, other_connection: asyncpg.Connection
) -> None:
    ids = await engine.submit_many([job(1), job(payload=BIG), job(payload=OTHER, idempotency_key="k")])
    claimed = await engine.claim(await worker(engine), 10)
    assert {c.task.id: c.payload for c in claimed} == dict(zip(ids, [b"1", BIG, OTHER], strict=True))

    with pytest.raises(Conflict):
        await engine.submit_many([job(payload=BIG), job(payload=BIG, idempotency_key="k")])
    await tidy(engine)
    assert await other_connection.fetchval("select count(*) from windlass.task") == 3
    assert len(objects(folder)) == 2


async def test_reports_of_large_and_small_results_are_answered_in_their_order(engine: Engine) -> None:
    await engine.submit_many([job(number) for number in range(4)])
    claimed = await engine.claim(await worker(engine), 4)
    texts = [b"1", BIG, b"3", BIG[:-1]]

    answers = await engine.report(
        [Complete(c.task.id, 1, c.task.lease_id, text) for c, text in zip(claimed, texts, strict=True)]
    )

    assert answers[:3] == [State.SUCCEEDED] * 3
    assert "JSON" in str(answers[3])
    assert await engine.results([c.task.id for c in claimed]) == {
        c.task.id: text for c, text in zip(claimed[:3], texts[:3], strict=True)
    }


async def test_large_results_of_steps_and_children_are_recorded(
    engine: Engine, folder: Path, clock: VirtualClock
) -> None:
    parent = await begin_big(engine, b"1", kind="parent")
    held = (parent.task.id, parent.task.attempt, parent.task.lease_id)
    step = await engine.record_step(StepResult(*held, Place(0, "load"), BIG))
    assert step.result == BIG
    child_id = await engine.submit(job(payload=b"2", parent_id=parent.task.id))
    [child] = await engine.claim(await worker(engine))
    await engine.complete(child, OTHER)
    step = await engine.record_step(StepChild(*held, Place(1, "task:child"), child_id=child_id))
    assert step.result == OTHER
    assert (await engine.record_step(StepResult(*held, Place(0, "load"), OTHER))).result == BIG  # it stands

    assert [step.result for step in await engine.load_steps(parent.task.id)] == [BIG, OTHER]
    await tidy(engine)
    assert len(objects(folder)) == 2


async def test_a_fork_has_its_own_objects(engine: Engine, folder: Path, clock: VirtualClock) -> None:
    first = await begin_big(engine)
    held = (first.task.id, first.task.attempt, first.task.lease_id)
    await engine.record_step(StepResult(*held, Place(0, "load"), OTHER))
    await engine.record_step(StepResult(*held, Place(1, "pack"), b"1"))
    await engine.complete(first)
    await clock.advance(6 * DAY)
    fork = await engine.fork(first.task.id, "pack")
    await clock.advance(2 * DAY)
    await tidy(engine)

    [claimed] = await engine.claim(await worker(engine))
    assert (claimed.task.id, claimed.payload) == (fork, BIG)
    steps = {step.name: step.result for step in await engine.load_steps(fork)}
    assert steps["load"] == OTHER
    assert {file.parent.name for file in objects(folder)} == {str(fork)}


async def test_what_is_done_again_has_its_own_objects(engine: Engine, folder: Path, clock: VirtualClock) -> None:
    claimed = await begin_big(engine)
    await engine.fail(claimed, FATAL)

    again = await engine.parts.repair.retry(claimed.task.id)
    assert (await engine.parts.repair.replay()).task_ids == [again]  # asked twice is asked once
    [second] = await engine.claim(await worker(engine))
    assert (second.task.id, second.payload) == (again, BIG)
    await tidy(engine)
    assert sorted(file.parent.name for file in objects(folder)) == sorted([str(claimed.task.id), str(again)])


# --------------------------------------------------------------------------------------------- repeats and conflicts


async def test_the_same_key_is_the_same_task_and_other_content_a_conflict(engine: Engine, folder: Path) -> None:
    first = await engine.submit(job(payload=BIG, idempotency_key="k"))

    assert await engine.submit(job(payload=BIG, idempotency_key="k")) == first
    for other in (OTHER, b"1"):
        with pytest.raises(Conflict):
            await engine.submit(job(payload=other, idempotency_key="k"))
    await tidy(engine)
    assert [file.parent.name for file in objects(folder)] == [str(first)]
    [claimed] = await engine.claim(await worker(engine))
    assert claimed.payload == BIG


async def test_the_same_id_again_is_a_repeat_and_never_replaces_what_is_there(engine: Engine, folder: Path) -> None:
    task_id = engine.parts.randomness.new_id()
    await asyncio.gather(*(engine.submit(job(payload=BIG, id=task_id)) for _ in range(3)))

    with pytest.raises(Conflict):
        await engine.submit(job(payload=OTHER, id=task_id))
    await tidy(engine)
    [claimed] = await engine.claim(await worker(engine))
    assert claimed.payload == BIG
    assert len(objects(folder)) == 1


async def test_the_same_report_again_is_answered_the_same_and_another_is_a_conflict(
    engine: Engine, folder: Path
) -> None:
    claimed = await begin_big(engine, b"1")
    report = Complete(claimed.task.id, 1, claimed.task.lease_id, BIG)

    assert await engine.report([report]) == [State.SUCCEEDED]
    assert await engine.report([report]) == [State.SUCCEEDED]
    [conflict] = await engine.report([Complete(claimed.task.id, 1, claimed.task.lease_id, OTHER)])
    assert isinstance(conflict, Conflict)
    await tidy(engine)
    assert len(objects(folder)) == 1
    assert (await engine.wait(claimed.task.id, 0)).task.result == BIG


async def test_a_superseded_attempt_leaves_nothing(engine: Engine, folder: Path, clock: VirtualClock) -> None:
    first = await begin_big(engine, b"1")
    await clock.advance(31)
    await engine.loops.expire_tick()
    await clock.advance(60)
    [second] = await engine.claim(await worker(engine))

    with pytest.raises(LeaseLost):
        await engine.complete(first, BIG)
    await engine.complete(second, OTHER)
    await tidy(engine)
    assert (await engine.wait(first.task.id, 0)).task.result == OTHER
    assert len(objects(folder)) == 1


# --------------------------------------------------------------------------------------------- nothing is left behind


async def test_retention_deletes_the_objects_of_what_it_forgets(
    engine: Engine, folder: Path, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    parent = await begin_big(engine)
    held = (parent.task.id, parent.task.attempt, parent.task.lease_id)
    await engine.record_step(StepResult(*held, Place(0, "one"), OTHER))
    await engine.record_step(StepResult(*held, Place(1, "two"), OTHER))  # the same content is one object
    child_id = await engine.submit(job(payload=BIG, parent_id=parent.task.id))
    [child] = await engine.claim(await worker(engine))
    await engine.complete(child, OTHER)
    await engine.record_step(StepChild(*held, Place(2, "task:child"), child_id=child_id))
    kept = await engine.submit(job(payload=BIG))
    assert len(objects(folder)) == 5
    await clock.advance(8 * DAY)
    await tidy(engine)
    assert len(objects(folder)) == 5  # the parent has not ended
    await engine.workflows.load(parent.task.id)
    await engine.complete(parent, BIG)
    await tidy(engine)
    assert [step.result for step in await engine.load_steps(parent.task.id)] == [OTHER, OTHER, OTHER]
    await clock.advance(8 * DAY)
    await tidy(engine)
    await tidy(engine)

    assert [file.parent.name for file in objects(folder)] == [str(kept)]
    assert await effects(other_connection) == 0


@pytest.mark.parametrize("died", ["before the upload", "after the upload"])
async def test_an_upload_that_nobody_committed_is_swept(
    died: str, engine: Engine, gate: Gate, folder: Path, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    class Killed(BaseException):
        pass

    def kill() -> None:
        raise Killed

    if died == "before the upload":
        await engine.parts.objects.blobs()
        gate.before_put = kill
        with pytest.raises(Killed):
            await engine.submit(job(payload=BIG))
    else:
        await engine.parts.objects.stow("payload", BIG, engine.parts.randomness.new_id(), "payload", "default")
        assert len(objects(folder)) == 1
    await clock.advance(UNCOMMITTED_S - 1)
    await tidy(engine)
    assert await effects(other_connection) == 1
    await clock.advance(2)
    await tidy(engine)

    assert objects(folder) == []
    assert await effects(other_connection) == 0


async def test_who_died_after_the_commit_loses_nothing(
    engine: Engine,
    folder: Path,
    clock: VirtualClock,
    other_connection: asyncpg.Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def died(*_: object) -> None:
        return

    monkeypatch.setattr(engine.parts.objects, "settle", died)
    await engine.submit(job(payload=BIG))
    await clock.advance(UNCOMMITTED_S + 1)
    await tidy(engine)

    assert await effects(other_connection) == 0
    [claimed] = await engine.claim(await worker(engine))
    assert claimed.payload == BIG


async def test_a_commit_that_comes_after_the_sweep_writes_the_object_again(
    engine: Engine, gate: Gate, folder: Path, clock: VirtualClock
) -> None:
    task_id = engine.parts.randomness.new_id()
    text = await engine.parts.objects.stow("payload", BIG, task_id, "payload", "default")
    await clock.advance(UNCOMMITTED_S + 1)
    await tidy(engine)
    assert objects(folder) == []

    await engine.submit(Submission(kind="job", payload=b"1", id=task_id))
    async with engine.store.begin() as tx:
        await tx.session.execute(f"update windlass.task set payload = '\\x{text.hex()}' where id = '{task_id}'")
    await engine.parts.objects.settle(text, BIG, task_id)

    [claimed] = await engine.claim(await worker(engine))
    assert claimed.payload == BIG


async def test_a_store_that_is_away_for_long_does_not_keep_what_should_go(
    engine: Engine, gate: Gate, folder: Path, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    await engine.complete(await begin_big(engine), b"1")
    await clock.advance(8 * DAY)
    gate.away = True
    await tidy(engine)
    for _ in range(100):
        await clock.advance(RETRY_S * 10)
        await engine.loops.effects_tick()
    assert len(objects(folder)) == 1
    gate.away = False
    await clock.advance(RETRY_S * 10)
    await tidy(engine)

    assert objects(folder) == []
    assert await effects(other_connection) == 0


# --------------------------------------------------------------------------------------------- what goes wrong


async def test_while_the_store_is_away_nothing_large_is_accepted_and_all_else_goes_on(
    engine: Engine, gate: Gate, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    large = await engine.submit(job(payload=BIG))
    running = await begin_small(engine)
    gate.away = True

    with pytest.raises(Unavailable):
        await engine.submit(job(payload=OTHER))
    [answer] = await engine.report([Complete(running.task.id, 1, running.task.lease_id, BIG)])
    assert isinstance(answer, Unavailable)
    await engine.submit(job(2, priority=1))
    [small] = await engine.claim(await worker(engine), 10)
    assert small.payload == b"2"
    view = await engine.tasks.get(large)
    assert view.task.state is State.QUEUED
    assert view.task.error is not None
    assert view.task.error.reason == "PAYLOAD_UNREADABLE"
    gate.away = False
    await clock.advance(60)
    assert await engine.report([Complete(running.task.id, 1, running.task.lease_id, BIG)]) == [State.SUCCEEDED]
    [claimed] = await engine.claim(await worker(engine), 10)
    assert (claimed.task.id, claimed.payload) == (large, BIG)


async def begin_small(engine: Engine) -> Claimed:
    await engine.submit(job(1, queue="small"))
    [claimed] = await engine.claim(await worker(engine, "small", ttl_s=3600.0))
    return claimed


async def test_a_payload_that_somebody_removed_fails_its_task_for_good(engine: Engine, folder: Path) -> None:
    task_id = await engine.submit(job(payload=BIG))
    for file in objects(folder):
        file.unlink()

    assert await engine.claim(await worker(engine)) == []
    task = (await engine.tasks.get(task_id)).task
    assert task.state is State.FAILED
    assert "payload" in task.error.message  # type: ignore[union-attr]


async def test_a_payload_that_somebody_changed_is_not_believed(engine: Engine, folder: Path) -> None:
    task_id = await engine.submit(job(payload=BIG))
    for file in objects(folder):
        file.write_bytes(BIG.replace(b"text", b"lies"))

    assert await engine.claim(await worker(engine)) == []
    assert (await engine.tasks.get(task_id)).task.error.reason == "PAYLOAD_UNREADABLE"  # type: ignore[union-attr]


async def test_whoever_goes_while_a_payload_is_fetched_gives_its_task_back(
    engine: Engine, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    task_id = await engine.submit(job(payload=BIG))
    fetching, real = asyncio.Event(), gate.get

    async def slow(key: str, *, start: int = 0, end: int | None = None) -> Blob:
        fetching.set()
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(gate, "get", slow)
    claiming = asyncio.create_task(engine.claim(await worker(engine)))
    await soon(fetching.wait())
    claiming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await claiming
    await engine.parts.claimer.close()
    monkeypatch.setattr(gate, "get", real)

    [claimed] = await engine.claim(await worker(engine))
    assert (claimed.task.id, claimed.task.losses, claimed.payload) == (task_id, 0, BIG)


async def test_the_limit_is_a_setting_and_is_told(new_engine: NewEngine, gate: Gate) -> None:
    engine = await new_engine(blobs=lambda: gate, payload_max_bytes=PAYLOAD_MAX_BYTES)

    for payload in (BIG, b'"' + b"x" * LARGE_MAX_BYTES + b'"'):
        with pytest.raises(TooLarge) as caught:
            await engine.submit(job(payload=payload))
        assert caught.value.field == "payload"
    assert gate.puts == []


async def test_what_is_never_kept_as_an_object_says_how_long_it_may_be(
    engine: Engine, gate: Gate, other_connection: asyncpg.Connection
) -> None:
    task_id = await engine.submit(job())
    [claimed] = await engine.claim(await worker(engine))
    assert claimed.task.lease_id is not None
    limit = f"has {len(BIG)} bytes, the limit is {PAYLOAD_MAX_BYTES}"

    with pytest.raises(TooLarge, match=f"payload: {limit}"):
        await engine.signal(task_id, "go", BIG)
    with pytest.raises(TooLarge, match=f"payload: {limit}"):
        await engine.schedules.create(ScheduleSpec(kind="job", cron="* * * * *", payload=BIG))
    with pytest.raises(TooLarge, match="checkpoint: has 300002 bytes, the limit is 262144"):
        await engine.note([ProgressReport(task_id, 1, claimed.task.lease_id, checkpoint=b'"' + b"x" * 300_000 + b'"')])
    with pytest.raises(asyncpg.PostgresError, match="payload must be JSON of at most 2097152 bytes"):
        await other_connection.execute("select windlass.submit('job', $1::jsonb)", BIG.decode())
    assert gate.puts == []


async def test_an_engine_without_a_store_takes_what_fits_into_a_row(new_engine: NewEngine) -> None:
    engine = await new_engine()

    with pytest.raises(TooLarge, match=str(PAYLOAD_MAX_BYTES)):
        await engine.submit(job(payload=BIG))


async def test_nobody_can_submit_a_reference(engine: Engine) -> None:
    await engine.submit(job(payload=BIG))
    view = (await engine.tasks.page()).tasks[0]
    assert is_reference(view.payload)

    with pytest.raises(Invalid, match="JSON"):
        await engine.submit(job(payload=view.payload))


async def test_a_bucket_whose_server_is_killed_and_comes_back_loses_nothing(
    new_engine: NewEngine, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    with open_s3() as s3:
        engine = await new_engine(blobs=lambda: open_store(s3.url("objects")))
        kept = await engine.submit(job(payload=BIG))
        running = await begin_small(engine)
        s3.stop()
        with pytest.raises(Unavailable, match="s3://windlass/objects"):
            await engine.submit(job(payload=OTHER))
        [answer] = await engine.report([Complete(running.task.id, 1, running.task.lease_id, OTHER)])
        assert isinstance(answer, Unavailable)
        assert await engine.claim(await worker(engine), 10) == []
        await clock.advance(60)
        s3.start()
        assert await engine.report([Complete(running.task.id, 1, running.task.lease_id, OTHER)]) == [State.SUCCEEDED]
        [claimed] = await engine.claim(await worker(engine), 10)
        assert claimed.task.id == kept
        assert claimed.payload == BIG
        await engine.complete(claimed, OTHER)
        await clock.advance(UNCOMMITTED_S)
        await tidy(engine)
        assert len(s3.files()) == 4  # the payload, two results, the marker
        await clock.advance(8 * DAY)
        await tidy(engine)
        assert s3.files() == [f"objects/{MARKER}"]
        assert await effects(other_connection) == 0


# --------------------------------------------------------------------------------------------- one store for all


async def test_a_process_with_another_store_is_told_where_objects_are(
    engine: Engine, new_engine: NewEngine, tmp_path: Path, folder: Path
) -> None:
    await engine.submit(job(payload=BIG))
    elsewhere = tmp_path / "elsewhere"
    stranger = await new_engine(blobs=lambda: open_store(str(elsewhere)))

    with pytest.raises(TooLarge, match=f"kept in file://{folder}.*given file://{elsewhere}.*WINDLASS_BLOBS"):
        await stranger.submit(job(payload=OTHER))
    assert objects(elsewhere) == []
    assert await stranger.claim(await worker(stranger)) == []
    await stranger.submit(job(1))  # what is small goes on


async def test_the_doctor_knows_whether_the_store_is_the_right_one(
    engine: Engine, gateway: str, tmp_path: Path, folder: Path
) -> None:
    async def said(url: str) -> Finding:
        found = await examine(gateway, local_s=0.0, blobs=url)
        return next(finding for finding in found if finding.name == "blobs")

    elsewhere = str(tmp_path / "elsewhere")
    assert (await said(elsewhere)).message == f"no objects are kept yet; they would be in file://{elsewhere}"
    await engine.submit(job(payload=BIG))
    assert await said(str(folder)) == Finding("blobs", Level.OK, f"objects are kept in file://{folder}")
    wrong = await said(elsewhere)
    assert (wrong.name, wrong.level) == ("blobs", Level.WRONG)
    assert "WINDLASS_BLOBS" in wrong.advice


async def test_the_doctor_says_where_parts_of_uploads_stay(engine: Engine, gate: Gate) -> None:
    await engine.submit(job(payload=BIG))
    found = await examine_objects(engine.store, lambda: gate, gate.url)

    assert (found.name, found.level) == ("blobs", Level.NOTE)
    assert found.message.endswith("parts of uploads that break off are not found there: nobody lists them")
    assert "aborts incomplete multipart uploads" in found.advice


async def test_a_store_that_was_moved_is_known_again(
    engine: Engine, new_engine: NewEngine, tmp_path: Path, folder: Path, other_connection: asyncpg.Connection
) -> None:
    await engine.submit(job(payload=BIG))
    moved = tmp_path / "moved"
    folder.rename(moved)  # noqa: ASYNC240
    other = await new_engine(blobs=lambda: open_store(str(moved)))

    [claimed] = await other.claim(await worker(other))
    assert claimed.payload == BIG
    assert await other_connection.fetchval("select url from windlass.blob_store") == f"file://{moved}"


async def test_many_who_begin_at_once_choose_one_store(new_engine: NewEngine, folder: Path) -> None:
    engines = [await new_engine(blobs=lambda: open_store(str(folder))) for _ in range(5)]

    ids = await asyncio.gather(*(engine.submit(job(payload=BIG)) for engine in engines))

    assert len(set(ids)) == 5
    assert len(objects(folder)) == 5


async def test_a_stranger_leaves_deletions_to_those_who_can(
    engine: Engine,
    new_engine: NewEngine,
    tmp_path: Path,
    folder: Path,
    clock: VirtualClock,
    other_connection: asyncpg.Connection,
) -> None:
    await engine.complete(await begin_big(engine), b"1")
    stranger = await new_engine(blobs=lambda: open_store(str(tmp_path / "elsewhere")))
    await clock.advance(8 * DAY)
    await tidy(stranger)
    assert len(objects(folder)) == 1
    await clock.advance(RETRY_S + 1)
    await tidy(engine)

    assert objects(folder) == []
    assert await effects(other_connection) == 0
