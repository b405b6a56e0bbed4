"""Machines: names that are made from each other, and what follows from what is seen of one."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.kernel.core.given import NOW, running

from windlass.contracts.machine import rules as rules
from windlass.contracts.machine.rules import (
    Ended,
    Launched,
    MachineCredential,
    MachineReport,
    MachineStatus,
    NotLaunched,
    Phase,
)
from windlass.core.lease_token import lease_token
from windlass.core.states import State
from windlass.core.task import Cancel, Outcome, Task
from windlass.errors import Conflict, LeaseLost

FORMATS = st.from_regex(rules.FORMAT, fullmatch=True)
RESULT = b'{"object_key":"k","file_name":"k","file_size":1}'


def report(task: Task, result: bytes) -> MachineReport:
    return MachineReport(MachineCredential(task.id, task.attempt), Outcome.SUCCEEDED, result, worker="m")


@given(FORMATS, st.integers(0, 2**48 - 1), st.integers(0, 2**32 - 1))
def test_an_export_is_known_by_its_name_and_by_its_id(format_: str, ms: int, randomness: int) -> None:
    id_ = rules.export_task_id(format_, ms, randomness)
    name = rules.export_name(id_, format_)

    assert id_.version == 7
    assert name == f"export_{format_}_{ms}_{randomness:08x}"
    assert rules.read_export_name(name) == id_


@given(st.uuids(), st.text(max_size=20))
def test_a_task_that_was_not_made_under_such_a_name_is_called_by_its_id(id_: UUID, kind: str) -> None:
    assert rules.export_name(id_, kind) == str(id_)


@pytest.mark.parametrize(
    "name",
    [
        "", "export_mods_1_0", "export__1_00000000", "export_mods_281474976710656_00000000", "export_mods_1_0000000G",
        "xexport_mods_1_00000000", "export_mods_1_00000000\n",
    ],
)  # fmt: skip
def test_what_is_no_name_is_none(name: str) -> None:
    assert rules.read_export_name(name) is None


@given(st.uuids(), st.integers(1, 10**8))
def test_a_machine_is_known_by_its_name(id_: UUID, attempt: int) -> None:
    name = rules.machine_name(id_, attempt)

    assert rules.read_machine_name(name) == (id_, attempt)
    assert len(name) <= 63  # a label of DNS, which Kubernetes and Fly.io want


# --------------------------------------------------------------------------------------------- what follows


def launched(**changes: object) -> Task:
    task = running()
    return replace(task, lease_id=lease_token(7, "machine"), **changes)


def seen(**fields: object) -> MachineStatus:
    return MachineStatus(**{"name": "m", "id": "m", "phase": Phase.EXITED, **fields})  # type: ignore[arg-type]


def test_a_machine_becomes_the_worker_of_its_attempt() -> None:
    task = launched(worker=None)
    made = Launched(task.id, task.attempt, "m", {"launcher": "process"}).decide(task, NOW)

    assert (made.after.worker, made.history[0].what) == ("m", "launched")
    assert not Launched(task.id, task.attempt, "other").decide(made.after, NOW).changed


def test_a_machine_of_an_attempt_that_is_over_is_not_its_worker() -> None:
    task = launched(attempt=2, worker=None)
    with pytest.raises(LeaseLost):
        Launched(task.id, 1, "m").decide(task, NOW)


def test_one_that_called_back_before_its_launch_was_answered_changes_nothing() -> None:
    task = launched(worker=None)
    ended = report(task, RESULT).decide(task, NOW).after

    assert not Launched(task.id, task.attempt, "m").decide(ended, NOW).changed


def test_a_launch_that_failed_is_a_loss_unless_the_machine_is_there_after_all() -> None:
    task = launched(worker=None)
    made = NotLaunched(task.id, task.attempt, "LAUNCH_FAILED", "no such image").decide(task, NOW)

    assert (made.after.losses, made.after.error.message) == (1, "no such image")  # type: ignore[union-attr]
    assert not NotLaunched(task.id, task.attempt, "LAUNCH_FAILED", "x").decide(launched(worker="m"), NOW).changed


def test_the_first_callback_counts_and_the_same_again_changes_nothing() -> None:
    task = launched(worker="m")
    ended = report(task, RESULT).decide(task, NOW).after
    again = report(task, RESULT).decide(ended, NOW)
    other = report(task, b'{"object_key":"other"}').decide(ended, NOW)

    assert ended.state is State.SUCCEEDED
    assert (again.changed, again.refusal) == (False, None)
    assert isinstance(other.refusal, Conflict)
    assert not other.changed


@pytest.mark.parametrize(
    ("sighting", "result", "state", "reason"),
    [
        (seen(exit_code=0), RESULT, State.SUCCEEDED, None),
        (seen(exit_code=0), None, State.QUEUED, "NO_OBJECT"),
        (seen(exit_code=1), None, State.QUEUED, "EXIT_CODE"),
        (seen(exit_code=1), RESULT, State.SUCCEEDED, None),  # whether it left what it was to make is for who looked
        (seen(exit_code=-9), None, State.QUEUED, "MACHINE_KILLED"),
        (seen(exit_code=-9, reason=rules.OUT_OF_MEMORY), None, State.QUEUED, "OUT_OF_MEMORY"),
        (seen(reason=rules.TIME_LIMIT), None, State.QUEUED, "TIME_LIMIT"),
        (seen(), None, State.QUEUED, "MACHINE_LOST"),
        (None, None, State.QUEUED, "MACHINE_VANISHED"),
    ],
)
def test_what_is_seen_of_a_machine_decides_its_attempt(
    sighting: MachineStatus | None, result: bytes | None, state: State, reason: str | None
) -> None:
    task = launched(worker="m")
    after = Ended(task.id, task.attempt, sighting, result).decide(task, NOW).after

    assert after.state is state
    assert (after.error.reason if after.error else None) == reason


def test_a_machine_that_runs_on_is_a_timeout_when_its_time_is_over() -> None:
    task = launched(worker="m")
    after = Ended(task.id, task.attempt, seen(phase=Phase.RUNNING), overdue_s=600.0).decide(task, NOW).after

    assert after.error is not None
    assert (after.error.reason, after.error.message) == ("CALLBACK_TIMEOUT", "no callback within 600 s")


def test_a_cancelled_machine_ends_as_cancelled_unless_it_was_done() -> None:
    task = launched(worker="m", cancel=Cancel(NOW, "not wanted"))

    assert Ended(task.id, task.attempt, None).decide(task, NOW).after.state is State.CANCELLED
    assert Ended(task.id, task.attempt, seen(exit_code=1)).decide(task, NOW).after.state is State.CANCELLED
    assert Ended(task.id, task.attempt, seen(exit_code=0), RESULT).decide(task, NOW).after.state is State.SUCCEEDED


def test_what_is_seen_of_an_attempt_that_is_over_changes_nothing() -> None:
    task = launched(attempt=2, worker="m")

    assert not Ended(task.id, 1, None).decide(task, NOW).changed
