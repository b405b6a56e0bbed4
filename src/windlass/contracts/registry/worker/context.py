"""The context of a running workflow: steps that run once, and sleeps that occupy no worker."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Callable
from typing import Any

import grpc

from windlass.contracts.registry.wire import kagzi_pb2 as pb
from windlass.contracts.registry.worker.call import Connection, Metadata, Refused
from windlass.contracts.registry.worker.options import Retry, WorkflowError, detail_of
from windlass.contracts.registry.worker.value import read_value, write_value
from windlass.core.validation import check_name, check_seconds

LOST = frozenset({grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.ABORTED})


class ExecutionEnded(BaseException):
    """This execution of the run has ended and reports nothing more: the run sleeps, was cancelled, or is leased to
    another worker. Not an Exception, so that a workflow that catches those does not catch this."""


class WorkflowContext:
    """One execution of a run. A workflow runs from its start each time; the recorded results of its steps are returned
    again."""

    def __init__(
        self, connection: Connection, run_id: str, workflow_type: str, attempt: int, context: Any, fence: Metadata
    ) -> None:
        self.run_id, self.workflow_type, self.attempt, self.context = run_id, workflow_type, attempt, context
        self._connection, self._fence = connection, fence
        self._steps: Counter[str] = Counter()
        self._sleeps = 0
        self.over = False

    async def step(self, name: str, function: Callable[..., Any], *args: Any, retry: Retry | None = None) -> Any:
        """Returns the result of the function as JSON represents it, or the recorded result when the run is executed
        again. A plain function runs in a thread. Before a retry, the run sleeps; the last failure is raised here."""
        check_name("name", name)
        self._steps[name] += 1
        step_id = name if self._steps[name] == 1 else f"{name}#{self._steps[name]}"
        policy = None if retry is None else retry.message()
        request = pb.BeginStepRequest(run_id=self.run_id, step_id=step_id, retry_policy=policy)
        reply = await self.call("BeginStep", request)
        if not reply.should_execute:
            return read_value("result", reply.cached_result)
        try:
            output = write_value("result of the step", await _call_function(function, args))
        except (Exception, SystemExit) as error:
            await self._fail_step(step_id, error)
            raise
        await self.call("CompleteStep", pb.CompleteStepRequest(run_id=self.run_id, step_id=step_id, output=output))
        return read_value("result", output)

    async def _fail_step(self, step_id: str, error: BaseException) -> None:
        """Reports the failure. If the step is retried, the run sleeps and this execution ends."""
        detail = detail_of(error)
        await self.call("FailStep", pb.FailStepRequest(run_id=self.run_id, step_id=step_id, error=detail))
        reply = await self.call("GetWorkflowRun", pb.GetWorkflowRunRequest(run_id=self.run_id))
        if reply.workflow_run.status != pb.WORKFLOW_STATUS_RUNNING:
            self._end()

    async def sleep(self, seconds: float) -> None:
        """Sleeps at least so long, in whole seconds. The run occupies no worker meanwhile; any worker continues it."""
        check_seconds("seconds", seconds)
        step_id, self._sleeps = f"__sleep_{self._sleeps}", self._sleeps + 1
        reply = await self.call("BeginStep", pb.BeginStepRequest(run_id=self.run_id, step_id=step_id))
        if reply.should_execute:
            whole = int(-(-seconds // 1))
            await self.call("ScheduleSleep", pb.ScheduleSleepRequest(run_id=self.run_id, duration_seconds=whole))
            self._end()

    async def call(self, name: str, request: Any) -> Any:
        """Makes a call about this run, with its fence."""
        if self.over:
            raise ExecutionEnded
        try:
            return await self._connection.call(name, request, self._fence)
        except Refused as refused:
            if refused.status in LOST:
                self._end(refused)
            raise WorkflowError(f"{name} was refused: {refused}", retryable=False) from None

    def _end(self, reason: Refused | None = None) -> None:
        self.over = True
        raise ExecutionEnded(*([] if reason is None else [str(reason)]))


async def _call_function(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    if inspect.iscoroutinefunction(function):
        return await function(*args)
    result = await asyncio.to_thread(function, *args)
    return await result if inspect.isawaitable(result) else result
