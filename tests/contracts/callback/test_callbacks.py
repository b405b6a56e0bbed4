"""What a worker of the callback contract says, and what it is answered: through real HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.contracts.callback.world import Attempt, World
from tests.kit.world import refused

from windlass import Category, State
from windlass.contracts.callback.callbacks import Callbacks
from windlass.contracts.callback.server.forms import kept_json
from windlass.core.delivery import RetryForm
from windlass.engine.read.metrics import Tally

pytestmark = pytest.mark.slow

AT = "2025-01-15T10:00:00Z"


async def test_a_task_is_pushed_started_and_completed(world: World) -> None:
    attempt = await world.dispatched(payload=b'{"table": "orders"}')
    assert attempt.envelope["payload"] == {"table": "orders"}
    assert (await world.task(attempt)).state is State.RUNNING

    started = await attempt.call("started", startedAt=AT)
    beaten = await attempt.heartbeat(progressPct=45, message="Processing partition 5 of 10")
    done = await attempt.completed(output={"rowCount": 1_000_000})

    assert started.json() == {"acknowledged": True, "serverTime": started.json()["serverTime"]}
    assert beaten.json() == {"acknowledged": True, "shouldCancel": False, "serverTime": beaten.json()["serverTime"]}
    assert done.json() == {
        "acknowledged": True, "finalState": "SUCCEEDED", "serverTime": done.json()["serverTime"],
    }  # fmt: skip
    task = await world.task(attempt)
    assert (task.state, task.worker, task.result) == (State.SUCCEEDED, "worker-abc123", b'{"rowCount":1000000}')


async def test_the_path_id_is_read_as_a_uuid_too(world: World) -> None:
    attempt = await world.dispatched()

    assert (await attempt.call("started", task=str(attempt.task_id))).status_code == 200


# --------------------------------------------------------------------------------------------- started


async def test_started_may_be_repeated_while_running(world: World) -> None:
    attempt = await world.started()

    assert (await attempt.call("started")).status_code == 200
    assert (await world.history(attempt)).count("worker_started") == 1


async def test_started_tells_who_was_first(world: World) -> None:
    """A push that was sent twice may have reached two processes of a service."""
    attempt = await world.dispatched()
    answers = await asyncio.gather(*(attempt.call("started", workerId=f"process-{n}") for n in range(4)))
    assert {answer.status_code for answer in answers} == {200}

    first = (await world.task(attempt)).worker
    told = {f"process-{n}": answer.json().get("workerId") for n, answer in enumerate(answers)}
    assert told == {name: None if name == first else first for name in told}
    assert (await world.history(attempt)).count("worker_started") == 1
    assert (await attempt.call("started", workerId="late")).json()["workerId"] == first
    assert "workerId" not in (await attempt.call("started", workerId=first)).json()


async def test_started_of_a_task_that_was_cancelled_before_is_409_with_its_state(world: World) -> None:
    attempt = await world.dispatched()
    await world.engine.cancel(attempt.task_id, "not wanted")

    assert (await world.task(attempt)).state is State.CANCELLED
    assert refused(await attempt.call("started"), 409, "task_already_terminal")["state"] == "CANCELLED"


async def test_started_of_a_task_that_has_ended_is_409(world: World) -> None:
    attempt = await world.started()
    await attempt.completed()

    assert refused(await attempt.call("started"), 409, "task_already_terminal")["state"] == "SUCCEEDED"


async def test_started_of_an_attempt_that_waits_for_its_retry_is_409(world: World) -> None:
    attempt = await world.started()
    await attempt.failed()

    refused(await attempt.call("started"), 409, "attempt_already_completed")


async def test_when_a_worker_says_it_began_is_kept_and_far_off_clocks_are_noted(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.engine.count(Tally())
    attempt = await world.dispatched()
    await attempt.call("started", startedAt=AT)
    assert "the clock of worker worker-abc123 is off" in caplog.text
    assert world.engine.tally is not None
    assert world.engine.tally.clock_skews == 1

    detail = ((await world.entries(attempt, "worker_started"))[0]).detail
    assert detail["worker_time"] == AT
    assert detail["clock_skew_s"] < -300
    assert (await world.task(attempt)).started_at != AT


# --------------------------------------------------------------------------------------------- heartbeats


async def test_a_heartbeat_before_started_counts_as_started(world: World) -> None:
    attempt = await world.dispatched()

    assert (await attempt.heartbeat()).status_code == 200
    assert (await world.task(attempt)).worker == "worker-abc123"


async def test_progress_is_kept_and_shown(world: World) -> None:
    attempt = await world.started()
    await attempt.heartbeat(progressPct=45, message="Processing partition 5 of 10")

    progress = await world.engine.progress(attempt.task_id)
    assert progress is not None
    assert (progress.current, progress.maximum, progress.message) == (45.0, 100.0, "Processing partition 5 of 10")


async def test_receipt_counts_and_not_what_the_clock_of_a_worker_says(world: World) -> None:
    attempt = await world.started()
    await world.clock.advance(80)
    await attempt.heartbeat(heartbeatAt="2001-01-01T00:00:00Z")
    await world.clock.advance(80)
    await world.engine.parts.outgoing.silence_tick()

    assert (await world.task(attempt)).state is State.RUNNING


async def test_a_heartbeat_is_written_down_only_when_it_has_to_be(world: World) -> None:
    attempt = await world.started()
    before = await world.rows()
    await attempt.heartbeat()
    assert await world.rows() == before

    await world.clock.advance(16)  # half of the interval was written ahead
    await attempt.heartbeat()
    assert await world.rows() != before


async def test_heartbeats_of_many_tasks_share_one_statement(world: World) -> None:
    for _ in range(20):
        await world.submit()
    await world.send_out()
    attempts = [Attempt(world, push.envelope) for push in world.worker.pushes]
    assert len(attempts) == 20
    for attempt in attempts:
        await attempt.call("started")
    await world.clock.advance(20)
    batches: list[int] = []
    beats = world.engine.service(Callbacks)._heartbeats
    commit = beats._commit

    async def counted(batch: list[Any]) -> Any:
        batches.append(len(batch))
        return await commit(batch)

    beats._commit = counted
    answers = await asyncio.gather(*(attempt.heartbeat() for attempt in attempts))

    assert [answer.status_code for answer in answers] == [200] * 20
    assert sum(batches) == 20
    assert len(batches) < 20


@pytest.mark.parametrize("end", ["SUCCEEDED", "FAILED", "CANCELLED"])
async def test_a_heartbeat_of_a_task_that_has_ended_is_410(world: World, end: str) -> None:
    attempt = await world.started()
    await attempt.completed(end, error={"category": "CONFIGURATION", "message": "no key"})

    assert refused(await attempt.heartbeat(), 410, "task_expired")["state"] == end


async def test_a_heartbeat_of_an_attempt_that_waits_for_its_retry_is_410(world: World) -> None:
    attempt = await world.started()
    await attempt.failed()

    refused(await attempt.heartbeat(), 410, "task_expired")


# --------------------------------------------------------------------------------------------- silence


async def test_a_worker_that_is_not_heard_of_is_a_zombie_and_the_task_is_tried_again(world: World) -> None:
    attempt = await world.started()
    await world.clock.advance(90)
    await world.engine.parts.outgoing.silence_tick()
    assert (await world.task(attempt)).state is State.RUNNING

    await world.clock.advance(16)
    await world.engine.parts.outgoing.silence_tick()

    task = await world.task(attempt)
    assert (task.state, task.losses, task.failures) == (State.QUEUED, 1, 0)
    assert task.error is not None
    assert (task.error.reason, task.error.category) == ("HEARTBEAT_TIMEOUT", Category.INFRASTRUCTURE)
    assert [what for what in await world.history(attempt) if what in ("zombie", "lost")] == ["zombie", "lost"]
    refused(await attempt.heartbeat(), 410, "task_expired")
    refused(await attempt.call("started"), 410, "task_expired")


async def test_a_heartbeat_after_the_timeout_counts_until_somebody_has_looked(world: World) -> None:
    """Whoever was late, the worker or we: as long as the attempt was not given up, it goes on."""
    attempt = await world.started()
    await world.clock.advance(106)
    assert (await attempt.heartbeat()).status_code == 200
    await world.engine.parts.outgoing.silence_tick()
    assert (await world.task(attempt)).state is State.RUNNING

    await world.clock.advance(106)
    await world.engine.parts.outgoing.silence_tick()
    refused(await attempt.heartbeat(), 410, "task_expired")


async def test_the_loss_that_reaches_the_most_allowed_ends_the_task(world: World) -> None:
    await world.queue(retry=RetryForm(max_losses=1))
    attempt = await world.started()
    await world.clock.advance(106)
    await world.engine.parts.outgoing.silence_tick()

    task = await world.task(attempt)
    assert task.error is not None
    assert (task.state, task.error.reason) == (State.FAILED, "HEARTBEAT_TIMEOUT")


async def test_what_was_delivered_and_nobody_began_is_lost(world: World) -> None:
    attempt = await world.dispatched()
    await world.clock.advance(31)
    await world.engine.parts.outgoing.silence_tick()

    task = await world.task(attempt)
    assert task.error is not None
    assert (task.state, task.losses, task.error.reason) == (State.QUEUED, 1, "DISPATCH_TIMEOUT")


async def test_a_worker_that_comes_back_in_time_may_still_report(world: World) -> None:
    attempt = await world.started()
    await world.clock.advance(106)
    await world.engine.parts.outgoing.silence_tick()

    assert (await attempt.completed(output=7)).json()["finalState"] == "SUCCEEDED"
    assert (await world.task(attempt)).result == b"7"


async def test_a_worker_that_comes_back_after_its_attempt_was_given_away_is_refused_and_changes_nothing(
    world: World,
) -> None:
    old = await world.started()
    await world.clock.advance(106)
    await world.engine.parts.outgoing.silence_tick()
    await world.clock.advance(2)
    new = await world.next_attempt()
    assert new.number == 2
    before = await world.rows()

    for what, body in (("started", {}), ("heartbeat", {}), ("completed", {"outcome": "SUCCEEDED"})):
        told = refused(await old.call(what, **body), 409, "attempt_mismatch")
        assert (told["expectedAttempt"], told["receivedAttempt"]) == (2, 1)
    assert await world.rows() == before
    assert (await new.call("started")).status_code == 200
    assert (await new.completed()).json()["finalState"] == "SUCCEEDED"
    assert refused(await old.completed(), 409, "attempt_mismatch")["expectedAttempt"] == 2


async def test_the_attempt_in_the_body_is_held_against_the_current_one(world: World) -> None:
    attempt = await world.started()
    before = await world.rows()

    told = refused(await attempt.completed(attempt=2), 409, "attempt_mismatch")
    assert (told["expectedAttempt"], told["receivedAttempt"]) == (1, 2)
    assert await world.rows() == before


# --------------------------------------------------------------------------------------------- completed


async def test_everything_that_is_said_of_a_success_is_kept_and_shown(world: World) -> None:
    attempt = await world.started()
    output = {"materializationId": "mat_01", "rowCount": 1_000_000, "byteSize": 52_428_800, "outputPath": "gs://b/"}
    metrics = {"cpuTimeMs": 45000, "peakMemoryBytes": 2147483648, "ioReadBytes": 10485760, "ioWriteBytes": 52428800}
    await attempt.completed(output=output, metrics=metrics, completedAt=AT)

    shown = await shown_task(world, attempt)
    assert (shown["state"], shown["result"]) == ("succeeded", output)
    assert shown["report"]["metrics"] == {
        "cpu_time_ms": 45000, "peak_memory_bytes": 2147483648, "io_read_bytes": 10485760, "io_write_bytes": 52428800,
    }  # fmt: skip
    assert shown["report"]["completed_at"] == AT
    assert shown["report"]["outcome"] == "succeeded"


async def test_everything_that_is_said_of_a_failure_is_kept_and_shown(world: World) -> None:
    attempt = await world.started()
    error = {"category": "DATA_QUALITY", "message": "KeyError: 'missing_column'", "stackTrace": "Traceback …"}
    answer = await attempt.completed("FAILED", error=error, metrics={"cpuTimeMs": 5}, output={"partial": 1})

    assert answer.json()["finalState"] == "FAILED"
    shown = await shown_task(world, attempt)
    assert (shown["state"], shown["error"]["category"], shown["error"]["retryable"]) == (
        "failed",
        "DATA_QUALITY",
        False,
    )
    assert (shown["error"]["message"], shown["error"]["trace"]) == (error["message"], error["stackTrace"])
    assert (shown["report"]["metrics"], shown["report"]["output"]) == ({"cpu_time_ms": 5}, {"partial": 1})


async def test_everything_that_is_said_of_a_cancel_is_kept_and_shown(world: World) -> None:
    attempt = await world.started()
    await world.engine.cancel(attempt.task_id, "not wanted")
    progress = {"recordsProcessed": 500000, "lastCheckpoint": "partition-5"}
    answer = await attempt.completed("CANCELLED", cancelledDuringPhase="processing", partialProgress=progress)

    assert answer.json()["finalState"] == "CANCELLED"
    shown = await shown_task(world, attempt)
    assert (shown["state"], shown["reason"]) == ("cancelled", "not wanted")
    assert shown["report"]["cancelled_during_phase"] == "processing"
    assert shown["report"]["partial_progress"] == progress


async def shown_task(world: World, attempt: Attempt) -> dict[str, Any]:
    headers = {"Authorization": "Bearer root-key-of-this-test"}
    found: dict[str, Any] = (await world.http.get(f"/api/v1/tasks/{attempt.task_id}", headers=headers)).json()
    return found


@pytest.mark.parametrize(
    ("error", "retried"),
    [
        ({"category": "USER_CODE"}, True),
        ({"category": "DATA_QUALITY"}, False),
        ({"category": "INFRASTRUCTURE"}, True),
        ({"category": "CONFIGURATION"}, False),
        ({"category": "TIMEOUT"}, True),
        ({"category": "USER_CODE", "retryable": False}, False),
        ({"category": "CONFIGURATION", "retryable": True}, True),
    ],
)
async def test_a_failure_is_tried_again_by_its_category_unless_it_says_otherwise(
    world: World, error: dict[str, Any], retried: bool
) -> None:
    attempt = await world.started()
    answer = await attempt.completed("FAILED", error={"message": "it broke", **error})

    assert answer.json()["finalState"] == "FAILED"
    task = await world.task(attempt)
    assert (task.state, task.failures) == (State.QUEUED if retried else State.FAILED, 1)
    assert not retried or task.available_at > await world.clock.now()


async def test_a_failure_of_category_cancelled_ends_the_task_as_cancelled(world: World) -> None:
    attempt = await world.started()

    assert (await attempt.failed("CANCELLED")).json()["finalState"] == "CANCELLED"
    assert (await world.task(attempt)).state is State.CANCELLED


async def test_a_failure_without_an_error_may_be_tried_again(world: World) -> None:
    attempt = await world.started()

    assert (await attempt.completed("FAILED")).json()["finalState"] == "FAILED"
    assert (await world.task(attempt)).state is State.QUEUED


async def test_completed_without_started_is_accepted(world: World) -> None:
    attempt = await world.dispatched()

    assert (await attempt.completed()).json()["finalState"] == "SUCCEEDED"
    task = await world.task(attempt)
    assert (task.state, task.worker) == (State.SUCCEEDED, "worker-abc123")


async def test_cancelled_that_nobody_asked_for_ends_the_task_without_a_retry(world: World) -> None:
    attempt = await world.started()

    assert (await attempt.completed("CANCELLED")).json()["finalState"] == "CANCELLED"
    assert (await world.task(attempt)).state is State.CANCELLED


@pytest.mark.parametrize(
    "report",
    [
        {"outcome": "SUCCEEDED", "output": {"a": 1, "b": [2]}},
        {"outcome": "FAILED", "error": {"category": "USER_CODE", "message": "it broke"}},
        {"outcome": "FAILED", "error": {"category": "CONFIGURATION", "message": "no key", "stackTrace": "…"}},
        {"outcome": "CANCELLED"},
    ],
)
async def test_the_same_report_again_gets_the_same_answer(world: World, report: dict[str, Any]) -> None:
    attempt = await world.started()
    first = await attempt.call("completed", **report)
    before = await world.rows()
    again = await attempt.call("completed", **report, completedAt=AT, metrics={"cpuTimeMs": 1}, workerId="another")

    assert (again.status_code, again.json()["finalState"]) == (200, first.json()["finalState"])
    assert await world.rows() == before


async def test_the_same_output_in_another_spelling_is_the_same(world: World) -> None:
    attempt = await world.started()
    await attempt.completed(output={"a": 1, "b": 2})

    assert (await attempt.completed(output={"b": 2, "a": 1})).status_code == 200


async def test_another_report_on_a_finished_task_is_409_and_kept_for_audit(world: World) -> None:
    attempt = await world.started()
    await attempt.completed(output=1)

    assert refused(await attempt.completed(output=2), 409, "task_already_terminal")["state"] == "SUCCEEDED"
    refused(await attempt.completed("FAILED", workerId="liar"), 409, "task_already_terminal")
    assert (await world.task(attempt)).result == b"1"
    timeline = await world.engine.tasks.timeline(attempt.task_id)
    assert [entry.worker for entry in timeline if entry.what == "refused"] == ["worker-abc123", "liar"]


async def test_another_report_while_the_attempt_waits_for_its_retry_is_409(world: World) -> None:
    attempt = await world.started()
    await attempt.failed()

    refused(await attempt.completed(), 409, "attempt_already_completed")
    refused(await attempt.failed(message="it broke differently"), 409, "attempt_already_completed")


# --------------------------------------------------------------------------------------------- cancel


async def test_a_running_task_is_told_of_a_cancel_with_the_words_of_whoever_asked(world: World) -> None:
    attempt = await world.started()
    await world.engine.cancel(attempt.task_id, "budget exceeded")

    told = (await attempt.heartbeat()).json()
    assert (told["shouldCancel"], told["cancelReason"]) == (True, "budget exceeded")
    assert (await attempt.heartbeat()).json()["shouldCancel"] is True
    assert (await world.task(attempt)).state is State.RUNNING


async def test_without_a_reason_a_cancel_was_requested_by_a_user(world: World) -> None:
    attempt = await world.started()
    await world.engine.cancel(attempt.task_id)

    assert (await attempt.heartbeat()).json()["cancelReason"] == "user_requested"


async def test_the_grace_runs_from_the_first_signal_and_then_the_task_has_failed(world: World) -> None:
    attempt = await world.started()
    await world.engine.cancel(attempt.task_id)
    await world.clock.advance(29)
    await attempt.heartbeat()
    await world.clock.advance(29)
    await attempt.heartbeat()
    await world.engine.loops.timer_tick()
    assert (await world.task(attempt)).state is State.RUNNING

    await world.clock.advance(2)
    await world.engine.loops.timer_tick()
    task = await world.task(attempt)
    assert task.error is not None
    assert (task.state, task.error.reason) == (State.FAILED, "CANCEL_TIMEOUT")
    assert refused(await attempt.heartbeat(), 410, "task_expired")["state"] == "FAILED"


async def test_success_within_the_grace_is_accepted(world: World) -> None:
    attempt = await world.started()
    await world.engine.cancel(attempt.task_id)
    await attempt.heartbeat()

    assert (await attempt.completed()).json()["finalState"] == "SUCCEEDED"
    assert (await world.task(attempt)).state is State.SUCCEEDED


async def test_a_retryable_failure_after_a_cancel_ends_as_cancelled(world: World) -> None:
    attempt = await world.started()
    await world.engine.cancel(attempt.task_id)

    assert (await attempt.failed()).json()["finalState"] == "CANCELLED"
    assert (await world.task(attempt)).state is State.CANCELLED


async def test_a_worker_that_vanishes_after_a_cancel_ends_it_as_cancelled(world: World) -> None:
    attempt = await world.started()
    await world.engine.cancel(attempt.task_id)
    await world.clock.advance(106)
    await world.engine.parts.outgoing.silence_tick()

    assert (await world.task(attempt)).state is State.CANCELLED


async def test_an_attempt_that_is_given_back_uses_no_budget_and_is_pushed_again(world: World) -> None:
    attempt = await world.started()
    stopped = {"category": "INFRASTRUCTURE", "message": "the worker was stopped", "retryable": True}
    said = await attempt.completed("FAILED", error=stopped, released=True)
    assert (said.status_code, said.json()["finalState"]) == (200, "FAILED")
    task = await world.task(attempt)
    assert (task.state, task.attempt, task.failures, task.losses) == (State.QUEUED, 1, 0, 0)
    assert "released" in await world.history(attempt)

    again = await attempt.completed("FAILED", error=stopped, released=True)
    assert (again.status_code, again.json()["finalState"]) == (200, "FAILED")
    refused(await attempt.call("started"), 409, "attempt_already_completed")
    assert (await world.next_attempt()).number == 2


async def test_a_success_cannot_be_given_back(world: World) -> None:
    attempt = await world.started()
    await attempt.completed(output=1, released=True)
    assert (await world.task(attempt)).state is State.SUCCEEDED


# --------------------------------------------------------------------------------------------- long text

LONG = "é" * 200_000


@pytest.mark.parametrize("field", ["message", "stackTrace", "reason"])
async def test_a_failure_is_recorded_however_long_its_text_is(world: World, field: str) -> None:
    attempt = await world.started()
    answer = await attempt.failed(**{field: LONG, "retryable": False})
    assert (answer.status_code, answer.json().get("finalState")) == (200, "FAILED")
    error = (await world.task(attempt)).error
    assert error is not None
    kept = {"message": error.message, "stackTrace": error.trace, "reason": error.reason}[field]
    assert LONG.startswith(kept.partition("\n")[0].rstrip("…"))
    assert 200 <= len(kept) <= 64 * 1024


async def test_what_is_too_long_in_any_report_is_cut(world: World) -> None:
    attempt = await world.started()
    lines = [{"number": n, "level": "INFO", "message": LONG[:50_000]} for n in range(10)]
    assert (await attempt.heartbeat(progressPct=1, message=LONG, log=lines)).status_code == 200
    many = [{"number": n, "level": "INFO", "message": "a"} for n in range(30, 700)]
    assert (await attempt.heartbeat(log=many)).status_code == 200
    answer = await attempt.completed(
        "CANCELLED", cancelledDuringPhase=LONG, partialProgress={"text": "x" * 500_000}, output="x" * 500_000
    )
    assert (answer.status_code, answer.json().get("finalState")) == (200, "CANCELLED")


def test_what_is_said_besides_a_failure_is_cut_where_it_is_too_long_for_the_history() -> None:
    """A server that keeps large outputs reads bodies that are longer than a line of history may be."""
    kept = kept_json("output", msgspec.Raw(b'"' + b"x" * 3_000_000 + b'"'))
    assert isinstance(kept, str)
    assert kept.startswith('"xxx')
    assert len(kept) == 64 * 1024


async def test_a_success_with_a_long_error_beside_it_is_recorded(world: World) -> None:
    attempt = await world.started()
    answer = await attempt.completed(error={"category": "USER_CODE", "message": LONG, "stackTrace": LONG}, output=1)
    assert (answer.status_code, answer.json().get("finalState")) == (200, "SUCCEEDED")


async def test_a_failure_whose_text_holds_half_a_character_is_recorded(world: World) -> None:
    attempt = await world.started()
    body = (
        rb'{"attempt": 1, "workerId": "w", "outcome": "FAILED", "error": '
        rb'{"category": "USER_CODE", "message": "no such file: caf\udce9\u0000", "retryable": false}}'
    )
    answer = await attempt.send("completed", body)
    assert answer.status_code == 200, answer.text
    error = (await world.task(attempt)).error
    assert error is not None
    assert error.message == "no such file: caf\ufffd\ufffd"


async def test_integers_may_be_written_with_a_fraction_of_zero(world: World) -> None:
    attempt = await world.dispatched()
    assert (await attempt.send("started", b'{"attempt": 1.0, "workerId": "w"}')).status_code == 200
    assert (
        await attempt.send("heartbeat", b'{"attempt": 1e0, "workerId": "w", "progressPct": 45.0}')
    ).status_code == 200
    body = b'{"attempt": 1.0, "workerId": "w", "outcome": "SUCCEEDED", "output": {"ratio": 1.0}}'
    assert (await attempt.send("completed", body)).status_code == 200
    assert (await world.task(attempt)).result == b'{"ratio":1.0}'
