"""What an app needs of an engine, wherever that runs. The engine in this process is one; a far one may follow."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar
from uuid import UUID

from windlass.core.error import WindlassError
from windlass.core.note import Note, Progress
from windlass.core.submission import Submission
from windlass.core.task import Task
from windlass.sdk.worker import WorkSource

T = TypeVar("T")


class TaskSeen(Protocol):
    @property
    def task(self) -> Task: ...


class Client(WorkSource, Protocol):
    """What an app needs of an engine."""

    async def submit(self, submission: Submission) -> UUID: ...
    async def submit_many(self, submissions: Sequence[Submission]) -> list[UUID]: ...
    async def wait(self, task_id: UUID, timeout_s: float) -> TaskSeen: ...
    async def cancel(self, task_id: UUID, reason: str = "", *, force: bool = False) -> Task: ...
    async def cancel_run(self, run_id: UUID, reason: str = "") -> int: ...
    async def results(self, ids: Sequence[UUID]) -> dict[UUID, bytes]: ...
    async def progress(self, task_id: UUID) -> Progress | None: ...
    async def note(self, notes: Sequence[Note]) -> Sequence[WindlassError | None]: ...
    async def checkpoint(self, task_id: UUID) -> bytes | None: ...


class Caller(Protocol):
    """An app, as handles see it: the way to its engine, with and without an event loop."""

    @property
    def client(self) -> Client: ...

    def call_sync(self, call: Callable[[], Awaitable[T]]) -> T: ...
