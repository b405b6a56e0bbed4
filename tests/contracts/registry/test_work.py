"""Runs as workers execute them: every transition of the tables, what is refused, and the races."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from tests.contracts.registry.client import Client, Refused

from windlass import Engine
from windlass.contracts.registry.wire import kagzi_pb2 as pb
from windlass.testing.clock import VirtualClock

pytestmark = pytest.mark.slow

BOOM = pb.ErrorDetail(code=pb.ERROR_CODE_INTERNAL, message="boom")
FINAL = pb.ErrorDetail(code=pb.ERROR_CODE_INVALID_ARGUMENT, message="no such order", non_retryable=True)


@pytest.fixture
async def worker_id(still_client: Client) -> str:
    return await still_client.register()


async def polled(client: Client, worker_id: str, **fields: Any) -> str:
    """A run that this worker executes."""
    run_id = await client.start(**fields)
    assert (await client.poll(worker_id)).run_id == run_id
    return run_id


async def test_a_run_is_completed_and_says_so_again(still_client: Client, worker_id: str) -> None:
    run_id = await polled(still_client, worker_id)

    for _ in range(2):
        await still_client.CompleteWorkflow(run_id=run_id, output=b'{"sum": 3}')

    run = await still_client.run(run_id)
    assert (await still_client.status(run_id), json.loads(run.output), run.attempts) == ("COMPLETED", {"sum": 3}, 1)
    assert run.HasField("finished_at")
    with Refused("FAILED_PRECONDITION", "PRECONDITION_FAILED"):
        await still_client.CompleteWorkflow(run_id=run_id, output=b'{"sum": 4}')
    with Refused("FAILED_PRECONDITION", "PRECONDITION_FAILED"):
        await still_client.FailWorkflow(run_id=run_id, error=BOOM)
    with Refused("FAILED_PRECONDITION", "PRECONDITION_FAILED"):
        await still_client.ScheduleSleep(run_id=run_id, duration_seconds=5)
    with Refused("FAILED_PRECONDITION", "PRECONDITION_FAILED"):
        await still_client.CancelWorkflowRun(run_id=run_id)
    assert json.loads((await still_client.run(run_id)).output) == {"sum": 3}


@pytest.mark.parametrize("output", [b"", b"{", b"\xff"])
async def test_an_output_must_be_json(still_client: Client, worker_id: str, output: bytes) -> None:
    run_id = await polled(still_client, worker_id)

    with Refused("INVALID_ARGUMENT", "INVALID_ARGUMENT", "output"):
        await still_client.CompleteWorkflow(run_id=run_id, output=output)
    with Refused("INVALID_ARGUMENT", "INVALID_ARGUMENT", "output"):
        await still_client.CompleteStep(run_id=run_id, step_id="a", output=output)

    assert await still_client.status(run_id) == "RUNNING"


async def test_a_final_error_ends_the_run(still_client: Client, worker_id: str) -> None:
    run_id = await polled(still_client, worker_id)

    for _ in range(2):
        await still_client.FailWorkflow(run_id=run_id, error=FINAL)

    run = await still_client.run(run_id)
    assert (await still_client.status(run_id), run.attempts) == ("FAILED", 1)
    assert (run.error.code, run.error.message, run.error.non_retryable) == (
        pb.ERROR_CODE_INVALID_ARGUMENT, "no such order", True,
    )  # fmt: skip


async def test_an_error_that_may_pass_is_tried_again_within_the_policy(
    still_client: Client, worker_id: str, clock: VirtualClock
) -> None:
    policy = pb.RetryPolicy(maximum_attempts=3, initial_interval_ms=1000, maximum_interval_ms=60_000)
    run_id = await polled(still_client, worker_id, retry_policy=policy)
    await still_client.FailWorkflow(run_id=run_id, error=BOOM)
    run = await still_client.run(run_id)
    assert (await still_client.status(run_id), run.attempts, run.error.message) == ("PENDING", 1, "boom")
    assert run.worker_id == ""
    waits = run.wake_up_at.ToDatetime() - run.started_at.ToDatetime()
    assert timedelta(seconds=1) <= waits <= timedelta(seconds=1.2)  # jitter only lengthens, by at most a fifth

    for n in (2, 3):
        await clock.advance(5)
        assert (await still_client.poll(worker_id)).run_id == run_id
        assert (await still_client.run(run_id)).attempts == n
        await still_client.FailWorkflow(run_id=run_id, error=BOOM)

    assert await still_client.status(run_id) == "FAILED"
    assert (await still_client.run(run_id)).worker_id == worker_id


async def test_errors_that_begin_as_the_policy_says_are_final(still_client: Client, worker_id: str) -> None:
    policy = pb.RetryPolicy(non_retryable_errors=["no such"])
    run_id = await polled(still_client, worker_id, retry_policy=policy)

    await still_client.FailWorkflow(run_id=run_id, error=pb.ErrorDetail(message="no such order"))

    assert await still_client.status(run_id) == "FAILED"


async def test_a_worker_may_say_when_to_try_again(still_client: Client, worker_id: str) -> None:
    run_id = await polled(still_client, worker_id)

    await still_client.FailWorkflow(run_id=run_id, error=pb.ErrorDetail(message="later", retry_after_ms=100_000))

    run = await still_client.run(run_id)
    assert run.wake_up_at.ToDatetime() - run.started_at.ToDatetime() >= timedelta(seconds=100)


async def test_every_call_on_an_unknown_run_says_not_found(still_client: Client) -> None:
    unknown = str(uuid4())
    calls = (
        still_client.CompleteWorkflow(run_id=unknown, output=b"1"),
        still_client.FailWorkflow(run_id=unknown, error=BOOM),
        still_client.ScheduleSleep(run_id=unknown, duration_seconds=1),
        still_client.BeginStep(run_id=unknown, step_id="a"),
        still_client.CompleteStep(run_id=unknown, step_id="a", output=b"1"),
        still_client.FailStep(run_id=unknown, step_id="a", error=BOOM),
        still_client.RecordHeartbeat(run_id=unknown, worker_id=str(uuid4())),
        still_client.ListStepAttempts(workflow_run_id=unknown),
    )
    for call in calls:
        with Refused("NOT_FOUND", "NOT_FOUND") as refused:
            await call
        assert refused.detail.subject == "workflow_run"


async def test_what_is_no_id_of_a_run_is_an_invalid_argument(still_client: Client) -> None:
    calls = (
        still_client.CompleteWorkflow(run_id="x", output=b"1"),
        still_client.FailWorkflow(run_id="x", error=BOOM),
        still_client.ScheduleSleep(run_id="x", duration_seconds=1),
        still_client.BeginStep(run_id="x", step_id="a"),
        still_client.CompleteStep(run_id="x", step_id="a", output=b"1"),
        still_client.FailStep(run_id="x", step_id="a", error=BOOM),
        still_client.RecordHeartbeat(run_id="x", worker_id=str(uuid4())),
        still_client.ListStepAttempts(workflow_run_id="x"),
    )
    for call in calls:
        with Refused("INVALID_ARGUMENT", "INVALID_ARGUMENT", "run_id"):
            await call


async def test_a_run_that_nobody_took_cannot_be_reported(still_client: Client) -> None:
    run_id = await still_client.start()
    calls = (
        still_client.CompleteWorkflow(run_id=run_id, output=b"1"),
        still_client.FailWorkflow(run_id=run_id, error=BOOM),
        still_client.ScheduleSleep(run_id=run_id, duration_seconds=1),
        still_client.BeginStep(run_id=run_id, step_id="a"),
        still_client.CompleteStep(run_id=run_id, step_id="a", output=b"1"),
        still_client.FailStep(run_id=run_id, step_id="a", error=BOOM),
    )
    for call in calls:
        with Refused("FAILED_PRECONDITION", "PRECONDITION_FAILED"):
            await call
    assert await still_client.status(run_id) == "PENDING"


# --------------------------------------------------------------------------------------------- sleep


async def test_a_run_sleeps_and_its_wake_up_uses_no_budget(
    still_client: Client, worker_id: str, engine: Engine, clock: VirtualClock
) -> None:
    run_id = await polled(still_client, worker_id)
    for n in range(6):  # more often than the policy allows tries
        await still_client.ScheduleSleep(run_id=run_id, duration_seconds=10)
        run = await still_client.run(run_id)
        assert (await still_client.status(run_id), run.attempts) == ("SLEEPING", 1), n
        assert run.HasField("wake_up_at")
        assert run.worker_id == ""
        await clock.advance(10)
        await still_client.WorkerHeartbeat(worker_id=worker_id)
        await engine.loops.timer_tick()
        assert (await still_client.poll(worker_id)).run_id == run_id
    await clock.advance(31)
    await engine.loops.expire_tick()  # its worker dies once

    run = await still_client.run(run_id)
    assert (await still_client.status(run_id), run.attempts, run.worker_id) == ("PENDING", 1, "")


async def test_a_sleep_said_twice_is_one(still_client: Client, worker_id: str) -> None:
    run_id = await polled(still_client, worker_id)
    await still_client.ScheduleSleep(run_id=run_id, duration_seconds=60)
    first = (await still_client.run(run_id)).wake_up_at

    await still_client.ScheduleSleep(run_id=run_id, duration_seconds=60)

    assert (await still_client.run(run_id)).wake_up_at == first


async def test_a_sleep_lasts_30_days_at_most_and_none_at_all_is_back_in_line(
    still_client: Client, worker_id: str
) -> None:
    run_id = await polled(still_client, worker_id)

    for seconds in (30 * 86400 + 1, 2**64 - 1):
        with Refused("INVALID_ARGUMENT", "INVALID_ARGUMENT", "duration_seconds"):
            await still_client.ScheduleSleep(run_id=run_id, duration_seconds=seconds)
    assert await still_client.status(run_id) == "RUNNING"
    await still_client.ScheduleSleep(run_id=run_id, duration_seconds=0)
    assert (await still_client.poll(worker_id)).run_id == run_id
    await still_client.ScheduleSleep(run_id=run_id, duration_seconds=30 * 86400)
    assert await still_client.status(run_id) == "SLEEPING"


# --------------------------------------------------------------------------------------------- deadline, loss, cancel


async def test_a_deadline_is_enforced(
    still_client: Client, worker_id: str, engine: Engine, clock: VirtualClock
) -> None:
    deadline = Timestamp()
    deadline.FromDatetime(await clock.now() + timedelta(seconds=20))
    run_id = await polled(still_client, worker_id, deadline_at=deadline)

    await clock.advance(20)
    await engine.loops.timer_tick()

    run = await still_client.run(run_id)
    assert await still_client.status(run_id) == "FAILED"
    assert "deadline" in run.error.message
    with Refused("FAILED_PRECONDITION", "PRECONDITION_FAILED"):
        await still_client.CompleteWorkflow(run_id=run_id, output=b"1")


async def test_a_run_whose_workers_die_is_tried_as_often_as_its_policy_says(
    still_client: Client, engine: Engine, clock: VirtualClock
) -> None:
    run_id = await still_client.start(retry_policy=pb.RetryPolicy(maximum_attempts=2))
    for _ in range(2):
        worker_id = await still_client.register()
        assert (await still_client.poll(worker_id)).run_id == run_id
        await clock.advance(31)
        await engine.loops.expire_tick()
        await clock.advance(5)

    run = await still_client.run(run_id)
    assert (await still_client.status(run_id), run.attempts) == ("FAILED", 2)
    assert run.error.message.startswith("Worker died, retries exhausted")
    assert run.error.non_retryable


async def test_a_lost_run_may_still_be_completed_until_somebody_else_has_it(
    still_client: Client, worker_id: str, engine: Engine, clock: VirtualClock
) -> None:
    run_id = await polled(still_client, worker_id)
    await clock.advance(31)
    await engine.loops.expire_tick()
    assert await still_client.status(run_id) == "PENDING"

    await still_client.CompleteWorkflow(run_id=run_id, output=b'"late"')

    assert await still_client.status(run_id) == "COMPLETED"


async def test_a_zombie_that_names_its_attempt_changes_nothing(
    still_client: Client, engine: Engine, clock: VirtualClock, still: str, connect: Any
) -> None:
    zombie_id = await still_client.register(pid=1, hostname="h")
    run_id = await still_client.start()
    polling = still_client.PollActivity(worker_id=zombie_id, task_queue="q", supported_workflow_types=["greet"])
    await polling
    token = dict(await polling.trailing_metadata())["x-windlass-lease-token"]
    await clock.advance(31)
    await engine.loops.expire_tick()
    await clock.advance(5)
    other = await still_client.register(pid=2, hostname="h")
    assert (await still_client.poll(other)).run_id == run_id

    for zombie in (connect(still, x_windlass_lease_token=token), connect(still, x_windlass_worker_id=zombie_id)):
        for call in (
            zombie.CompleteWorkflow(run_id=run_id, output=b'"zombie"'),
            zombie.FailWorkflow(run_id=run_id, error=BOOM),
            zombie.ScheduleSleep(run_id=run_id, duration_seconds=1),
            zombie.BeginStep(run_id=run_id, step_id="a"),
            zombie.CompleteStep(run_id=run_id, step_id="a", output=b"1"),
            zombie.FailStep(run_id=run_id, step_id="a", error=BOOM),
        ):
            with Refused("FAILED_PRECONDITION", "PRECONDITION_FAILED", "no longer yours"):
                await call

    assert await still_client.status(run_id) == "RUNNING"
    await connect(still, x_windlass_worker_id=other).CompleteWorkflow(run_id=run_id, output=b'"mine"')
    assert (await still_client.run(run_id)).output == b'"mine"'


@pytest.mark.parametrize("token", ["x", "x.1", "01a1e2c28a967ea59ca4be147ecf5186.x"])
async def test_a_token_that_nobody_gave_is_an_invalid_argument(
    still_client: Client, worker_id: str, token: str
) -> None:
    run_id = await polled(still_client, worker_id)

    with Refused("INVALID_ARGUMENT", "INVALID_ARGUMENT", "x-windlass-lease-token"):
        await still_client.CompleteWorkflow(run_id=run_id, output=b"1", metadata=(("x-windlass-lease-token", token),))


async def test_a_cancelled_run_is_shown_so_at_once_and_its_workers_writes_are_refused(
    still_client: Client, worker_id: str
) -> None:
    run_id = await polled(still_client, worker_id)
    await still_client.BeginStep(run_id=run_id, step_id="a")

    await still_client.CancelWorkflowRun(run_id=run_id)

    assert await still_client.status(run_id) == "CANCELLED"
    for call in (
        still_client.CompleteStep(run_id=run_id, step_id="a", output=b"1"),
        still_client.BeginStep(run_id=run_id, step_id="b"),
        still_client.CompleteWorkflow(run_id=run_id, output=b"1"),
        still_client.FailWorkflow(run_id=run_id, error=BOOM),
        still_client.ScheduleSleep(run_id=run_id, duration_seconds=1),
        still_client.CancelWorkflowRun(run_id=run_id),
    ):
        with Refused("FAILED_PRECONDITION", "PRECONDITION_FAILED"):
            await call
    assert await still_client.status(run_id) == "CANCELLED"


async def test_a_sleeping_run_is_cancelled(still_client: Client, worker_id: str) -> None:
    run_id = await polled(still_client, worker_id)
    await still_client.ScheduleSleep(run_id=run_id, duration_seconds=60)

    await still_client.CancelWorkflowRun(run_id=run_id)

    assert await still_client.status(run_id) == "CANCELLED"


async def test_a_cancel_that_came_another_way_reaches_the_worker_with_its_next_call(
    still_client: Client, worker_id: str, engine: Engine
) -> None:
    by_write, by_beat = await polled(still_client, worker_id), await polled(still_client, worker_id)
    for run_id in (by_write, by_beat):
        await engine.cancel(UUID(run_id), "an operator")
        assert await still_client.status(run_id) == "CANCELLED"

    with Refused("FAILED_PRECONDITION", "PRECONDITION_FAILED", "cancelled"):
        await still_client.CompleteWorkflow(run_id=by_write, output=b"1")
    await still_client.WorkerHeartbeat(worker_id=worker_id)

    for run_id in (by_write, by_beat):
        assert (await engine.tasks.get(UUID(run_id))).task.terminal


async def test_our_own_worker_is_told_of_a_cancel(still_client: Client, engine: Engine) -> None:
    lease = await engine.open_lease("ours", ["q"])
    run_id = await still_client.start()
    [claimed] = await engine.claim(lease)

    await still_client.CancelWorkflowRun(run_id=run_id)

    assert await still_client.status(run_id) == "CANCELLED"
    assert [cancel.task_id for cancel in (await engine.extend_lease(lease)).cancels] == [claimed.task.id]


# --------------------------------------------------------------------------------------------- races


@pytest.mark.parametrize("first", ["complete", "fail", "cancel"])
async def test_of_two_that_end_a_run_at_the_same_time_one_wins(client: Client, first: str) -> None:
    """Complete against fail, cancel against complete: whoever is first, the others hear that they were not."""
    worker_id = await client.register()
    for _ in range(6):
        run_id = await polled(client, worker_id)
        calls = {
            "complete": client.CompleteWorkflow(run_id=run_id, output=b"1"),
            "fail": client.FailWorkflow(run_id=run_id, error=FINAL),
            "cancel": client.CancelWorkflowRun(run_id=run_id),
        }
        order = [calls.pop(first), *calls.values()]
        outcomes = await asyncio.gather(*(answered(call) for call in order))

        assert sum(outcomes) == 1
        assert await client.status(run_id) in ("COMPLETED", "FAILED", "CANCELLED")


async def answered(call: Any) -> bool:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.FAILED_PRECONDITION:
            raise
        return False
    return True


# --------------------------------------------------------------------------------------------- heartbeat of one run


async def test_a_run_can_be_kept_alive_by_itself(
    still_client: Client, worker_id: str, engine: Engine, clock: VirtualClock
) -> None:
    run_id = await polled(still_client, worker_id)
    for _ in range(4):
        await clock.advance(20)
        await still_client.RecordHeartbeat(run_id=run_id, worker_id=worker_id)
        await engine.loops.expire_tick()

    assert await still_client.status(run_id) == "RUNNING"
    with Refused("FAILED_PRECONDITION", "PRECONDITION_FAILED"):
        await still_client.RecordHeartbeat(run_id=run_id, worker_id=str(uuid4()))
    with Refused("INVALID_ARGUMENT", "INVALID_ARGUMENT", "worker_id"):
        await still_client.RecordHeartbeat(run_id=run_id, worker_id="")
    await still_client.CompleteWorkflow(run_id=run_id, output=b"1")
    with Refused("FAILED_PRECONDITION", "PRECONDITION_FAILED"):
        await still_client.RecordHeartbeat(run_id=run_id, worker_id=worker_id)
