"""What an app needs of an engine: one in this process, or a client of a remote server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from typing import Protocol, TypeVar, cast
from uuid import UUID

from windlass.core.progress import Progress, ProgressReport
from windlass.core.step import Step
from windlass.core.step_command import StepCommand
from windlass.core.submission import Submission
from windlass.core.task import Task
from windlass.errors import InvalidState, WindlassError
from windlass.sdk.worker.work_source import WorkSource

T = TypeVar("T")


class WorkflowSource(Protocol):
    """What a workflow needs of an engine. One beside its database has `transact_step` as well."""

    async def record_step(self, command: StepCommand) -> Step: ...
    async def load_steps(self, task_id: UUID) -> list[Step]: ...
    async def submit(self, submission: Submission) -> UUID: ...


class WorkflowClient(WorkflowSource, Protocol):
    """What clients of a workflow need as well."""

    async def signal(self, task_id: UUID, name: str, payload: bytes = b"null", *,
                     signal_id: UUID | None = None) -> Task: ...  # fmt: skip


def workflow_source(client: object) -> WorkflowClient:
    """The client, if it can run workflows. Raises InvalidState otherwise."""
    if not hasattr(client, "record_step"):
        raise InvalidState("workflows need an engine beside the database; this client works through a server")
    return cast("WorkflowClient", client)


class TaskView(Protocol):
    @property
    def task(self) -> Task: ...


class Client(WorkSource, Protocol):
    """What an app needs of an engine."""

    async def submit(self, submission: Submission) -> UUID: ...
    async def submit_many(self, submissions: Sequence[Submission]) -> list[UUID]: ...
    async def submit_batch(self, submission: Submission, payloads: Sequence[bytes]) -> list[UUID]: ...
    async def wait(self, task_id: UUID, timeout_s: float) -> TaskView: ...
    async def cancel(self, task_id: UUID, reason: str = "", *, force: bool = False) -> Task: ...
    async def cancel_run(self, run_id: UUID, reason: str = "") -> int: ...
    async def results(self, ids: Sequence[UUID], namespace: str | None = None) -> dict[UUID, bytes]: ...
    async def progress(self, task_id: UUID) -> Progress | None: ...
    async def note(self, notes: Sequence[ProgressReport]) -> Sequence[WindlassError | None]: ...
    async def checkpoint(self, task_id: UUID) -> bytes | None: ...


class Caller(Protocol):
    """An app, as handles use it: its client, and calls from code without an event loop."""

    @property
    def client(self) -> Client: ...

    def call_sync(self, call: Callable[[], Awaitable[T]]) -> T: ...


class Host(Caller, Protocol):
    """An app, as workflows use it: also the threads for their blocking steps."""

    @property
    def threads(self) -> Executor: ...
