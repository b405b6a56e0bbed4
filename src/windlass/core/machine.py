"""Tasks that run on a machine of their own: what they and their machines are called, and what follows from what is
seen of them.

An attempt of such a task is sent out (see `sent`) and launched; its worker is the machine. It is heard of once, when it
calls back. If it never does, the machine itself is looked at: how it ended, and whether it left its object behind.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from uuid import UUID

import msgspec
from msgspec.structs import replace

from windlass.core import task as rules
from windlass.core.delivery import Machine, type_of
from windlass.core.error import LeaseLost
from windlass.core.failure import Category, Failure
from windlass.core.id import RANDOM_BITS, derived_id, uuid7
from windlass.core.report import entry
from windlass.core.sent import runs
from windlass.core.task import Outcome, Task
from windlass.core.token import delivery_of
from windlass.core.transition import Instant, State, Transition, Verb, move

FORMAT = r"[a-z0-9][a-z0-9_-]{0,59}"
_NAME = re.compile(rf"export_({FORMAT})_(\d{{1,15}})_([0-9a-f]{{8}})")
_MACHINE = re.compile(r"windlass-([0-9a-f]{32})-(\d{1,9})")
_CHANCE_BITS = 32
_DERIVED_BITS = RANDOM_BITS - _CHANCE_BITS
_MS_END = 1 << 48
OBJECTS = "exports"
MACHINE = type_of(Machine)
OBSERVED = "observed"  # in a result: its machine did not call back, what it left was seen


# --------------------------------------------------------------------------------------------- names


def export_task_id(format_: str, ms: int, chance: int) -> UUID:
    """The id of the task that is called `export_{format}_{ms}_{chance}` outside. What the name does not say is derived
    from it, so that the one is known from the other and nobody has to keep both."""
    assert 0 <= chance < 1 << _CHANCE_BITS, chance
    derived = derived_id("export", format_, ms, chance).int & ((1 << _DERIVED_BITS) - 1)
    return uuid7(ms, chance << _DERIVED_BITS | derived)


def export_name(task_id: UUID, kind: str) -> str:
    """What a task is called on the wire of machines. One that was not made under such a name is called by its id."""
    ms, chance = task_id.int >> 80, _random(task_id) >> _DERIVED_BITS
    if re.fullmatch(FORMAT, kind) and export_task_id(kind, ms, chance) == task_id:
        return f"export_{kind}_{ms}_{chance:08x}"
    return str(task_id)


def read_export_name(name: str) -> UUID | None:
    """The id that such a name stands for; None for what is none."""
    found = _NAME.fullmatch(name)
    if found is None or int(found[2]) >= _MS_END:
        return None
    return export_task_id(found[1], int(found[2]), int(found[3], 16))


def _random(id_: UUID) -> int:
    return (id_.int >> 64 & 0xFFF) << 62 | id_.int & ((1 << 62) - 1)


def machine_name(task_id: UUID, attempt: int) -> str:
    """What the machine of an attempt is called: whoever starts it again starts the same one."""
    return f"windlass-{task_id.hex}-{attempt}"


def read_machine_name(name: str) -> tuple[UUID, int] | None:
    found = _MACHINE.fullmatch(name)
    return None if found is None else (UUID(found[1]), int(found[2]))


def object_prefix(name: str) -> str:
    """Where the objects of a task are, and nothing else is."""
    return f"{OBJECTS}/{name}/"


# --------------------------------------------------------------------------------------------- what is seen


class Phase(StrEnum):
    """How far a machine is."""

    STARTING = "starting"
    RUNNING = "running"
    EXITED = "exited"


class Sighting(msgspec.Struct, frozen=True, kw_only=True):
    """A machine as its launcher sees it. `exit_code` is None if nobody knows it; below zero is a signal. `reason` is a
    word for what ended it besides itself, `output` what it wrote last."""

    name: str
    id: str
    phase: Phase
    exit_code: int | None = None
    reason: str = ""
    output: str = ""
    instance_id: str | None = None


OUT_OF_MEMORY, TIME_LIMIT, KILLED = "out_of_memory", "time_limit", "killed"


class Left(msgspec.Struct, frozen=True):
    """The object that a machine left behind."""

    key: str
    size: int

    @property
    def file_name(self) -> str:
        return self.key.rpartition("/")[2]


class Launched(msgspec.Struct, frozen=True):
    """The machine of an attempt is there."""

    task_id: UUID
    attempt: int
    machine_id: str
    detail: Mapping[str, object] = {}

    def decide(self, task: Task, now: Instant) -> Transition:
        if not runs(task, self.attempt):
            if task.attempt == self.attempt and task.terminal:  # it called back before its launcher had answered
                return Transition(Verb.NOTE, task, task)
            raise LeaseLost("the attempt is over", task_id=task.id, attempt=self.attempt)
        if task.worker is not None:
            return Transition(Verb.NOTE, task, task)
        after = replace(task, worker=self.machine_id)
        return move(Verb.NOTE, task, after, (entry(after, "launched", now, dict(self.detail)),))


class NotLaunched(msgspec.Struct, frozen=True):
    """There is no machine for an attempt, and there will be none."""

    task_id: UUID
    attempt: int
    reason: str
    message: str
    jitter: float = 0.0

    def decide(self, task: Task, now: Instant) -> Transition:
        if not runs(task, self.attempt) or task.worker is not None:
            return Transition(Verb.NOTE, task, task)
        return rules.expire(task, now, self.jitter, self.reason, message=self.message)


class CallBack(msgspec.Struct, frozen=True):
    """A machine says how its attempt ended: with a result, or with a failure. `said` is all that it said."""

    task_id: UUID
    attempt: int
    worker: str
    result: bytes | None = None
    failure: Failure | None = None
    said: Mapping[str, object] = {}
    jitter: float = 0.0

    def decide(self, task: Task, now: Instant) -> Transition:
        if task.attempt != self.attempt or delivery_of(task.lease_id) != MACHINE:
            raise LeaseLost(f"attempt {self.attempt} is not the current one, which is {task.attempt}", task_id=task.id)
        if self.failure is None and task.state is State.SUCCEEDED and _same_object(task.result, self.result):
            return Transition(Verb.NOTE, task, task)  # its success was seen before it was heard of
        heard = task if task.worker is not None else replace(task, worker=self.worker)
        made = self._judged(heard, now)
        if made.refusal is not None:
            return replace(made, before=task, after=task)
        if not made.changed:
            return Transition(Verb.NOTE, task, task)
        reported = entry(heard, "reported", now, {**self.said, "outcome": made.after.outcome})
        verb = made.verb if heard is task else Verb.NOTE  # which writes the worker's name as well
        return replace(made, before=task, verb=verb, history=(*made.history, reported))

    def _judged(self, task: Task, now: Instant) -> Transition:
        lease_id = _token(task)
        if self.failure is None:
            return rules.complete(task, self.attempt, lease_id, self.result, now)
        if task.cancel is not None and task.state is State.RUNNING:  # it was told to stop, and says so in its own words
            return rules.report_cancelled(task, self.attempt, lease_id, "", now)
        return rules.fail(task, self.attempt, lease_id, self.failure, now, self.jitter)


class Ended(msgspec.Struct, frozen=True):
    """A machine that has not called back was looked at: `seen` is None if it is nowhere. With `result` it left what it
    was to make. `overdue` if its time to call back is over: it is stopped, whatever it does."""

    task_id: UUID
    attempt: int
    seen: Sighting | None
    result: bytes | None = None
    overdue_s: float | None = None
    problem: str = ""
    jitter: float = 0.0

    def decide(self, task: Task, now: Instant) -> Transition:
        if not runs(task, self.attempt):
            return Transition(Verb.NOTE, task, task)
        made = self._judged(task, now)
        detail = {} if self.seen is None else _described(self.seen)
        return replace(made, history=(*made.history, entry(task, "machine_ended", now, detail)))

    def _judged(self, task: Task, now: Instant) -> Transition:
        lease_id, seen = _token(task), self.seen
        exited = seen is not None and seen.phase is Phase.EXITED
        if exited and self.result is not None:
            return rules.complete(task, self.attempt, lease_id, self.result, now)
        if task.cancel is not None:
            return rules.report_cancelled(task, self.attempt, lease_id, "", now)
        if seen is None:
            return rules.expire(task, now, self.jitter, "MACHINE_VANISHED", message="the machine vanished")
        if not exited and self.overdue_s is not None:
            return rules.fail(task, self.attempt, lease_id, no_callback(self.overdue_s), now, self.jitter)
        reason, message = told(seen, self.problem)
        if seen.exit_code is None or seen.exit_code < 0 or seen.reason:
            return rules.expire(task, now, self.jitter, reason, seen.output, message=message)
        failure = Failure(Category.USER_CODE, message, reason, seen.output)
        return rules.fail(task, self.attempt, lease_id, failure, now, self.jitter)


def _token(task: Task) -> UUID:
    """Of the current attempt, which was launched."""
    assert task.lease_id is not None, task.id
    return task.lease_id


def no_callback(timeout_s: float) -> Failure:
    return Failure(Category.TIMEOUT, f"no callback within {timeout_s:g} s", "CALLBACK_TIMEOUT")


def told(seen: Sighting, problem: str = "") -> tuple[str, str]:
    """The stable word, and a sentence, for a machine that ended without a word of its own."""
    if seen.reason == OUT_OF_MEMORY:
        return "OUT_OF_MEMORY", "the machine ran out of memory"
    if seen.reason == TIME_LIMIT:
        return "TIME_LIMIT", "the machine ran for longer than it may"
    if seen.exit_code is None or seen.reason:
        return "MACHINE_LOST", f"the machine ended: {seen.reason}" if seen.reason else "the machine is no more"
    if seen.exit_code < 0:
        return "MACHINE_KILLED", f"the machine was ended by signal {-seen.exit_code}"
    if seen.exit_code == 0:
        return "NO_OBJECT", problem or "the machine ended with exit code 0 and left no object"
    last = seen.output.strip().rpartition("\n")[2].strip()
    message = f"the machine ended with exit code {seen.exit_code}"
    return "EXIT_CODE", f"{message}: {last[:500]}" if last else message


def _same_object(known: bytes | None, said: bytes | None) -> bool:
    """Whether two results are of the same object, whatever else they tell of it."""
    if known is None or said is None:
        return False
    one, other = msgspec.json.decode(known), msgspec.json.decode(said)
    fields = ("output_r2_key", "output_file_name", "output_file_size")
    only_seen = isinstance(one, dict) and one.get(OBSERVED) is True
    return only_seen and isinstance(other, dict) and all(one.get(name) == other.get(name) for name in fields)


def _described(seen: Sighting) -> dict[str, object]:
    told_ = {"machine": seen.id, "phase": seen.phase, "exit_code": seen.exit_code, "reason": seen.reason or None}
    return {name: value for name, value in told_.items() if value is not None}


def finished_by_itself(task: Task, attempt: int) -> bool:
    """Whether this attempt has reported its own end; its machine then has a moment to tidy up and go."""
    return task.attempt == attempt and task.outcome in (Outcome.SUCCEEDED, Outcome.FAILED)
