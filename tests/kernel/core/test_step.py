"""The rules of a workflow's record: the fence, the first record wins, and each wait is decided once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast
from uuid import UUID

import msgspec
import pytest
from msgspec.structs import replace
from tests.kernel.core.given import (
    CRASH,
    FATAL,
    LEASE,
    NOW,
    OTHER_CRASH,
    OTHER_LEASE,
    TASK_ID,
    TERMINAL,
    at,
    lost,
    parked,
    queued,
    running,
    sleeping,
    succeeded,
)

from windlass.core import step as rules
from windlass.core.command import Sleep
from windlass.core.failure import Category
from windlass.core.retry import Policy
from windlass.core.states import Instant, State, Transition
from windlass.core.step import ConsumeSignal, Place, Signal, Step, StepCommandContext, StepKind, StepState
from windlass.core.step_command import (
    SendSignal,
    StepChild,
    StepCommand,
    StepFailure,
    StepResult,
    StepSignal,
    StepSleep,
    StepTime,
)
from windlass.core.task import Outcome, Task
from windlass.errors import InvalidState, LeaseLost, NotFound

PLACE = Place(0, "pay")
CHILD = UUID(int=0xC41D)
SIGNAL = Signal(UUID(int=0x516), TASK_ID, "approval", b'"yes"', NOW)

SAID: dict[str, Callable[..., StepCommand]] = {
    "result": lambda *held: StepResult(*held, place=PLACE, result=b"42"),
    "failure": lambda *held: StepFailure(*held, PLACE, failure=CRASH, failures=1),
    "sleep": lambda *held: StepSleep(*held, place=PLACE, delay_s=60.0),
    "time": lambda *held: StepTime(*held, place=PLACE),
    "signal": lambda *held: StepSignal(*held, PLACE, signal="approval"),
    "child": lambda *held: StepChild(*held, PLACE, child_id=CHILD),
}


def said(what: str, attempt: int = 1, lease_id: UUID = LEASE) -> StepCommand:
    return SAID[what](TASK_ID, attempt, lease_id)


def decide(
    command: Any, task: Task | None = None, context: StepCommandContext | None = None, now: Instant = NOW
) -> Transition:
    return command.decide_with(task or running(), context or StepCommandContext(), now)


def recorded(
    command: Any, task: Task | None = None, context: StepCommandContext | None = None, now: Instant = NOW
) -> Step:
    move = decide(command, task, context, now)
    assert not move.changed, "the task's row is not written for a step"
    [step] = move.writes
    assert isinstance(step, Step)
    return step


# ------------------------------------------------------------------------------------------------- the fence


@pytest.mark.parametrize("what", SAID)
def test_a_superseded_attempt_records_nothing(what: str) -> None:
    second = replace(running(), attempt=2)
    for held in ((1, LEASE), (2, OTHER_LEASE), (3, LEASE)):
        with pytest.raises(LeaseLost):
            decide(said(what, *held), second)


@pytest.mark.parametrize("what", SAID)
@pytest.mark.parametrize("ended", [sleeping, parked, *TERMINAL.values()])
def test_an_attempt_that_has_ended_records_nothing(what: str, ended: Callable[[], Task]) -> None:
    with pytest.raises(LeaseLost):
        decide(said(what), replace(ended(), attempt=1, lease_id=LEASE))


@pytest.mark.parametrize("what", SAID)
def test_an_attempt_whose_lease_ran_out_may_record_until_the_next_one_begins(what: str) -> None:
    assert recorded(said(what), lost()).attempt == 1


@pytest.mark.parametrize("what", SAID)
def test_the_first_record_of_a_step_wins(what: str) -> None:
    first = recorded(StepResult(TASK_ID, 1, LEASE, PLACE, b"1"))

    move = decide(said(what), running(), StepCommandContext([first]))

    assert (move.writes, move.answer) == ((), first)


def test_the_attempt_that_recorded_hears_the_same_again_also_when_it_has_ended() -> None:
    first = recorded(said("result"))

    assert decide(said("result"), succeeded(), StepCommandContext([first])).answer == first


# ------------------------------------------------------------------------------------------------- what is recorded


def test_a_result() -> None:
    step = recorded(StepResult(TASK_ID, 1, LEASE, Place(3, "pay", 2), b"42", 1.5))

    assert step == Step(
        TASK_ID, "pay", 2, 3, StepKind.STEP, StepState.SUCCEEDED, 1, NOW, took_s=1.5, result=b"42"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("failure", "failures", "most", "state"),
    [
        (CRASH, 1, 3, StepState.WAITING),
        (CRASH, 2, 3, StepState.WAITING),
        (CRASH, 3, 3, StepState.FAILED),
        (CRASH, 1, 1, StepState.FAILED),
        (FATAL, 1, 3, StepState.FAILED),
    ],
)
def test_a_failed_step_is_tried_again_within_its_own_budget(
    failure: Any, failures: int, most: int, state: StepState
) -> None:
    policy = Policy(max_attempts=most, retry_delay_s=10, retry_factor=3)
    known = [] if failures == 1 else [replace(recorded(said("failure")), failures=failures - 1)]

    step = recorded(
        StepFailure(TASK_ID, 1, LEASE, PLACE, failure=failure, failures=failures, policy=policy),
        None,
        StepCommandContext(known),
    )

    assert (step.state, step.failures, step.error) == (state, failures, failure)
    expected = None if state is StepState.FAILED else at(10 * 3 ** (failures - 1))
    assert step.wake_at == expected


def test_to_hear_of_a_failure_again_counts_it_once() -> None:
    once = recorded(said("failure"))

    move = decide(
        StepFailure(TASK_ID, 1, LEASE, PLACE, failure=OTHER_CRASH, failures=1), None, StepCommandContext([once])
    )

    assert (move.writes, move.answer) == ((), once)


def test_a_result_after_failures_keeps_their_number() -> None:
    once = recorded(said("failure"))

    step = recorded(said("result"), None, StepCommandContext([once]), at(5))

    assert (step.state, step.failures, step.wake_at, step.error) == (StepState.SUCCEEDED, 1, None, None)


def test_when_a_sleep_ends_is_decided_once() -> None:
    first = recorded(said("sleep"))
    assert (first.state, first.wake_at) == (StepState.WAITING, at(60))
    assert recorded(StepSleep(TASK_ID, 1, LEASE, PLACE, until=at(5))).wake_at == at(5)

    again = decide(said("sleep"), None, StepCommandContext([first]), at(30))

    assert (again.writes, again.answer) == ((), first)


def test_the_time_is_that_of_the_first_question() -> None:
    step = recorded(said("time"))

    assert msgspec.json.decode(step.result or b"", type=type(NOW)) == NOW
    assert decide(said("time"), None, StepCommandContext([step]), at(9)).answer == step


# ------------------------------------------------------------------------------------------------- signals


def test_a_signal_that_was_sent_before_is_consumed_at_once() -> None:
    move = decide(said("signal"), None, StepCommandContext(signals=[SIGNAL]))

    step, consumed = move.writes
    assert consumed == ConsumeSignal(SIGNAL)
    assert step == move.answer
    assert isinstance(step, Step)
    assert (step.state, step.result) == (StepState.SUCCEEDED, SIGNAL.payload)


def test_each_signal_is_for_one_wait_first_come_first_served() -> None:
    second = replace(SIGNAL, id=UUID(int=2), payload=b"2")
    context = StepCommandContext(signals=[SIGNAL, second])
    got = []
    for position in range(3):
        ask = StepSignal(TASK_ID, 1, LEASE, Place(position, "signal:approval", position + 1), signal="approval")
        move = decide(ask, None, context)
        context.note(move)
        got.append(cast("Step", move.answer).result)

    assert got == [SIGNAL.payload, b"2", None]


def test_a_wait_for_a_signal_ends_in_time() -> None:
    ask = StepSignal(TASK_ID, 1, LEASE, PLACE, signal="approval", timeout_s=60)
    waiting = recorded(ask)
    assert (waiting.state, waiting.wake_at) == (StepState.WAITING, at(60))
    assert decide(ask, None, StepCommandContext([waiting]), at(59)).answer == waiting

    late = recorded(ask, None, StepCommandContext([waiting]), at(60))

    assert late.state is StepState.FAILED
    assert late.error is not None
    assert (late.error.category, late.error.reason) == (Category.TIMEOUT, "SIGNAL_TIMEOUT")


def test_a_signal_that_is_there_is_not_too_late() -> None:
    ask = StepSignal(TASK_ID, 1, LEASE, PLACE, signal="approval", timeout_s=60)
    waiting = recorded(ask)

    move = decide(ask, None, StepCommandContext([waiting], [SIGNAL]), at(61))

    assert cast("Step", move.answer).state is StepState.SUCCEEDED


SEND = SendSignal(TASK_ID, SIGNAL.id, "approval", SIGNAL.payload)


@pytest.mark.parametrize("task", [queued(), running(), parked()])
def test_a_signal_is_kept_for_who_does_not_wait_yet(task: Task) -> None:
    move = decide(SEND, task)

    assert (move.changed, move.writes) == (False, (SIGNAL,))


def test_a_signal_wakes_a_workflow_that_sleeps_for_it() -> None:
    move = decide(SEND, sleeping(), StepCommandContext(awaited=[(TASK_ID, "approval")]))

    assert (move.after.state, move.writes) == (State.QUEUED, (SIGNAL,))


def test_a_signal_that_nobody_waits_for_disturbs_no_sleep() -> None:
    assert not decide(SEND, sleeping(), StepCommandContext(awaited=[(TASK_ID, "other")])).changed


@pytest.mark.parametrize("ended", TERMINAL.values())
def test_who_has_ended_takes_no_signal(ended: Callable[[], Task]) -> None:
    with pytest.raises(InvalidState):
        decide(SEND, ended())


def test_who_waits_in_the_same_batch_is_seen_to_wait() -> None:
    context = StepCommandContext()
    ask = StepSignal(TASK_ID, 1, LEASE, Place(0, "signal:approval"), signal="approval")
    context.note(decide(ask, None, context))

    assert decide(SEND, sleeping(), context).after.state is State.QUEUED


# ------------------------------------------------------------------------------------------------- no lost wake-up


@pytest.mark.parametrize(
    ("context", "state"),
    [
        (StepCommandContext(), State.SLEEPING),
        (StepCommandContext(signals=[SIGNAL]), State.QUEUED),
        (StepCommandContext(signals=[replace(SIGNAL, name="other")]), State.SLEEPING),
    ],
)
def test_a_workflow_does_not_sleep_over_a_signal_that_came_since_it_looked(
    context: StepCommandContext, state: State
) -> None:
    after = decide(Sleep(TASK_ID, 1, LEASE, None, ("approval",)), None, context).after

    assert (after.state, after.outcome, after.failures, after.losses) == (state, Outcome.SLEPT, 0, 0)


@pytest.mark.parametrize(
    ("children", "state"),
    [([queued], State.SLEEPING), ([running], State.SLEEPING), ([succeeded], State.QUEUED), ([], State.QUEUED)],
)
def test_a_workflow_does_not_sleep_over_a_child_that_has_ended(children: Any, state: State) -> None:
    context = StepCommandContext(children=[replace(child(), id=CHILD) for child in children])

    assert decide(Sleep(TASK_ID, 1, LEASE, None, (), (CHILD,)), None, context).after.state is state


# ------------------------------------------------------------------------------------------------- children


@pytest.mark.parametrize(
    ("child", "state"),
    [
        (queued, StepState.WAITING),
        (running, StepState.WAITING),
        (succeeded, StepState.SUCCEEDED),
        (TERMINAL["failed"], StepState.FAILED),
        (TERMINAL["cancelled"], StepState.FAILED),
    ],
)
def test_what_became_of_a_child_is_recorded_when_it_has_ended(child: Callable[[], Task], state: StepState) -> None:
    there = replace(child(), id=CHILD)

    step = recorded(said("child"), None, StepCommandContext(children=[there]))

    assert (step.state, step.child_id, step.result, step.error) == (state, CHILD, there.result, there.error)


def test_a_child_that_is_gone_has_failed() -> None:
    step = recorded(said("child"))

    assert step.state is StepState.FAILED
    assert step.error is not None
    assert step.error.reason == "GONE"


@pytest.mark.parametrize("ended", TERMINAL.values())
def test_the_end_of_a_child_is_told_to_its_workflow(ended: Callable[..., Task]) -> None:
    from windlass.core import task as task_rules

    parent = UUID(int=7)
    child = running(parent_id=parent)
    effects = task_rules.complete(child, 1, LEASE, b"1", NOW).effects

    assert [(effect.kind, effect.body) for effect in effects] == [("wake", {"parent_id": str(parent)})]


# ------------------------------------------------------------------------------------------------- fork


def step(position: int, name: str, **fields: Any) -> Step:
    made = Step(TASK_ID, name, 1, position, StepKind.STEP, StepState.SUCCEEDED, 1, NOW, result=b"1")
    return replace(made, **fields)


FORK = UUID(int=0xF0)


def test_a_fork_keeps_what_was_done_before_a_step() -> None:
    steps = [
        step(0, "a"),
        step(1, "nap", kind=StepKind.SLEEP, state=StepState.WAITING, wake_at=NOW),
        step(2, "b"),
        step(3, "c", state=StepState.WAITING),
        step(4, "d"),
    ]

    kept = rules.kept_by_fork(steps, "d", 1, FORK, NOW + timedelta(seconds=1))

    assert {s.task_id for s in kept} == {FORK}
    assert [s.name for s in kept] == ["a", "nap", "b", "origin"]


def test_a_fork_of_a_fork_remembers_the_first() -> None:
    first = rules.kept_by_fork([step(0, "a"), step(1, "b")], "b", 1, FORK, NOW)
    again = rules.kept_by_fork([*first, step(1, "b", task_id=FORK)], "b", 1, UUID(int=1), NOW)

    [origin] = [s for s in again if s.kind is StepKind.ORIGIN]
    assert UUID(msgspec.json.decode(origin.result or b"")) == TASK_ID


def test_a_fork_needs_a_step_that_was_recorded() -> None:
    with pytest.raises(NotFound, match="no record of step b"):
        rules.kept_by_fork([step(0, "a")], "b", 1, FORK, NOW)
