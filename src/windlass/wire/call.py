"""The calls of a program that is far from the database: one struct each, with the type of its answer. MessagePack.

Both sides read this table, so that a new call is one struct here and one line where it is carried out.
"""

from __future__ import annotations

from typing import Any, ClassVar, get_args
from uuid import UUID

import msgspec

from windlass.core.note import Note, Progress
from windlass.core.retry import Policy
from windlass.core.schedule import ScheduleSpec
from windlass.core.step import Step
from windlass.core.step_command import StepCommand
from windlass.core.submission import Submission
from windlass.core.task import Task


class Call(msgspec.Struct, frozen=True):
    """What is asked; `answer` is what comes back."""

    answer: ClassVar[Any]


class SubmitMany(Call, frozen=True):
    """Accept tasks, all or none."""

    answer: ClassVar[Any] = list[UUID]
    submissions: list[Submission]


class Wait(Call, frozen=True):
    """The task when it has ended, or as it is after `timeout_s` (the server may answer earlier: ask again)."""

    answer: ClassVar[Any] = Task
    task_id: UUID
    timeout_s: float = 0.0


class Cancel(Call, frozen=True):
    """Ask a task to stop."""

    answer: ClassVar[Any] = Task
    task_id: UUID
    reason: str = ""
    force: bool = False


class CancelRun(Call, frozen=True):
    """Cancel every task of a run that has not ended; how many were asked."""

    answer: ClassVar[Any] = int
    run_id: UUID
    reason: str = ""


class GetResults(Call, frozen=True):
    """The results of those of these tasks that have one, as JSON text; of one namespace, or of all that the caller
    reaches."""

    answer: ClassVar[Any] = dict[UUID, bytes]
    task_ids: list[UUID]
    namespace: str | None = None


class GetProgress(Call, frozen=True):
    """How far a task is, if it ever said so."""

    answer: ClassVar[Any] = Progress | None
    task_id: UUID


class GetCheckpoint(Call, frozen=True):
    """What the last attempt left for the next one."""

    answer: ClassVar[Any] = bytes | None
    task_id: UUID


class Problem(msgspec.Struct, frozen=True):
    """An error as an answer."""

    code: str
    message: str


class WriteNotes(Call, frozen=True):
    """What attempts say while they run; one answer each, a problem for an attempt that is over."""

    answer: ClassVar[Any] = list[Problem | None]
    notes: list[Note]


class LoadSteps(Call, frozen=True):
    """What a workflow has recorded so far."""

    answer: ClassVar[Any] = list[Step]
    task_id: UUID


class RecordStep(Call, frozen=True):
    """What a workflow says about one of its steps: the name of the record and the record itself."""

    answer: ClassVar[Any] = Step
    name: str
    said: msgspec.Raw


class SendSignal(Call, frozen=True):
    """A signal for a workflow. The same `signal_id` again is the same signal."""

    answer: ClassVar[Any] = Task
    task_id: UUID
    name: str
    payload: bytes = b"null"
    signal_id: UUID | None = None


class DeclareSchedules(Call, frozen=True):
    """Which schedules the code of an app declares; how many are left that it does not."""

    answer: ClassVar[Any] = int
    app: str
    schedules: list[ScheduleSpec]
    namespace: str = "default"
    anew: bool = True


class DeclareKinds(Call, frozen=True):
    """What the code of an app declares for its kinds; null where it asks for nothing."""

    answer: ClassVar[Any] = None
    app: str
    policies: dict[str, Policy | None]
    namespace: str = "default"


STEPS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(StepCommand)}

CALLS: dict[str, type[Call]] = {
    call.__name__: call
    for call in (
        SubmitMany, Wait, Cancel, CancelRun, GetResults, GetProgress, GetCheckpoint, WriteNotes, LoadSteps, RecordStep,
        SendSignal, DeclareSchedules, DeclareKinds,
    )
}  # fmt: skip
