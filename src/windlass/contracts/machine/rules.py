"""The rules for tasks that run on a machine of their own: names, and how launches, callbacks and ends are judged.

The engine launches a machine for each attempt (see `core.outgoing`); the machine is its worker. It reports once, with
its callback. Without one, the sweep inspects the machine: how it ended, and whether it left an object.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Any, ClassVar
from uuid import UUID

import msgspec
from msgspec.structs import replace

from windlass.contracts.machine.delivery import Machine
from windlass.core import task as rules
from windlass.core.attempt import AttemptReport, Credential, entry, judge
from windlass.core.delivery import type_of
from windlass.core.failure import Category, Failure
from windlass.core.ids import RANDOM_BITS, derived_id, uuid7
from windlass.core.outgoing import runs
from windlass.core.states import Instant, State, Transition, Verb, move
from windlass.core.task import Outcome, Task
from windlass.errors import LeaseLost

FORMAT = r"[a-z0-9][a-z0-9_-]{0,59}"
_NAME = re.compile(rf"export_({FORMAT})_(\d{{1,15}})_([0-9a-f]{{8}})")
_MACHINE = re.compile(r"windlass-([0-9a-f]{32})-(\d{1,9})")
_NAME_BITS = 32
_DERIVED_BITS = RANDOM_BITS - _NAME_BITS
_MS_END = 1 << 48
CLEANUP = timedelta(seconds=10)  # a machine that has reported has this long to clean up and exit
MACHINE = type_of(Machine)


# --------------------------------------------------------------------------------------------- names


def export_task_id(format_: str, ms: int, randomness: int) -> UUID:
    """The id of the task with the public name `export_{format}_{ms}_{randomness}`. The other bits of the id are derived
    from the name, so that each follows from the other and only the id is stored."""
    assert 0 <= randomness < 1 << _NAME_BITS, randomness
    derived = derived_id("export", format_, ms, randomness).int & ((1 << _DERIVED_BITS) - 1)
    return uuid7(ms, randomness << _DERIVED_BITS | derived)


def export_name(task_id: UUID, kind: str) -> str:
    """The name of a task in the machine contract. A task that was not submitted as an export is called by its id."""
    random_bits = (task_id.int >> 64 & 0xFFF) << 62 | task_id.int & ((1 << 62) - 1)
    ms, randomness = task_id.int >> 80, random_bits >> _DERIVED_BITS
    if re.fullmatch(FORMAT, kind) and export_task_id(kind, ms, randomness) == task_id:
        return f"export_{kind}_{ms}_{randomness:08x}"
    return str(task_id)


def read_export_name(name: str) -> UUID | None:
    """The id of the task with this name, or None if it is no such name."""
    found = _NAME.fullmatch(name)
    if found is None or int(found[2]) >= _MS_END:
        return None
    return export_task_id(found[1], int(found[2]), int(found[3], 16))


def machine_name(task_id: UUID, attempt: int) -> str:
    """The name of an attempt's machine. Starting it again starts the same machine."""
    return f"windlass-{task_id.hex}-{attempt}"


def read_machine_name(name: str) -> tuple[UUID, int] | None:
    found = _MACHINE.fullmatch(name)
    return None if found is None else (UUID(found[1]), int(found[2]))


def object_prefix(task: Task) -> str:
    """The prefix that only the objects of this task have."""
    return f"exports/{export_name(task.id, task.kind)}/"


# --------------------------------------------------------------------------------------------- machines


class Phase(StrEnum):
    """The phase of a machine's life."""

    STARTING = "starting"
    RUNNING = "running"
    EXITED = "exited"


class MachineStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A machine as its launcher reports it. `exit_code` is None if it is unknown, and negative for a signal. `reason`
    is a word for an end from outside, such as `out_of_memory`; `output` is the last output."""

    name: str
    id: str
    phase: Phase
    exit_code: int | None = None
    reason: str = ""
    output: str = ""
    instance_id: str | None = None


OUT_OF_MEMORY, TIME_LIMIT, KILLED = "out_of_memory", "time_limit", "killed"


class ObjectResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of a task whose machine left an object. `observed`: the machine did not call back, and a sweep found
    what it left."""

    object_key: str
    file_name: str
    file_size: int
    metrics: dict[str, Any] | None = None
    observed: bool = False

    @classmethod
    def of(cls, key: str, size: int, metrics: dict[str, Any] | None = None, *, observed: bool = False) -> ObjectResult:
        return cls(key, key.rpartition("/")[2], size, metrics, observed)

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    def names_same_object(self, other: ObjectResult) -> bool:
        return replace(self, metrics=None, observed=False) == replace(other, metrics=None, observed=False)


def read_result(result: bytes | None) -> ObjectResult | None:
    """The object that the result of a task names. None if it names none: the task may have run somewhere else."""
    try:
        return None if result is None else msgspec.json.decode(result, type=ObjectResult)
    except msgspec.DecodeError:
        return None


class Launched(msgspec.Struct, frozen=True):
    """The machine of an attempt was started."""

    task_id: UUID
    attempt: int
    machine_id: str
    detail: Mapping[str, object] = {}

    def decide(self, task: Task, now: Instant) -> Transition:
        if not runs(task, self.attempt):
            if task.attempt == self.attempt and task.terminal:  # it called back before its launcher had answered
                return Transition(Verb.NOTE, task, task)
            raise LeaseLost(f"attempt {self.attempt} has ended", task_id=task.id, attempt=self.attempt)
        if task.worker is not None:
            return Transition(Verb.NOTE, task, task)
        after = replace(task, worker=self.machine_id)
        return move(Verb.NOTE, task, after, (entry(after, "launched", now, dict(self.detail)),))


class NotLaunched(msgspec.Struct, frozen=True):
    """The machine of an attempt cannot be started."""

    task_id: UUID
    attempt: int
    reason: str
    message: str
    jitter: float = 0.0

    def decide(self, task: Task, now: Instant) -> Transition:
        if not runs(task, self.attempt) or task.worker is not None:
            return Transition(Verb.NOTE, task, task)
        return rules.expire(task, now, self.jitter, self.reason, message=self.message)


class MachineCredential(Credential, frozen=True, gc=False):
    """What a machine shows: the signature of its callback URL, which names its attempt."""

    deliveries: ClassVar[frozenset[str]] = frozenset({MACHINE})


class MachineReport(AttemptReport[MachineCredential], frozen=True):
    """The result or the failure that a machine reports."""

    def follow(self, task: Task, now: Instant) -> Transition:
        if self.outcome is Outcome.FAILED and task.cancel is not None and task.state is State.RUNNING:
            # It failed because we stopped it.
            return replace(self, outcome=Outcome.CANCELLED, failure=None).follow(task, now)
        if self.outcome is task.outcome is Outcome.SUCCEEDED:
            found, reported = read_result(task.result), read_result(self.result)
            if found is not None and found.observed and reported is not None and found.names_same_object(reported):
                return Transition(Verb.NOTE, task, task)  # a sweep found its success before it called back
        return super().follow(task, now)


class Ended(msgspec.Struct, frozen=True):
    """A machine ended without a callback, or is overdue. `status` is None if there is no such machine.
    `result` names the object that it left. `overdue_s` is set if its time is up: it is stopped in any phase."""

    task_id: UUID
    attempt: int
    status: MachineStatus | None
    result: bytes | None = None
    overdue_s: float | None = None
    problem: str = ""
    jitter: float = 0.0

    def decide(self, task: Task, now: Instant) -> Transition:
        if not runs(task, self.attempt):
            return Transition(Verb.NOTE, task, task)
        transition = self._judge(task, now)
        detail: dict[str, object] = {}
        if status := self.status:
            detail = {
                "machine": status.id,
                "phase": status.phase,
                "exit_code": status.exit_code,
                "reason": status.reason or None,
            }
        detail = {name: value for name, value in detail.items() if value is not None}
        return replace(transition, history=(*transition.history, entry(task, "machine_ended", now, detail)))

    def _judge(self, task: Task, now: Instant) -> Transition:
        status = self.status
        exited = status is not None and status.phase is Phase.EXITED
        if exited and self.result is not None:
            return judge(task, Outcome.SUCCEEDED, self.result, None, now, self.jitter)
        if task.cancel is not None:
            return judge(task, Outcome.CANCELLED, None, None, now, self.jitter)
        if status is None:
            return rules.expire(task, now, self.jitter, "MACHINE_VANISHED", message="the machine vanished")
        if not exited and self.overdue_s is not None:
            late = Failure(Category.TIMEOUT, f"no callback within {self.overdue_s:g} s", "CALLBACK_TIMEOUT")
            return judge(task, Outcome.FAILED, None, late, now, self.jitter)
        reason, message = describe_end(status, self.problem)
        if status.exit_code is None or status.exit_code < 0 or status.reason:
            return rules.expire(task, now, self.jitter, reason, status.output, message=message)
        failure = Failure(Category.USER_CODE, message, reason, status.output)
        return judge(task, Outcome.FAILED, None, failure, now, self.jitter)


def describe_end(status: MachineStatus, problem: str = "") -> tuple[str, str]:
    """The reason code and a sentence for a machine that ended without calling back."""
    if status.reason == OUT_OF_MEMORY:
        return "OUT_OF_MEMORY", "the machine ran out of memory"
    if status.reason == TIME_LIMIT:
        return "TIME_LIMIT", "the machine exceeded its time limit"
    if status.exit_code is None or status.reason:
        return (
            "MACHINE_LOST",
            f"the machine ended: {status.reason}" if status.reason else "the machine no longer exists",
        )
    if status.exit_code < 0:
        return "MACHINE_KILLED", f"the machine was killed by signal {-status.exit_code}"
    if status.exit_code == 0:
        return "NO_OBJECT", problem or "the machine ended with exit code 0 and left no object"
    last = status.output.strip().rpartition("\n")[2].strip()
    message = f"the machine ended with exit code {status.exit_code}"
    return "EXIT_CODE", f"{message}: {last[:500]}" if last else message


def cleans_up(task: Task, attempt: int, now: Instant) -> bool:
    """Whether this attempt reported its own end a moment ago, so that its machine may still clean up and exit."""
    reported = task.attempt == attempt and task.outcome in (Outcome.SUCCEEDED, Outcome.FAILED)
    return reported and task.finished_at is not None and now < task.finished_at + CLEANUP
