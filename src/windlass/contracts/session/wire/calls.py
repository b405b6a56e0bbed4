"""The calls of remote programs: one struct each, with the type of its answer, encoded as MessagePack.

Client and server share this table: a new call is one struct here and one case in `server.calls`.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar, get_args
from uuid import UUID

import msgspec

from windlass.core.progress import Progress, ProgressReport
from windlass.core.retry import Policy
from windlass.core.schedule import ScheduleSpec
from windlass.core.step import Step
from windlass.core.step_command import StepCommand
from windlass.core.submission import Submission
from windlass.core.task import Task

T = TypeVar("T")


class Call(msgspec.Struct, Generic[T], frozen=True):
    """A request, with the type of its answer."""

    @classmethod
    def answer(cls) -> Any:
        """The type of the answer."""
        return get_args(cls.__orig_bases__[0])[0]  # type: ignore[attr-defined]


class SubmitMany(Call[list[UUID]], frozen=True):
    """Submits tasks, all or none."""

    submissions: list[Submission]


class Wait(Call[Task], frozen=True):
    """Returns the task when it has ended or `timeout_s` has passed. The server may answer earlier: repeat the call."""

    task_id: UUID
    timeout_s: float = 0.0


class Cancel(Call[Task], frozen=True):
    """Cancels a task."""

    task_id: UUID
    reason: str = ""
    force: bool = False


class CancelRun(Call[int], frozen=True):
    """Cancels every task of a run that has not ended. Returns their number."""

    run_id: UUID
    reason: str = ""


class GetResults(Call[dict[UUID, bytes]], frozen=True):
    """Returns the results of the tasks that have one, as JSON text; of one namespace, or of all that the caller may
    access."""

    task_ids: list[UUID]
    namespace: str | None = None


class GetProgress(Call[Progress | None], frozen=True):
    """Returns the progress of a task, if it has reported any."""

    task_id: UUID


class GetCheckpoint(Call[bytes | None], frozen=True):
    """Returns the checkpoint that the last attempt left for the next one."""

    task_id: UUID


class Problem(msgspec.Struct, frozen=True):
    """An error as an answer."""

    code: str
    message: str


class WriteNotes(Call[list[Problem | None]], frozen=True):
    """Writes progress, checkpoints and log lines of running attempts. Returns one answer each: a problem if the attempt
    has ended."""

    notes: list[ProgressReport]


class LoadSteps(Call[list[Step]], frozen=True):
    """Returns the recorded steps of a workflow."""

    task_id: UUID


class RecordStep(Call[Step], frozen=True):
    """Records a step of a workflow: the name of the command and the command itself."""

    name: str
    command: msgspec.Raw


class SendSignal(Call[Task], frozen=True):
    """Sends a signal to a workflow. The same `signal_id` again is the same signal."""

    task_id: UUID
    name: str
    payload: bytes = b"null"
    signal_id: UUID | None = None


class DeclareSchedules(Call[int], frozen=True):
    """Declares the schedules of an app. Returns the number of existing ones that it does not declare."""

    app: str
    schedules: list[ScheduleSpec]
    namespace: str = "default"
    anew: bool = True


class DeclareKinds(Call[None], frozen=True):
    """Declares the retry policies of the kinds of an app; null for the default."""

    app: str
    policies: dict[str, Policy | None]
    namespace: str = "default"


STEPS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(StepCommand)}

CALLS: dict[str, type[Call[Any]]] = {
    call.__name__: call
    for call in (
        SubmitMany, Wait, Cancel, CancelRun, GetResults, GetProgress, GetCheckpoint, WriteNotes, LoadSteps, RecordStep,
        SendSignal, DeclareSchedules, DeclareKinds,
    )
}  # fmt: skip
