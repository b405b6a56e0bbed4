"""What a worker says over a wire on which it need not name its attempt, each as a value that knows its rule.

Like the reports (`core.command`) they are decided under the lock of the task's row, and may be said twice.
"""

from __future__ import annotations

from typing import get_args
from uuid import UUID

import msgspec
from msgspec.structs import replace

from windlass.core import step_attempt as rules
from windlass.core import task as task_rules
from windlass.core.check import check_name, check_payload, check_seconds
from windlass.core.command import Informed, storable
from windlass.core.failure import Failure
from windlass.core.step import Facts, Place
from windlass.core.step_attempt import AttemptState, Holder, StepAttempt
from windlass.core.task import Task
from windlass.core.transition import Instant, Transition

SLEEP_MAX_S = 30 * 86400.0


class WorkflowComplete(msgspec.Struct, frozen=True):
    """The workflow returned."""

    task_id: UUID
    holder: Holder
    result: bytes

    def decide(self, task: Task, now: Instant) -> Transition:
        held = rules.held_by(task, self.holder)
        return rules.stopped(task, now) or task_rules.complete(task, *held, self.result, now)


class WorkflowFail(msgspec.Struct, frozen=True):
    """The workflow failed. Whether another try follows is decided by the rule."""

    task_id: UUID
    holder: Holder
    failure: Failure
    jitter: float = 0.0

    def decide(self, task: Task, now: Instant) -> Transition:
        held = rules.held_by(task, self.holder)
        return rules.stopped(task, now) or task_rules.fail(task, *held, self.failure, now, self.jitter)


class _OnWorkflow(Informed, frozen=True):
    task_id: UUID
    holder: Holder


class WorkflowSleep(_OnWorkflow, frozen=True):
    """The workflow sleeps for a while, by the database's clock."""

    duration_s: float

    def decide_with(self, task: Task, facts: Facts, now: Instant) -> Transition:
        began = facts.open_attempt(task.id, task.attempt)
        return rules.sleep(task, self.holder, began, facts.next_position(task.id), self.duration_s, now)


class _OnStep(_OnWorkflow, frozen=True):
    name: str
    occurrence: int

    def place(self, facts: Facts) -> Place:
        return Place(facts.next_position(self.task_id), self.name, self.occurrence)


class StepBegin(_OnStep, frozen=True):
    """`wanted` is the try as it would be, with its new id and what the worker says of it."""

    wanted: StepAttempt

    def decide_with(self, task: Task, facts: Facts, now: Instant) -> Transition:
        place = self.place(facts)
        known, latest = facts.step(task.id, place), facts.attempt(task.id, place)
        return rules.begin(task, self.holder, known, latest, self.wanted, now)


class StepComplete(_OnStep, frozen=True):
    result: bytes
    new_id: UUID

    def decide_with(self, task: Task, facts: Facts, now: Instant) -> Transition:
        place = self.place(facts)
        known, latest = facts.step(task.id, place), facts.attempt(task.id, place)
        return rules.complete(task, self.holder, place, known, latest, self.result, now, self.new_id)


class StepFail(_OnStep, frozen=True):
    failure: Failure
    new_id: UUID
    jitter: float = 0.0

    def decide_with(self, task: Task, facts: Facts, now: Instant) -> Transition:
        place = self.place(facts)
        known, latest = facts.step(task.id, place), facts.attempt(task.id, place)
        final = latest.final if latest is not None and latest.state is AttemptState.RUNNING else ()
        failure = self.failure
        if any(failure.message.startswith(prefix) for prefix in final):
            failure = replace(failure, retryable=False)
        return rules.fail(task, self.holder, place, known, latest, failure, now, self.jitter, self.new_id)


StepTry = StepBegin | StepComplete | StepFail
WorkflowCommand = WorkflowComplete | WorkflowFail | WorkflowSleep | StepTry
STEP_TRIES = frozenset(get_args(StepTry))


def checked_command(said: WorkflowCommand, jitter: float) -> WorkflowCommand:
    """As it may be carried out, with its chance."""
    match said:
        case WorkflowComplete(result=result):
            check_payload("output", result)
        case WorkflowFail(failure=failure):
            return replace(said, failure=storable(failure), jitter=jitter)
        case WorkflowSleep(duration_s=duration_s):
            check_seconds("duration_seconds", duration_s, most=SLEEP_MAX_S)
        case StepBegin(name=name):
            check_name("step_id", name)
        case StepComplete(name=name, result=result):
            check_name("step_id", name)
            check_payload("output", result)
        case StepFail(name=name, failure=failure):
            check_name("step_id", name)
            return replace(said, failure=storable(failure), jitter=jitter)
    return said
