"""Handles of tasks that were submitted together: their results in order, or their failures."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Generic, TypeVar, cast
from uuid import UUID

from windlass.core.states import TERMINAL, State
from windlass.sdk.client import Caller
from windlass.sdk.duration import Duration, seconds
from windlass.sdk.handler.handle import FOREVER_S, TaskHandle
from windlass.sdk.handler.schema import Schema
from windlass.sdk.signals import TaskFailed

R = TypeVar("R")


class GroupHandle(Generic[R]):
    """Tasks that run concurrently. `handles` are in the order of the calls."""

    def __init__(self, app: Caller, run_id: UUID, handles: Sequence[TaskHandle[R]]) -> None:
        self._app, self.run_id, self.handles = app, run_id, tuple(handles)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.run_id)!r}, {len(self.handles)} tasks)"

    def __len__(self) -> int:
        return len(self.handles)

    async def results(self, timeout: Duration | None = None) -> list[R]:  # noqa: ASYNC109
        """The return values of all tasks, in the order of the calls. Waits until all have ended; then raises TaskFailed
        for the first one that did not succeed. Raises TimeoutError if the wait takes too long."""
        outcomes = await self.outcomes(timeout)
        for outcome in outcomes:
            if isinstance(outcome, TaskFailed):
                raise outcome
        return cast("list[R]", outcomes)

    async def outcomes(self, timeout: Duration | None = None) -> list[R | TaskFailed]:  # noqa: ASYNC109
        """Like `results`, with failures as values, so that one failure does not hide the other results."""
        clock = asyncio.get_running_loop().time
        end_s = clock() + (FOREVER_S if timeout is None else seconds("timeout", timeout))
        outcomes: list[R | TaskFailed] = []
        for handle in self.handles:
            try:
                outcomes.append(await handle.result(max(0.0, end_s - clock())))
            except TaskFailed as failed:
                outcomes.append(failed)
        return outcomes

    async def cancel(self, reason: str = "") -> None:
        """Request a cancel of all tasks that have not ended."""
        await self._app.client.cancel_run(self.run_id, reason)

    def results_sync(self, timeout: Duration | None = None) -> list[R]:
        return self._app.call_sync(lambda: self.results(timeout))

    def outcomes_sync(self, timeout: Duration | None = None) -> list[R | TaskFailed]:
        return self._app.call_sync(lambda: self.outcomes(timeout))

    def cancel_sync(self, reason: str = "") -> None:
        self._app.call_sync(lambda: self.cancel(reason))


class ChainHandle(TaskHandle[R]):
    """The last task of a chain; `parts` are all of them. `result` raises the failure of the first task that failed."""

    def __init__(self, app: Caller, run_id: UUID, parts: Sequence[TaskHandle[object]], schema: Schema) -> None:
        super().__init__(app, parts[-1].id, schema)
        self.run_id, self.parts = run_id, tuple(parts)

    async def result(self, timeout: Duration | None = None) -> R:  # noqa: ASYNC109
        """Wait for the end of the chain."""
        try:
            return await super().result(timeout)
        except TaskFailed as failed:
            if failed.state is State.FAILED:
                raise
            for part in self.parts[:-1]:  # this task was skipped or cancelled because of an earlier one
                task = (await self._app.client.wait(part.id, 0)).task
                if task.state in (State.FAILED, State.CANCELLED):
                    raise TaskFailed.of(task) from None
            raise

    async def cancel(self, reason: str = "", *, force: bool = False) -> None:
        """Request a cancel of all parts that have not ended; `force` ends them at once."""
        if not force:
            await self._app.client.cancel_run(self.run_id, reason)
            return
        for part in reversed(self.parts):
            if await part.state() not in TERMINAL:
                await self._app.client.cancel(part.id, reason, force=True)
