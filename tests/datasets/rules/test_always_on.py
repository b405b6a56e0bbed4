"""Jobs that always run: when their task is started and drained, and how they are shown."""

from __future__ import annotations

from uuid import UUID

import pytest

from windlass.core.failure import Category, Failure
from windlass.core.retry import JITTER_SHARE, retry_delay_s
from windlass.core.states import State
from windlass.core.task import Outcome
from windlass.datasets.rules.always_on import (
    ALWAYS_ON,
    PAUSED,
    POLICY,
    RESTART_S,
    AlwaysOnTask,
    Condition,
    Step,
    condition,
    next_task,
    step,
)
from windlass.datasets.rules.dag import Activation, Job, Limits, Runtime, Source, SourceKind
from windlass.datasets.rules.job import LEFT, JobRef
from windlass.datasets.rules.owed import next_task_id, task_id_of

ID = UUID(int=7)
JOB = Job(
    name="follow", activation=Activation.SOURCE, runtime=Runtime.ECS_PLATFORM, operator="follower", outputs=0,
    source=Source(SourceKind.ALWAYS_ON), limits=Limits(max_attempts=2, timeout_seconds=60),
)  # fmt: skip
REF = JobRef(UUID(int=1), UUID(int=2), "default", "chain", "follow", "platform", JOB, [], [])


def task(state: State | None, outcome: Outcome | None = None, cancel: str | None = None) -> AlwaysOnTask:
    return AlwaysOnTask(ID, state, outcome, cancel)


RUNNING, WAITING = task(State.RUNNING), task(State.QUEUED, Outcome.LOST)
DRAINING, DRAINED = task(State.RUNNING, None, PAUSED), task(State.CANCELLED, Outcome.CANCELLED, PAUSED)
ENDED, FORGOTTEN = task(State.SUCCEEDED, Outcome.SUCCEEDED), task(None)


@pytest.mark.parametrize(
    ("newest", "paused", "held", "waits", "expected"),
    [
        (None, False, False, False, Step.START),
        (None, True, False, False, Step.NOTHING),
        (None, False, True, False, Step.NOTHING),
        (None, False, False, True, Step.NOTHING),
        (RUNNING, False, False, False, Step.NOTHING),
        (RUNNING, False, True, False, Step.NOTHING),
        (RUNNING, True, False, False, Step.DRAIN),
        (WAITING, False, False, False, Step.NOTHING),
        (WAITING, True, False, False, Step.DRAIN),
        (DRAINING, True, False, False, Step.NOTHING),
        (DRAINING, False, False, False, Step.NOTHING),
        (DRAINED, True, False, False, Step.NOTHING),
        (DRAINED, False, False, False, Step.START),
        (DRAINED, False, False, True, Step.NOTHING),
        (ENDED, False, False, False, Step.START),
        (FORGOTTEN, False, False, False, Step.START),
    ],
)
def test_what_is_done_about_a_job(
    newest: AlwaysOnTask | None, paused: bool, held: bool, waits: bool, expected: Step
) -> None:
    assert step(newest, paused=paused, held=held, waits=waits) is expected


def test_the_first_task_has_the_id_of_its_job_and_no_limits() -> None:
    made = next_task(REF, None)

    assert made.id == task_id_of(REF.job_id, ALWAYS_ON)
    assert (made.policy.unlimited, made.policy.timeout_s, made.delay_s) == (True, None, 0)


@pytest.mark.parametrize(
    ("last", "delay_s"),
    [
        (DRAINED, 0),
        (task(State.CANCELLED, None, LEFT), 0),
        (task(State.FAILED, Outcome.TIMED_OUT, PAUSED), 0),
        (task(State.CANCELLED, None, "by hand"), RESTART_S),
        (ENDED, RESTART_S),
        (FORGOTTEN, RESTART_S),
    ],
)
def test_the_task_after_one_that_has_ended_has_an_id_of_its_own(last: AlwaysOnTask, delay_s: float) -> None:
    made = next_task(REF, last)

    assert (made.id, made.delay_s) == (next_task_id(ID), delay_s)


def test_a_restart_waits_for_a_minute_at_most() -> None:
    crash = Failure(Category.CONFIGURATION, "no")
    waits = [retry_delay_s(POLICY, crash, failures, 0.999) for failures in (1, 2, 5, 100, 10_000)]

    assert waits == sorted(waits)
    assert waits[0] < 1 + JITTER_SHARE
    assert 50 <= waits[-1] <= 60


@pytest.mark.parametrize(
    ("newest", "shown"),
    [
        (None, Condition.PENDING),
        (task(State.QUEUED), Condition.PENDING),
        (task(State.QUEUED, Outcome.RELEASED), Condition.PENDING),
        (RUNNING, Condition.RUNNING),
        (DRAINING, Condition.DRAINING),
        (DRAINED, Condition.PENDING),
        (WAITING, Condition.DEAD),
        (task(State.QUEUED, Outcome.FAILED), Condition.DEAD),
        (ENDED, Condition.DEAD),
        (task(State.CANCELLED, None, "by hand"), Condition.DEAD),
        (FORGOTTEN, Condition.DEAD),
    ],
)
def test_how_a_job_is_shown(newest: AlwaysOnTask | None, shown: Condition) -> None:
    assert condition(newest) is shown
