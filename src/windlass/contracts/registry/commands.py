"""Commands of workers that need not name their attempt. Each is a value that knows its rule.

Like the reports of `core.command`, they are decided under the lock of the task's row and may be repeated.
"""

from __future__ import annotations

from uuid import UUID

import msgspec
from msgspec.structs import replace

from windlass.contracts.registry import rules as rules
from windlass.contracts.registry.rules import AttemptState, RunCredential, StepAttempt, StepAttemptContext
from windlass.core.attempt import judge
from windlass.core.command import storable
from windlass.core.context import CommandWithContext
from windlass.core.failure import Failure
from windlass.core.states import Instant, Transition
from windlass.core.step import Place
from windlass.core.task import Outcome, Task
from windlass.core.validation import check_name, check_payload, check_seconds

SLEEP_MAX_S = 30 * 86400.0


class WorkflowReport(msgspec.Struct, frozen=True):
    """The workflow returned or failed. The rule decides whether a failure is retried. If the run was cancelled, the
    report is refused, which notifies the worker, and the run ends as cancelled."""

    credential: RunCredential
    outcome: Outcome
    result: bytes | None = None
    failure: Failure | None = None
    jitter: float = 0.0

    @property
    def task_id(self) -> UUID:
        return self.credential.task_id

    def decide(self, task: Task, now: Instant) -> Transition:
        self.credential.check(task, now)
        return rules.stopped(task, now) or judge(task, self.outcome, self.result, self.failure, now, self.jitter)


class _OnWorkflow(CommandWithContext, frozen=True):
    context = StepAttemptContext

    credential: RunCredential

    @property
    def task_id(self) -> UUID:
        return self.credential.task_id


class WorkflowSleep(_OnWorkflow, frozen=True):
    """The workflow sleeps for `duration_s` seconds, by the clock of the database."""

    duration_s: float

    def decide_with(self, task: Task, context: StepAttemptContext, now: Instant) -> Transition:
        began = context.open_attempt(task.id, task.attempt)
        return rules.sleep(task, self.credential, began, context.next_position(task.id), self.duration_s, now)


class _OnStep(_OnWorkflow, frozen=True):
    name: str
    occurrence: int

    def place(self, context: StepAttemptContext) -> Place:
        return Place(context.next_position(self.task_id), self.name, self.occurrence)


class StepBegin(_OnStep, frozen=True):
    """A step starts. `wanted` is the new step attempt, with its id and the fields that the worker sent."""

    wanted: StepAttempt

    def decide_with(self, task: Task, context: StepAttemptContext, now: Instant) -> Transition:
        place = self.place(context)
        known, latest = context.step(task.id, place), context.attempt(task.id, place)
        return rules.begin(task, self.credential, known, latest, self.wanted, now)


class StepComplete(_OnStep, frozen=True):
    result: bytes
    new_id: UUID

    def decide_with(self, task: Task, context: StepAttemptContext, now: Instant) -> Transition:
        place = self.place(context)
        known, latest = context.step(task.id, place), context.attempt(task.id, place)
        return rules.complete(task, self.credential, place, known, latest, self.result, now, self.new_id)


class StepFail(_OnStep, frozen=True):
    failure: Failure
    new_id: UUID
    jitter: float = 0.0

    def decide_with(self, task: Task, context: StepAttemptContext, now: Instant) -> Transition:
        place = self.place(context)
        known, latest = context.step(task.id, place), context.attempt(task.id, place)
        final = latest.final if latest is not None and latest.state is AttemptState.RUNNING else ()
        failure = self.failure
        if any(failure.message.startswith(prefix) for prefix in final):
            failure = replace(failure, retryable=False)
        return rules.fail(task, self.credential, place, known, latest, failure, now, self.jitter, self.new_id)


StepTry = StepBegin | StepComplete | StepFail
WorkflowCommand = WorkflowReport | WorkflowSleep | StepTry


def checked_command(command: WorkflowCommand, jitter: float) -> WorkflowCommand:
    """Returns the validated command with its jitter."""
    match command:
        case WorkflowReport(result=result, failure=failure):
            if result is not None:
                check_payload("output", result)
            return replace(command, failure=None if failure is None else storable(failure), jitter=jitter)
        case WorkflowSleep(duration_s=duration_s):
            check_seconds("duration_seconds", duration_s, most=SLEEP_MAX_S)
        case StepBegin(name=name):
            check_name("step_id", name)
        case StepComplete(name=name, result=result):
            check_name("step_id", name)
            check_payload("output", result)
        case StepFail(name=name, failure=failure):
            check_name("step_id", name)
            return replace(command, failure=storable(failure), jitter=jitter)
    return command
