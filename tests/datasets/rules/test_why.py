"""Why a partition is not there: the first thing that is true, in a fixed order."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec
import pytest

from windlass.datasets.rules.why import Because, Facts, InputState, Missing, TaskState, why

TASK = UUID(int=1)


def given(newest: int | None = 1, made: int | None = None, name: str = "ranges", **changes: Any) -> InputState:
    return InputState(**{"name": name, "partition_key": "0-999", "newest": newest, "made": made} | changes)


def facts(**changes: Any) -> Facts:
    return Facts(**{"job": "compact", "partition_key": "0-999", "inputs": (given(),)} | changes)


def task(state: str) -> TaskState:
    return TaskState(TASK, state, 3, 3, "connection refused")


DONE = {"has_result": True, "inputs": (given(2, 2),)}
STALE = {"has_result": True, "inputs": (given(2, 1, given=1),)}
ABSENT = {"inputs": (given(None),)}
# Each row is true of the words below it too, unless it is alone: the order decides.
ALL: dict[str, Any] = {"live": False, "task": task("running"), "paused": True, "held_by": "compact"}


@pytest.mark.parametrize(
    ("known", "because", "state"),
    [
        (ALL | DONE, "not_live", "committed"),
        (ALL | DONE | {"live": True}, "committed", "committed"),
        (ALL | STALE | {"live": True}, "running", "running"),
        (ALL | STALE | {"live": True, "task": task("queued")}, "queued", "running"),
        (ALL | STALE | {"live": True, "task": task("failed")}, "failed", "stale"),
        (ALL | ABSENT | {"live": True, "task": task("failed")}, "failed", "failed"),
        (ALL | ABSENT | {"live": True, "task": None}, "paused", "missing"),
        (ALL | ABSENT | {"live": True, "task": task("cancelled")}, "paused", "missing"),
        (ALL | ABSENT | {"live": True, "task": None, "paused": False}, "held", "missing"),
        (ABSENT, "waiting_for_input", "missing"),
        ({"inputs": (given(1, given=1),)}, "not_owed", "missing"),
        ({"inputs": (given(1, given=1),), "task": task("succeeded")}, "not_owed", "missing"),
        ({"inputs": ()}, "not_owed", "missing"),
        ({"inputs": (given(2, given=1),)}, "queued", "missing"),  # owed, and its task is not made yet
        (STALE, "queued", "stale"),
        (STALE | {"task": task("succeeded")}, "queued", "stale"),
        (DONE, "committed", "committed"),
        (DONE | {"inputs": (given(2, 2), given(None, name="other"))}, "committed", "committed"),
        (DONE | {"task": task("failed")}, "committed", "committed"),
        ({"has_result": True, "inputs": (given(2, 2), given(1, None, name="other"))}, "queued", "stale"),
    ],
)
def test_the_first_thing_that_is_true_is_the_answer(known: dict[str, Any], because: str, state: str) -> None:
    found = why(facts(**known))

    assert (found.because, found.state) == (because, state)
    of_task = known.get("task") is not None and known["task"].state == because
    assert found.task_id == (TASK if of_task else None)
    assert found.detail


@pytest.mark.parametrize(
    ("inputs", "needs_all", "missing"),
    [
        ([("a", "0-9", 1), ("b", "0-9", None)], False, None),
        ([("a", "0-9", 1), ("b", "0-9", None)], True, [("b", "0-9")]),
        ([("a", "0-9", None), ("b", "0-9", None)], False, [("a", "0-9"), ("b", "0-9")]),
        ([("a", "0-4", 1), ("a", "5-9", None)], False, [("a", "5-9")]),  # one of the parts that it is made from
        ([("a", "0-4", 1), ("a", "5-9", None), ("b", "0-9", 1)], False, None),
        ([("a", "0-4", 1), ("a", "5-9", None), ("b", "0-9", 1)], True, [("a", "5-9")]),
    ],
)
def test_it_waits_for_the_inputs_that_it_needs(
    inputs: list[tuple[str, str, int | None]], needs_all: bool, missing: list[tuple[str, str]] | None
) -> None:
    states = tuple(InputState(name=name, partition_key=key, newest=newest) for name, key, newest in inputs)
    found = why(facts(inputs=states, needs_all=needs_all))

    assert found.because is (Because.QUEUED if missing is None else Because.WAITING_FOR_INPUT)
    assert found.missing == tuple(Missing(*each) for each in missing or ())


@pytest.mark.parametrize(
    ("known", "detail"),
    [
        ({"inputs": (given(None, cause="task failed 2 of 3: connection refused"),)},
         "ranges has not committed 0-999 (task failed 2 of 3: connection refused)"),
        ({"inputs": (given(None), given(None, name="follow"))},
         "ranges has not committed 0-999; follow has not committed 0-999"),
        ({"task": task("failed")},
         "the task of partition 0-999 of compact failed for good after 3 of 3 attempts: connection refused"),
        ({"task": TaskState(TASK, "failed")}, "the task of partition 0-999 of compact failed for good"),
        ({"held_by": "report"}, "compact gets no tasks: report has too many that wait"),
        ({"paused": True}, "the DAG of compact is paused"),
        ({"live": False}, "compact is in no deployment that is active, building or ready"),
        ({}, "partition 0-999 of compact is owed; its task will be made"),
        ({"inputs": ()}, "nothing has started partition 0-999 of compact"),
        ({"partition_key": "", "inputs": ()}, "nothing has started compact"),
        ({"partition_key": "", "inputs": (), "has_result": True}, "compact has succeeded"),
        ({"partition_key": "", **DONE}, "compact has read all updates of its inputs"),
        ({"partition_key": "", "inputs": (given(None, partition_key="", cause="task 1 is running"),)},
         "ranges has no data yet (task 1 is running)"),
    ],
)  # fmt: skip
def test_the_detail_says_what_to_check(known: dict[str, Any], detail: str) -> None:
    assert why(facts(**known)).detail == detail


def test_the_answer_is_what_the_api_gives() -> None:
    assert msgspec.json.decode(msgspec.json.encode(why(facts(inputs=(given(None),))))) == {
        "state": "missing", "because": "waiting_for_input", "detail": "ranges has not committed 0-999",
        "missing": [{"name": "ranges", "partition_key": "0-999"}],
    }  # fmt: skip
