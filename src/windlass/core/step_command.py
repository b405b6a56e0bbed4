"""What a workflow's worker says about its steps, and what a client says to a workflow, each as a value that knows its
rule.

Like the reports (`core.command`) they are decided under the lock of the task's row, and a superseded attempt changes
nothing. Each may be repeated: ids, jitter and counts were drawn before the first time.
"""

from __future__ import annotations

from datetime import timedelta
from typing import get_args
from uuid import UUID

from msgspec.structs import replace

from windlass.core import step as rules
from windlass.core.command import storable
from windlass.core.context import CommandWithContext
from windlass.core.failure import Failure
from windlass.core.retry import DEFAULT_POLICY, Policy
from windlass.core.states import Instant, Transition, Verb
from windlass.core.step import Place, Signal, StepCommandContext
from windlass.core.submission import check_policy
from windlass.core.task import Task
from windlass.core.validation import (
    check_count,
    check_instant,
    check_name,
    check_payload,
    check_seconds,
    check_type,
)
from windlass.errors import Invalid

POSITION_MAX = 1_000_000


class _AboutStep(CommandWithContext, frozen=True):
    """Which attempt speaks, and about which step."""

    context = StepCommandContext

    task_id: UUID
    attempt: int
    lease_id: UUID
    place: Place

    @property
    def held(self) -> tuple[int, UUID]:
        return (self.attempt, self.lease_id)


class StepResult(_AboutStep, frozen=True):
    """The step's function returned; `result` is JSON text."""

    result: bytes = b"null"
    took_s: float = 0.0

    def decide_with(self, task: Task, context: StepCommandContext, now: Instant) -> Transition:
        known = context.step(task.id, self.place)
        return rules.record_result(task, self.held, self.place, known, self.result, now, took_s=self.took_s)


class StepFailure(_AboutStep, frozen=True, kw_only=True):
    """The step's function failed; `failures` is which time this is. Whether another try follows is decided here."""

    failure: Failure
    failures: int
    policy: Policy = DEFAULT_POLICY
    took_s: float = 0.0
    jitter: float = 0.0

    def decide_with(self, task: Task, context: StepCommandContext, now: Instant) -> Transition:
        known = context.step(task.id, self.place)
        return rules.record_failure(
            task, self.held, self.place, known, self.failure, self.policy, self.failures, now, self.jitter,
            took_s=self.took_s,
        )  # fmt: skip


class StepSleep(_AboutStep, frozen=True):
    """The workflow wants to sleep for a while (by the database's clock) or until an instant."""

    delay_s: float = 0.0
    until: Instant | None = None

    def decide_with(self, task: Task, context: StepCommandContext, now: Instant) -> Transition:
        until = now + timedelta(seconds=self.delay_s) if self.until is None else self.until
        return rules.record_sleep(task, self.held, self.place, context.step(task.id, self.place), until, now)


class StepTime(_AboutStep, frozen=True):
    """The workflow asks what time it is."""

    def decide_with(self, task: Task, context: StepCommandContext, now: Instant) -> Transition:
        return rules.record_time(task, self.held, self.place, context.step(task.id, self.place), now)


class StepSignal(_AboutStep, frozen=True, kw_only=True):
    """The workflow asks for a signal."""

    signal: str
    timeout_s: float | None = None

    def decide_with(self, task: Task, context: StepCommandContext, now: Instant) -> Transition:
        known, pending = context.step(task.id, self.place), context.pending(task.id, self.signal)
        return rules.record_signal(task, self.held, self.place, known, pending, self.timeout_s, now)


class StepChild(_AboutStep, frozen=True, kw_only=True):
    """The workflow has submitted a child task, or asks after one."""

    child_id: UUID

    def decide_with(self, task: Task, context: StepCommandContext, now: Instant) -> Transition:
        known, child = context.step(task.id, self.place), context.child(task, self.child_id)
        return rules.record_child(task, self.held, self.place, known, self.child_id, child, now)


StepCommand = StepResult | StepFailure | StepSleep | StepTime | StepSignal | StepChild


class SendSignal(CommandWithContext, frozen=True):
    """A client sends a signal. The same id again is the same signal."""

    context = StepCommandContext

    task_id: UUID
    signal_id: UUID
    name: str
    payload: bytes

    def decide_with(self, task: Task, context: StepCommandContext, now: Instant) -> Transition:
        if self.signal_id in context.sent:
            return Transition(Verb.NOTE, task, task)  # the same once more, whatever has become of the task since
        signal = Signal(self.signal_id, task.id, self.name, self.payload, now)
        return rules.send_signal(task, signal, (task.id, self.name) in context.awaited)


STEP_COMMANDS = frozenset(get_args(StepCommand))  # tested by the exact type, which is cheap


def checked_step(command: StepCommand, jitter: float) -> StepCommand:
    """As it may be carried out, with its chance. Raises Invalid for what nobody can have meant."""
    if type(command) not in STEP_COMMANDS:
        raise Invalid(f"must be about a step, not {type(command).__name__}", field="command")
    check_type("task_id", command.task_id, UUID)
    check_type("lease_id", command.lease_id, UUID)
    check_count("attempt", command.attempt, least=1, most=2**31 - 1)
    check_place(command.place)
    if type(command) is StepResult:  # nearly all
        check_payload("result", command.result)
        check_seconds("took_s", command.took_s)
        return command
    return _checked_rare(command, jitter)


def _checked_rare(command: StepCommand, jitter: float) -> StepCommand:
    match command:
        case StepFailure():
            check_count("failures", command.failures, least=1)
            check_policy(command.policy)
            check_seconds("took_s", command.took_s)
            return replace(command, failure=storable(command.failure), jitter=jitter)
        case StepSleep():
            check_seconds("delay_s", command.delay_s)
            if command.until is not None:
                check_instant("until", command.until)
        case StepSignal():
            check_name("signal", command.signal)
            if command.timeout_s is not None:
                check_seconds("timeout_s", command.timeout_s)
        case StepChild():
            check_type("child_id", command.child_id, UUID)
    return command


def check_place(place: Place) -> None:
    check_type("place", place, Place)
    check_name("place.name", place.name)
    check_count("place.occurrence", place.occurrence, least=1, most=POSITION_MAX)
    check_count("place.position", place.position, most=POSITION_MAX)
