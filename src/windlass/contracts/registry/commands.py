"""Commands of workers that need not name their attempt. Each is a value that knows its rule.

Like the reports of `core.command`, they are decided under the lock of the task's row and may be repeated.
"""

from __future__ import annotations

from uuid import UUID

from msgspec.structs import replace

from windlass.contracts.registry import rules
from windlass.contracts.registry.rules import AttemptState, RunCredential, StepAttempt, StepAttemptContext
from windlass.core.attempt import AttemptReport
from windlass.core.context import CommandWithContext
from windlass.core.failure import Failure
from windlass.core.states import Instant, Transition
from windlass.core.task import Task


class WorkflowReport(AttemptReport[RunCredential], frozen=True):
    """The workflow returned or failed. The rule decides whether a failure is retried. If the run was cancelled, the
    report is refused, which notifies the worker, and the run ends as cancelled."""

    def follow(self, task: Task, now: Instant) -> Transition:
        return rules.stopped(task, now) or self.judge(task, now)


class _OnWorkflow(CommandWithContext, frozen=True):
    context = StepAttemptContext

    credential: RunCredential

    @property
    def task_id(self) -> UUID:
        return self.credential.task_id

    def decide_with(self, task: Task, context: StepAttemptContext, now: Instant) -> Transition:
        self.credential.check(task, now)
        return rules.stopped(task, now) or self.follow(task, context, now)

    def follow(self, task: Task, context: StepAttemptContext, now: Instant) -> Transition:
        raise NotImplementedError


class WorkflowSleep(_OnWorkflow, frozen=True):
    """The workflow sleeps for `duration_s` seconds, by the clock of the database."""

    duration_s: float

    def follow(self, task: Task, context: StepAttemptContext, now: Instant) -> Transition:
        began = context.open_attempt(task.id, task.attempt)
        return rules.sleep(task, began, context.next_position(task.id), self.duration_s, now)


class _OnStep(_OnWorkflow, frozen=True):
    name: str
    occurrence: int


class StepBegin(_OnStep, frozen=True):
    """A step starts. `wanted` is the new step attempt, with its id and the fields that the worker sent."""

    wanted: StepAttempt

    def follow(self, task: Task, context: StepAttemptContext, now: Instant) -> Transition:
        record = context.record(task.id, self.name, self.occurrence)
        return rules.begin(task, record, self.wanted, now, exact=self.credential.exact)


class StepComplete(_OnStep, frozen=True):
    result: bytes
    new_id: UUID

    def follow(self, task: Task, context: StepAttemptContext, now: Instant) -> Transition:
        record = context.record(task.id, self.name, self.occurrence)
        return rules.complete(task, record, self.result, now, self.new_id)


class StepFail(_OnStep, frozen=True):
    failure: Failure
    new_id: UUID
    jitter: float = 0.0

    def follow(self, task: Task, context: StepAttemptContext, now: Instant) -> Transition:
        record, failure = context.record(task.id, self.name, self.occurrence), self.failure
        latest = record.latest
        final = latest.final if latest is not None and latest.state is AttemptState.RUNNING else ()
        if failure.message.startswith(final):
            failure = replace(failure, retryable=False)
        return rules.fail(task, record, failure, now, self.jitter, self.new_id)


StepTry = StepBegin | StepComplete | StepFail
WorkflowCommand = WorkflowReport | WorkflowSleep | StepTry
