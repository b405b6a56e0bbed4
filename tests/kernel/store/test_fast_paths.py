"""Statements that repeat a rule for speed (`store/fast_paths.sql`): each writes what its rule decides."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

import asyncpg
import pytest
from msgspec.structs import replace
from tests.kit.work import CRASH, begin, job, poll, soon, task, worker

from windlass import Engine, Policy, State
from windlass.core import task as rules
from windlass.core.command import Complete
from windlass.core.delivery import PULL, RetryForm
from windlass.core.fairness import BEGINNING, Lane
from windlass.core.queue import QueueConfig
from windlass.core.submission import Submission
from windlass.store.pool import Session
from windlass.store.store import Store
from windlass.testing.clock import VirtualClock

LATER = datetime(2100, 1, 1, tzinfo=UTC)
HELD_HERE = {"insert_plain_task", "insert_plain_tasks", "insert_started_tasks", "start_due", "complete_at_once"}


def test_every_fast_path_is_held_against_its_rule_here() -> None:
    text = (files("windlass.store") / "fast_paths.sql").read_text(encoding="utf-8")
    assert set(re.findall(r"^-- name: (\w+)$", text, re.MULTILINE)) == HELD_HERE, "add a test for the new one"


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the statements that are run."""
    names: list[str] = []
    fetch = Session.fetch

    async def noted(self: Session, query: str, *args: object) -> Any:
        names.append(query)
        return await fetch(self, query, *args)

    monkeypatch.setattr(Session, "fetch", noted)
    return names


# ------------------------------------------------------------------------------------------------- submit


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("retry", [None, RetryForm(max_attempts=2)])
async def test_plain_tasks_are_written_as_any_other(
    engine: Engine, store: Store, other_connection: asyncpg.Connection, count: int, retry: RetryForm | None
) -> None:
    """insert_plain_task and insert_plain_tasks write the rows that insert_tasks would."""
    if retry is not None:
        await engine.queues.put("mail", delivery=PULL, limits=QueueConfig(), retry=retry)
    plain, other = (
        [
            Submission(kind="send", payload=b"%d" % i, queue="mail", id=engine.parts.randomness.new_id())
            for i in range(count)
        ]
        for _ in range(2)
    )
    async with store.begin() as tx:
        await tx.add_plain(plain)
        await tx.add(other)
    rows = await other_connection.fetch("select to_jsonb(t) - 'id' as row, t.id, t.payload from windlass.task t")
    written = {row["id"]: (row["row"], row["payload"]) for row in rows}
    assert [written[s.id] for s in plain] == [written[s.id] for s in other]


@pytest.mark.parametrize("count", [1, 3])
async def test_a_hand_off_writes_what_the_rule_says(
    engine: Engine, clock: VirtualClock, statements: list[str], count: int
) -> None:
    """Tasks that are begun in the statement that adds them are as if they had been queued and claimed."""
    lease = await worker(engine)
    async with poll(engine, lease, limit=count) as waits:
        now = await clock.advance(1)
        ids = await engine.submit_batch(job(), [b"1"] * count)
        claimed = await soon(waits)
    assert "insert_started_tasks" in statements
    first = claimed[0].task
    for id_ in ids:
        before = rules.Task(id_, first.namespace, first.queue, first.kind, State.QUEUED, now)
        assert await task(engine, id_) == rules.claim(before, lease.id, lease.worker, now).after
    assert {one.task.id: one.task for one in claimed} == {id_: await task(engine, id_) for id_ in ids}


# ------------------------------------------------------------------------------------------------- claim


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"policy": Policy(timeout_s=90.5)},
        {"policy": Policy(max_attempts=2)},
        {"deadline_at": LATER},
        {"deadline_at": LATER, "policy": Policy(timeout_s=30.0)},
        {"deadline_at": LATER, "policy": Policy(timeout_s=1e9)},
        {"priority": 7, "concurrency_key": "a key"},
    ],
)
@pytest.mark.parametrize("again", [False, True])
async def test_a_claim_at_once_writes_what_the_rule_says(
    engine: Engine, clock: VirtualClock, statements: list[str], fields: dict[str, Any], again: bool
) -> None:
    """One lane of a queue that nobody configured is claimed by one statement, which the rule must agree with."""
    task_id, lease = await engine.submit(job(**fields)), await worker(engine)
    if again:
        [claimed] = await engine.claim(lease)
        await engine.fail(claimed, replace(CRASH, retry_after_s=0.0))
    before = await task(engine, task_id)
    now = await clock.advance(1)
    statements.clear()
    [claimed] = await engine.claim(lease)
    assert statements == ["start_due"]
    assert claimed.task == rules.claim(before, lease.id, lease.worker, now).after
    assert claimed.task == await task(engine, task_id)


@pytest.mark.parametrize(("limits", "at_once"), [({}, 1), ({"max_running": 5}, 0), ({"paused": True}, 0)])
async def test_only_a_queue_that_somebody_limited_is_not_claimed_at_once(
    engine: Engine, store: Store, limits: dict[str, Any], at_once: int
) -> None:
    await engine.configure_queue("default", **limits)
    await engine.submit(job())
    lease = await worker(engine)
    for lane in (None, Lane(0, "")):
        async with store.begin() as tx:
            view, started = await tx.queues.start_due(
                lease, "default", 10, engine.parts.randomness.new_id(), lane, BEGINNING
            )
            await tx.session.execute("rollback and chain")
        assert (view.limited, len(started)) == (not at_once, at_once)


async def test_only_a_queue_with_one_lane_is_claimed_at_once(engine: Engine, store: Store) -> None:
    await engine.submit_many([job(concurrency_key="a"), job(concurrency_key="b"), job(priority=1)])
    lease = await worker(engine)
    async with store.begin() as tx:
        view, started = await tx.queues.start_due(
            lease, "default", 10, engine.parts.randomness.new_id(), None, BEGINNING
        )
    assert (view.lanes, started) == ([Lane(0, "a"), Lane(0, "b")], [])
    assert len(await engine.claim(lease, 10)) == 3


# ------------------------------------------------------------------------------------------------- complete


@pytest.mark.parametrize("result", [None, b'"x"'])
@pytest.mark.parametrize("fields", [{}, {"policy": Policy(timeout_s=90.0)}, {"concurrency_key": "a", "priority": 3}])
@pytest.mark.parametrize("earlier", ["", "cancel", "fail"])
async def test_a_completion_at_once_writes_what_the_rule_says(
    engine: Engine,
    clock: VirtualClock,
    statements: list[str],
    fields: dict[str, Any],
    earlier: str,
    result: bytes | None,
) -> None:
    """Where there is nothing to weigh one statement ends an attempt, which the rule must agree with."""
    lease = await worker(engine, ttl_s=3600)
    claimed = await begin(engine, lease, **fields)
    if earlier == "fail":
        await engine.fail(claimed, replace(CRASH, retry_after_s=0.0))
        [claimed] = await engine.claim(lease)
    if earlier == "cancel":
        await engine.cancel(claimed.task.id)
        await engine.extend_lease(lease)
    before = await task(engine, claimed.task.id)
    now = await clock.advance(1)
    statements.clear()
    assert await engine.report([Complete(claimed.task.id, claimed.task.attempt, lease.id, result)]) == [State.SUCCEEDED]
    assert statements == ["complete_at_once"]
    after = rules.complete(before, claimed.task.attempt, lease.id, result, now).after
    assert await task(engine, claimed.task.id) == after
