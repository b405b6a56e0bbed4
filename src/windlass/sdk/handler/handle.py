"""A handle: a client's reference to a task that it submitted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, TypeVar, cast
from uuid import UUID

import msgspec

from windlass.core.progress import Progress
from windlass.core.states import State
from windlass.core.validation import check_able, check_type
from windlass.sdk.client import Caller, workflow_source
from windlass.sdk.duration import Duration, seconds
from windlass.sdk.handler.schema import JsonType, Schema
from windlass.sdk.signals import TaskFailed

R = TypeVar("R")

FOREVER_S = 10 * 365 * 86400.0


class TaskHandle(Generic[R]):
    """One task. `await handle.result()` returns the return value of its handler, with its type."""

    def __init__(self, app: Caller, task_id: UUID, schema: Schema | None = None) -> None:
        check_able("app", app, "call_sync")
        check_type("task_id", task_id, UUID)
        if schema is not None:
            check_type("schema", schema, Schema)
        self._app, self.id, self._schema = app, task_id, schema

    def __repr__(self) -> str:
        return f"TaskHandle({str(self.id)!r})"

    async def result(self, timeout: Duration | None = None) -> R:  # noqa: ASYNC109 (the usual name)
        """Wait for the end. Raises TaskFailed if it did not succeed, TimeoutError if it has not ended in time."""
        timeout_s = FOREVER_S if timeout is None else seconds("timeout", timeout)
        view = await self._app.client.wait(self.id, timeout_s)
        task = view.task
        if not task.terminal:
            raise TimeoutError(f"task {self.id} is still {task.state} after {timeout_s:g} s")
        if task.state is not State.SUCCEEDED:
            raise TaskFailed.of(task)
        if self._schema is not None:
            return cast("R", self._schema.read_result(task.result))
        return cast("R", None if task.result is None else msgspec.json.decode(task.result))

    async def state(self) -> State:
        return (await self._app.client.wait(self.id, 0)).task.state

    async def progress(self) -> Progress | None:
        """How far it is, if its handler reports progress."""
        return await self._app.client.progress(self.id)

    async def cancel(self, reason: str = "", *, force: bool = False) -> None:
        """Request a cancel; `force` ends the task at once, without waiting for its worker."""
        await self._app.client.cancel(self.id, reason, force=force)

    async def signal(self, name: str, payload: Any = None, *, signal_id: UUID | None = None) -> None:
        """Send a signal to this workflow, which may wait for it now or later. The same `signal_id` again is the same
        signal, so that sending may be repeated."""
        text = JsonType(f"signal {name}", Any).write(payload)
        await workflow_source(self._app.client).signal(self.id, name, text, signal_id=signal_id)

    def signal_sync(self, name: str, payload: Any = None, *, signal_id: UUID | None = None) -> None:
        self._app.call_sync(lambda: self.signal(name, payload, signal_id=signal_id))

    def result_sync(self, timeout: Duration | None = None) -> R:
        """`result` for code without an event loop."""
        return self._app.call_sync(lambda: self.result(timeout))

    def state_sync(self) -> State:
        return self._app.call_sync(self.state)

    def progress_sync(self) -> Progress | None:
        return self._app.call_sync(self.progress)

    def cancel_sync(self, reason: str = "", *, force: bool = False) -> None:
        self._app.call_sync(lambda: self.cancel(reason, force=force))


def make_handles(app: Caller, ids: Iterable[UUID], schema: Schema) -> list[TaskHandle[Any]]:
    """Handles of a batch that was just submitted, without the checks of `__init__`, which would cost more."""
    handles = []
    for task_id in ids:
        handle: TaskHandle[Any] = TaskHandle.__new__(TaskHandle)
        handle._app, handle.id, handle._schema = app, task_id, schema
        handles.append(handle)
    return handles
