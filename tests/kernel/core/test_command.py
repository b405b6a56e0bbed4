"""Each command carries what was said to its rule, and nothing else."""

from __future__ import annotations

import pytest
from tests.kernel.core.given import CRASH, LEASE, MISMATCH, TASK_ID, at, parked, running, sleeping

from windlass.core import command, task
from windlass.core.states import Transition
from windlass.core.task import Task

SAID: list[tuple[command.Command, Task, Transition]] = [
    (command.Complete(TASK_ID, 1, LEASE, b"1"), running(), task.complete(running(), 1, LEASE, b"1", at(3))),
    (command.Fail(TASK_ID, 1, LEASE, CRASH, 0.5), running(), task.fail(running(), 1, LEASE, CRASH, at(3), 0.5)),
    (command.Cancelled(TASK_ID, 1, LEASE, "off"), running(), task.report_cancelled(running(), 1, LEASE, "off", at(3))),
    (command.Sleep(TASK_ID, 1, LEASE, at(9)), running(), task.sleep(running(), 1, LEASE, at(9), at(3))),
    (command.Release(TASK_ID, 1, LEASE), running(), task.release(running(), 1, LEASE, at(3))),
    (command.Park(TASK_ID, 1, LEASE, MISMATCH), running(), task.park(running(), 1, LEASE, MISMATCH, at(3))),
    (command.Cancel(TASK_ID, "why"), running(), task.cancel(running(), "why", at(3))),
    (command.Cancel(TASK_ID, "why", force=True), running(), task.cancel(running(), "why", at(3), force=True)),
    (command.Wake(TASK_ID), sleeping(), task.wake(sleeping(), at(3))),
    (command.Resume(TASK_ID), parked(), task.resume(parked(), at(3))),
]


@pytest.mark.parametrize(("said", "before", "expected"), SAID, ids=[type(said).__name__ for said, _, _ in SAID])
def test_a_command_decides_as_its_rule_does(said: command.Command, before: Task, expected: Transition) -> None:
    assert said.task_id == before.id
    assert said.decide(before, at(3)) == expected
    assert said.decide(before, at(3)) == expected, "a batch that is run again decides the same"
