"""Steps over the wire: memoised, tried again by the engine, one at a time, with the history of every try."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import grpc
import pytest
from tests.contracts.registry.client import Client, Refused
from tests.contracts.registry.test_work import BOOM, FINAL, polled

from windlass import Engine
from windlass.contracts.registry.wire import kagzi_pb2 as pb
from windlass.core.access import Role
from windlass.store.pool import Session
from windlass.testing.clock import VirtualClock

pytestmark = pytest.mark.slow


@pytest.fixture
async def worker_id(still_client: Client) -> str:
    return await still_client.register()


@pytest.fixture
async def run_id(still_client: Client, worker_id: str) -> str:
    return await polled(still_client, worker_id)


async def begun(client: Client, run_id: str, step_id: str, **fields: Any) -> bool:
    return bool((await client.BeginStep(run_id=run_id, step_id=step_id, **fields)).should_execute)


async def attempts(client: Client, run_id: str, **fields: Any) -> list[Any]:
    return list((await client.ListStepAttempts(workflow_run_id=run_id, **fields)).step_attempts)


def status(attempt: Any) -> str:
    return str(pb.StepAttemptStatus.Name(attempt.status)).removeprefix("STEP_ATTEMPT_STATUS_")


async def again(client: Client, engine: Engine, clock: VirtualClock, worker_id: str, run_id: str) -> None:
    """The retry has come, and the worker polls the run once more."""
    await client.WorkerHeartbeat(worker_id=worker_id)
    await clock.advance(5)
    await engine.loops.timer_tick()
    assert (await client.poll(worker_id)).run_id == run_id


async def test_a_step_that_is_done_is_not_done_again(still_client: Client, run_id: str) -> None:
    assert await begun(still_client, run_id, "charge", input=b'{"cents": 5}')
    for _ in range(2):
        await still_client.CompleteStep(run_id=run_id, step_id="charge", output=b'{"ok": true}')

    answer = await still_client.BeginStep(run_id=run_id, step_id="charge")

    assert (answer.should_execute, json.loads(answer.cached_result)) == (False, {"ok": True})
    with Refused("FAILED_PRECONDITION", "PRECONDITION_FAILED"):
        await still_client.CompleteStep(run_id=run_id, step_id="charge", output=b'{"ok": false}')
    with Refused("FAILED_PRECONDITION", "PRECONDITION_FAILED"):
        await still_client.FailStep(run_id=run_id, step_id="charge", error=BOOM)
    [attempt] = await attempts(still_client, run_id)
    assert (attempt.step_id, attempt.kind, status(attempt)) == ("charge", pb.STEP_KIND_FUNCTION, "COMPLETED")
    assert (attempt.config, json.loads(attempt.output)) == (b'{"cents": 5}', {"ok": True})
    assert attempt.HasField("started_at")
    assert attempt.HasField("finished_at")
    assert (attempt.workflow_run_id, attempt.namespace_id) == (run_id, "default")


async def test_a_call_about_a_step_reads_the_row_of_its_run_once(
    still_client: Client, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under its lock: whether the caller may see the run is decided there, and what was submitted is remembered."""
    assert await begun(still_client, run_id, "first")
    statements: list[str] = []
    fetch = Session.fetch

    async def noted(self: Session, query: str, *args: object) -> Any:
        statements.append(query)
        return await fetch(self, query, *args)

    monkeypatch.setattr(Session, "fetch", noted)
    await still_client.CompleteStep(run_id=run_id, step_id="first", output=b"1")
    assert await begun(still_client, run_id, "second")
    await still_client.FailStep(run_id=run_id, step_id="second", error=BOOM)
    assert (statements.count("load_tasks"), statements.count("get_task")) == (3, 0), statements


async def test_a_run_whose_options_are_remembered_is_not_there_for_another_namespace(
    still_client: Client, run_id: str, engine: Engine, still: str, connect: Any
) -> None:
    assert await begun(still_client, run_id, "first")
    _, key = await engine.keys.create_key(name="shop", role=Role.SUBMITTER, namespace="shop")
    shop = connect(still, key=key)
    for method, fields in (
        ("BeginStep", {"step_id": "second"}), ("CompleteStep", {"step_id": "first", "output": b"1"}),
        ("FailStep", {"step_id": "first", "error": BOOM}), ("FailWorkflow", {"error": BOOM}),
    ):  # fmt: skip
        with Refused("NOT_FOUND", "NOT_FOUND"):
            await getattr(shop, method)(run_id=run_id, **fields)
    assert [status(one) for one in await attempts(still_client, run_id)] == ["RUNNING"]


async def test_a_step_may_be_completed_without_a_beginning(still_client: Client, run_id: str) -> None:
    await still_client.CompleteStep(run_id=run_id, step_id="a", output=b"null")

    answer = await still_client.BeginStep(run_id=run_id, step_id="a")

    assert (answer.should_execute, answer.cached_result) == (False, b"null")
    assert [status(attempt) for attempt in await attempts(still_client, run_id)] == ["COMPLETED"]


async def test_a_second_beginning_is_refused_while_the_first_is_under_way(still_client: Client, run_id: str) -> None:
    assert await begun(still_client, run_id, "a")

    with Refused("ABORTED", "CONFLICT") as refused:
        await still_client.BeginStep(run_id=run_id, step_id="a")

    assert not refused.detail.non_retryable
    assert len(await attempts(still_client, run_id)) == 1


async def test_of_a_crowd_that_begins_a_step_one_executes_it(client: Client) -> None:
    run_id = await polled(client, await client.register())

    async def begin() -> bool:
        try:
            return await begun(client, run_id, "a")
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.ABORTED:
                raise
            return False

    assert sum(await asyncio.gather(*(begin() for _ in range(20)))) == 1


async def test_who_names_its_attempt_may_ask_again_whether_it_has_begun(still_client: Client, worker_id: str) -> None:
    """The answer to its first call was lost."""
    run_id = await still_client.start()
    polling = still_client.PollActivity(worker_id=worker_id, task_queue="q", supported_workflow_types=["greet"])
    await polling
    token = ("x-windlass-lease-token", dict(await polling.trailing_metadata())["x-windlass-lease-token"])

    for _ in range(2):
        assert await begun(still_client, run_id, "a", metadata=(token,))

    assert len(await attempts(still_client, run_id)) == 1


async def test_a_step_whose_worker_died_begins_again_with_the_next(
    still_client: Client, engine: Engine, clock: VirtualClock, worker_id: str, run_id: str
) -> None:
    await begun(still_client, run_id, "done")
    await still_client.CompleteStep(run_id=run_id, step_id="done", output=b"1")
    await begun(still_client, run_id, "open")
    await clock.advance(31)
    await engine.loops.expire_tick()
    await clock.advance(5)
    other = await still_client.register()
    assert (await still_client.poll(other)).run_id == run_id

    assert not await begun(still_client, run_id, "done")
    assert await begun(still_client, run_id, "open")

    assert [(one.step_id, status(one)) for one in await attempts(still_client, run_id)] == [
        ("done", "COMPLETED"), ("open", "RUNNING"), ("open", "RUNNING"),
    ]  # fmt: skip


async def test_the_engine_carries_out_the_retries_of_a_step(
    still_client: Client, engine: Engine, clock: VirtualClock, worker_id: str, run_id: str
) -> None:
    policy = pb.RetryPolicy(maximum_attempts=3, initial_interval_ms=2000, backoff_coefficient=1.0)
    for n in (1, 2, 3):
        assert await begun(still_client, run_id, "a", retry_policy=policy)
        for _ in range(2):  # said twice
            await still_client.FailStep(run_id=run_id, step_id="a", error=BOOM)
        if n < 3:
            run = await still_client.run(run_id)
            assert (await still_client.status(run_id), run.attempts) == ("SLEEPING", 1)
            await again(still_client, engine, clock, worker_id, run_id)

    assert await still_client.status(run_id) == "RUNNING"  # what follows is for the workflow to say
    assert [status(one) for one in await attempts(still_client, run_id)] == ["FAILED", "FAILED", "FAILED"]
    assert {one.error.message for one in await attempts(still_client, run_id)} == {"boom"}
    with Refused("FAILED_PRECONDITION", "PRECONDITION_FAILED", "boom"):
        await still_client.BeginStep(run_id=run_id, step_id="a")


async def test_a_step_that_waits_for_its_retry_cannot_begin(
    still_client: Client, engine: Engine, worker_id: str, run_id: str
) -> None:
    await begun(still_client, run_id, "a")
    await still_client.FailStep(run_id=run_id, step_id="a", error=BOOM)
    run = await still_client.run(run_id)
    assert timedelta(seconds=1) <= run.wake_up_at.ToDatetime() - run.started_at.ToDatetime() <= timedelta(seconds=1.2)
    assert status((await attempts(still_client, run_id))[0]) == "PENDING"
    await engine.wake(UUID(run_id))  # an operator ends the sleep of the run, not that of the step
    assert (await still_client.poll(worker_id)).run_id == run_id

    with Refused("FAILED_PRECONDITION", "PRECONDITION_FAILED", "waits until"):
        await still_client.BeginStep(run_id=run_id, step_id="a")


async def test_while_a_step_waits_for_its_retry_the_run_cannot_be_ended_by_its_worker(
    still_client: Client, run_id: str
) -> None:
    """Clients of old say that the run failed, right after a step of it did."""
    await begun(still_client, run_id, "a")
    await still_client.FailStep(run_id=run_id, step_id="a", error=BOOM)

    for call in (
        still_client.FailWorkflow(run_id=run_id, error=BOOM),
        still_client.CompleteWorkflow(run_id=run_id, output=b"1"),
        still_client.BeginStep(run_id=run_id, step_id="b"),
    ):
        with Refused("FAILED_PRECONDITION", "PRECONDITION_FAILED"):
            await call
    assert await still_client.status(run_id) == "SLEEPING"


@pytest.mark.parametrize(
    ("error", "policy"),
    [
        (FINAL, None),
        (BOOM, pb.RetryPolicy(maximum_attempts=1)),
        (BOOM, pb.RetryPolicy(non_retryable_errors=["bo"])),
    ],
)
async def test_a_step_that_may_not_be_tried_again_has_failed_for_good(
    still_client: Client, engine: Engine, clock: VirtualClock, worker_id: str, run_id: str, error: Any, policy: Any
) -> None:
    """In this attempt of its run; a sleep is no new attempt. In a later one it begins again."""
    await begun(still_client, run_id, "a", retry_policy=policy)
    await still_client.FailStep(run_id=run_id, step_id="a", error=error)
    assert await still_client.status(run_id) == "RUNNING"
    await still_client.ScheduleSleep(run_id=run_id, duration_seconds=1)
    await again(still_client, engine, clock, worker_id, run_id)
    with Refused("FAILED_PRECONDITION", "PRECONDITION_FAILED", error.message):
        await still_client.BeginStep(run_id=run_id, step_id="a")

    await still_client.FailWorkflow(run_id=run_id, error=BOOM)
    await again(still_client, engine, clock, worker_id, run_id)

    assert await begun(still_client, run_id, "a")
    await still_client.CompleteStep(run_id=run_id, step_id="a", output=b"2")
    assert [status(one) for one in await attempts(still_client, run_id)] == ["FAILED", "COMPLETED"]
    assert not await begun(still_client, run_id, "a")


async def test_the_policy_of_a_step_inherits_field_by_field_from_its_run(still_client: Client, worker_id: str) -> None:
    of_run = pb.RetryPolicy(maximum_attempts=2, initial_interval_ms=10_000, non_retryable_errors=["never"])
    run_id = await polled(still_client, worker_id, retry_policy=of_run)
    await begun(still_client, run_id, "a", retry_policy=pb.RetryPolicy(maximum_attempts=9))

    await still_client.FailStep(run_id=run_id, step_id="a", error=BOOM)

    run = await still_client.run(run_id)
    assert timedelta(seconds=10) <= run.wake_up_at.ToDatetime() - run.started_at.ToDatetime() <= timedelta(seconds=12)
    other = await polled(still_client, worker_id, retry_policy=of_run)
    await begun(still_client, other, "a")
    await still_client.FailStep(run_id=other, step_id="a", error=pb.ErrorDetail(message="never again"))
    assert await still_client.status(other) == "RUNNING"  # final by the run's policy


async def test_a_worker_may_say_when_to_try_a_step_again(still_client: Client, run_id: str) -> None:
    await begun(still_client, run_id, "a")

    await still_client.FailStep(
        run_id=run_id, step_id="a", error=pb.ErrorDetail(message="later", retry_after_ms=100_000)
    )

    run = await still_client.run(run_id)
    assert run.wake_up_at.ToDatetime() - run.started_at.ToDatetime() >= timedelta(seconds=100)


async def test_a_sleep_step_is_over_when_its_time_has_come(
    still_client: Client, engine: Engine, clock: VirtualClock, worker_id: str, run_id: str
) -> None:
    """As clients do it: begin the step, schedule the sleep, complete the step, and say no more."""
    assert await begun(still_client, run_id, "__sleep_0")
    await still_client.ScheduleSleep(run_id=run_id, duration_seconds=4)
    await still_client.CompleteStep(run_id=run_id, step_id="__sleep_0", output=b"null")
    assert await still_client.status(run_id) == "SLEEPING"
    await again(still_client, engine, clock, worker_id, run_id)

    answer = await still_client.BeginStep(run_id=run_id, step_id="__sleep_0")

    assert (answer.should_execute, answer.cached_result) == (False, b"null")
    [attempt] = await attempts(still_client, run_id)
    assert (attempt.kind, status(attempt)) == (pb.STEP_KIND_SLEEP, "COMPLETED")


async def test_a_worker_that_dies_right_after_scheduling_a_sleep_does_not_sleep_twice(
    still_client: Client, engine: Engine, clock: VirtualClock, worker_id: str, run_id: str
) -> None:
    assert await begun(still_client, run_id, "__sleep_0")
    await still_client.ScheduleSleep(run_id=run_id, duration_seconds=4)
    await again(still_client, engine, clock, worker_id, run_id)

    assert not await begun(still_client, run_id, "__sleep_0")


async def test_a_sleep_step_may_be_completed_without_a_beginning(
    still_client: Client, engine: Engine, clock: VirtualClock, worker_id: str, run_id: str
) -> None:
    await still_client.ScheduleSleep(run_id=run_id, duration_seconds=4)
    await still_client.CompleteStep(run_id=run_id, step_id="__sleep_0", output=b"null")
    await again(still_client, engine, clock, worker_id, run_id)

    assert not await begun(still_client, run_id, "__sleep_0")


async def test_attempts_are_found_listed_in_pages_and_by_step(still_client: Client, run_id: str) -> None:
    for n in range(60):
        await begun(still_client, run_id, f"s{n % 6}#{n // 6 + 2}" if n >= 6 else f"s{n}")
        await still_client.CompleteStep(
            run_id=run_id, step_id=f"s{n % 6}#{n // 6 + 2}" if n >= 6 else f"s{n}", output=str(n).encode()
        )
    first = await still_client.ListStepAttempts(workflow_run_id=run_id)
    rest = await still_client.ListStepAttempts(workflow_run_id=run_id, page_token=first.next_page_token)

    assert len(first.step_attempts) == 50
    assert rest.next_page_token == ""
    listed = [*first.step_attempts, *rest.step_attempts]
    assert len({one.step_attempt_id for one in listed}) == len(listed) == 60
    [one] = await attempts(still_client, run_id, step_id="s3")
    found = (await still_client.GetStepAttempt(step_attempt_id=one.step_attempt_id)).step_attempt
    assert found == one
    for namespace_id in ("other",):
        with Refused("NOT_FOUND", "NOT_FOUND"):
            await still_client.GetStepAttempt(step_attempt_id=one.step_attempt_id, namespace_id=namespace_id)
        with Refused("NOT_FOUND", "NOT_FOUND"):
            await still_client.ListStepAttempts(workflow_run_id=run_id, namespace_id=namespace_id)
    with Refused("NOT_FOUND", "NOT_FOUND") as refused:
        await still_client.GetStepAttempt(step_attempt_id=str(uuid4()))
    assert refused.detail.subject == "step_attempt"
    with Refused("INVALID_ARGUMENT", "INVALID_ARGUMENT", "step_attempt_id"):
        await still_client.GetStepAttempt(step_attempt_id="x")
    with Refused("INVALID_ARGUMENT", "INVALID_ARGUMENT", "page_token"):
        await still_client.ListStepAttempts(workflow_run_id=run_id, page_token="x")


@pytest.mark.parametrize("step_id", ["", "a\x00b", "x" * 201])
async def test_a_step_needs_a_name(still_client: Client, run_id: str, step_id: str) -> None:
    for call in (
        still_client.BeginStep(run_id=run_id, step_id=step_id),
        still_client.CompleteStep(run_id=run_id, step_id=step_id, output=b"1"),
        still_client.FailStep(run_id=run_id, step_id=step_id, error=BOOM),
    ):
        with Refused("INVALID_ARGUMENT", "INVALID_ARGUMENT", "step_id"):
            await call


async def test_the_input_of_a_step_must_be_json(still_client: Client, run_id: str) -> None:
    with Refused("INVALID_ARGUMENT", "INVALID_ARGUMENT", "input"):
        await still_client.BeginStep(run_id=run_id, step_id="a", input=b"{")
