"""What an app needs of an engine, wherever that runs. The engine in this process is one; a far one may follow."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from typing import Protocol, TypeVar, cast
from uuid import UUID

from windlass.core.error import InvalidState, WindlassError
from windlass.core.note import Note, Progress
from windlass.core.step import Step
from windlass.core.step_command import StepCommand
from windlass.core.submission import Submission
from windlass.core.task import Task
from windlass.sdk.work_source import WorkSource

T = TypeVar("T")


class WorkflowSource(Protocol):
    """What a workflow needs of an engine. One beside its database has `transact_step` as well."""

    async def record_step(self, said: StepCommand) -> Step: ...
    async def load_steps(self, task_id: UUID) -> list[Step]: ...
    async def submit(self, submission: Submission) -> UUID: ...


class WorkflowClient(WorkflowSource, Protocol):
    """And what clients of a workflow need."""

    async def signal(self, task_id: UUID, name: str, payload: bytes = b"null", *,
                     signal_id: UUID | None = None) -> Task: ...  # fmt: skip


def workflow_source(client: object) -> WorkflowClient:
    """The client, if workflows can be run through it."""
    if not hasattr(client, "record_step"):
        raise InvalidState("workflows need an engine beside the database; this client works through a server")
    return cast("WorkflowClient", client)


class TaskSeen(Protocol):
    @property
    def task(self) -> Task: ...


class Client(WorkSource, Protocol):
    """What an app needs of an engine."""

    async def submit(self, submission: Submission) -> UUID: ...
    async def submit_many(self, submissions: Sequence[Submission]) -> list[UUID]: ...
    async def submit_batch(self, submission: Submission, payloads: Sequence[bytes]) -> list[UUID]: ...
    async def wait(self, task_id: UUID, timeout_s: float) -> TaskSeen: ...
    async def cancel(self, task_id: UUID, reason: str = "", *, force: bool = False) -> Task: ...
    async def cancel_run(self, run_id: UUID, reason: str = "") -> int: ...
    async def results(self, ids: Sequence[UUID], namespace: str | None = None) -> dict[UUID, bytes]: ...
    async def progress(self, task_id: UUID) -> Progress | None: ...
    async def note(self, notes: Sequence[Note]) -> Sequence[WindlassError | None]: ...
    async def checkpoint(self, task_id: UUID) -> bytes | None: ...


class Caller(Protocol):
    """An app, as handles see it: the way to its engine, with and without an event loop."""

    @property
    def client(self) -> Client: ...

    def call_sync(self, call: Callable[[], Awaitable[T]]) -> T: ...


class Host(Caller, Protocol):
    """An app, as workflows see it: where their blocking steps run too."""

    @property
    def threads(self) -> Executor: ...
