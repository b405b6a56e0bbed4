"""The recorded steps and the signals of a workflow. The rules that record them are in `core.step_command`.

A step is identified by its name and its occurrence (1 for the first step of that name); its position is its place in
the order in which the code runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from uuid import UUID

import msgspec
from msgspec.structs import replace

from windlass.core.context import CommandContext
from windlass.core.failure import Failure
from windlass.core.states import Instant, Transition
from windlass.core.task import Task
from windlass.errors import NotFound

SIGNAL_PREFIX = "signal:"
FIRST = -1  # the position of the record that a fork begins with


class StepKind(StrEnum):
    """What a step of a workflow is."""

    STEP = "step"
    SLEEP = "sleep"
    SIGNAL = "signal"
    TASK = "task"  # a child task
    TIME = "time"
    ORIGIN = "origin"  # the task that this one was forked from


class StepState(StrEnum):
    WAITING = "waiting"  # for a time, a signal, a child task, or its next try
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class Place(msgspec.Struct, frozen=True, gc=False):
    """The position, name and occurrence of a step."""

    position: int
    name: str
    occurrence: int = 1


class Step(msgspec.Struct, frozen=True, gc=False):
    """The record of one step. Field order is the column order of the queries."""

    task_id: UUID
    name: str
    occurrence: int
    position: int
    kind: StepKind
    state: StepState
    attempt: int
    recorded_at: Instant
    took_s: float = 0.0
    failures: int = 0
    wake_at: Instant | None = None
    child_id: UUID | None = None
    error: Failure | None = None
    result: bytes | None = None

    @property
    def done(self) -> bool:
        return self.state is not StepState.WAITING

    @property
    def key(self) -> tuple[UUID, str, int]:
        return (self.task_id, self.name, self.occurrence)


class Signal(msgspec.Struct, frozen=True):
    """A named message to a workflow; `payload` is JSON text."""

    id: UUID
    task_id: UUID
    name: str
    payload: bytes
    sent_at: Instant


class ConsumeSignal(msgspec.Struct, frozen=True):
    """Marks a signal as received, so that no other wait gets it."""

    signal: Signal


class StepCommandContext(CommandContext):
    """The steps, signals and child tasks that the commands of a batch concern."""

    def __init__(
        self,
        steps: Iterable[Step] = (),
        signals: Iterable[Signal] = (),
        awaited: Iterable[tuple[UUID, str]] = (),
        children: Iterable[Task] = (),
        sent: Iterable[UUID] = (),
    ) -> None:
        self.steps = {step.key: step for step in steps}
        self.awaited, self.sent = set(awaited), set(sent)
        self._children = {child.id: child for child in children}
        self._pending: dict[tuple[UUID, str], list[Signal]] = {}
        for signal in signals:
            self._pending.setdefault((signal.task_id, signal.name), []).append(signal)

    def step(self, task_id: UUID, place: Place) -> Step | None:
        return self.steps.get((task_id, place.name, place.occurrence))

    def child(self, task: Task, child_id: UUID) -> Task | None:
        """The task that this one waits for. A task of another namespace is never found."""
        found = self._children.get(child_id)
        return found if found is not None and found.namespace == task.namespace else None

    def pending(self, task_id: UUID, name: str) -> Signal | None:
        """The oldest signal of this name that was not received."""
        line = self._pending.get((task_id, name))
        return line[0] if line else None

    def note(self, transition: Transition) -> None:
        for write in transition.writes:
            match write:
                case Step():
                    self.steps[write.key] = write
                    if write.kind is StepKind.SIGNAL and not write.done:
                        self.awaited.add((write.task_id, write.name.removeprefix(SIGNAL_PREFIX)))
                case Signal():
                    self.sent.add(write.id)
                    self._pending.setdefault((write.task_id, write.name), []).append(write)
                case ConsumeSignal(signal):
                    line = self._pending.get((signal.task_id, signal.name), [])
                    if signal in line:  # otherwise no command of this batch waits for it
                        line.remove(signal)


def kept_by_fork(steps: Sequence[Step], name: str, occurrence: int, fork_id: UUID, now: Instant) -> list[Step]:
    """The records that a fork begins with: all steps before the given one that have ended. The fork also records the
    task that it comes from, so that values derived from the task's id stay the same."""
    found = [step for step in steps if (step.name, step.occurrence) == (name, occurrence)]
    if not found:
        raise NotFound(f"the workflow has no record of step {name} ({occurrence})", step=name, occurrence=occurrence)
    [at] = found
    kept = [s for s in steps if s.position < at.position and (s.done or (s.wake_at is not None and s.wake_at <= now))]
    if not any(step.kind is StepKind.ORIGIN for step in kept):
        origin = msgspec.json.encode(at.task_id)
        kept.append(Step(at.task_id, "origin", 1, FIRST, StepKind.ORIGIN, StepState.SUCCEEDED, 0, now, result=origin))
    return [replace(step, task_id=fork_id) for step in kept]
