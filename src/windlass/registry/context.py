"""What a workflow can ask for while it is executed: steps that are done once, and sleeps that hold no worker."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Callable
from typing import Any

import grpc

from windlass.core.check import check_name, check_seconds
from windlass.registry.call import Line, Metadata, Refused
from windlass.registry.option import Retry, WorkflowError, detail_of
from windlass.registry.value import read_value, write_value
from windlass.wire.protos import kagzi_pb2 as pb

LOST = frozenset({grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.ABORTED})


class Over(BaseException):
    """This execution of the run is over, and says no more: the run sleeps, was cancelled, or is somebody else's. No
    Exception, so that a workflow that catches those does not catch this."""


class WorkflowContext:
    """One execution of a run. A workflow is executed from its beginning each time; what its steps gave is recorded, and
    given again."""

    def __init__(
        self, line: Line, run_id: str, workflow_type: str, attempt: int, context: Any, fence: Metadata
    ) -> None:
        self.run_id, self.workflow_type, self.attempt, self.context = run_id, workflow_type, attempt, context
        self._line, self._fence = line, fence
        self._steps: Counter[str] = Counter()
        self._sleeps = 0
        self.over = False

    async def step(self, name: str, function: Callable[..., Any], *args: Any, retry: Retry | None = None) -> Any:
        """What the function returns, as JSON has it. It is called once: when the run is executed again, the recorded
        result is given. A plain function runs in a thread. When it fails and is to be tried again, the run sleeps until
        then; the last failure is raised here."""
        check_name("name", name)
        self._steps[name] += 1
        step_id = name if self._steps[name] == 1 else f"{name}#{self._steps[name]}"
        policy = None if retry is None else retry.message()
        begun = await self.call(
            "BeginStep", pb.BeginStepRequest(run_id=self.run_id, step_id=step_id, retry_policy=policy)
        )
        if not begun.should_execute:
            return read_value("result", begun.cached_result)
        try:
            output = write_value("result of the step", await _called(function, args))
        except (Exception, SystemExit) as error:
            await self._failed(step_id, error)
            raise
        await self.call("CompleteStep", pb.CompleteStepRequest(run_id=self.run_id, step_id=step_id, output=output))
        return read_value("result", output)

    async def _failed(self, step_id: str, error: BaseException) -> None:
        """If another try follows, the server lets the run sleep, and this execution is over."""
        detail = detail_of(error)
        await self.call("FailStep", pb.FailStepRequest(run_id=self.run_id, step_id=step_id, error=detail))
        known = await self.call("GetWorkflowRun", pb.GetWorkflowRunRequest(run_id=self.run_id))
        if known.workflow_run.status != pb.WORKFLOW_STATUS_RUNNING:
            self._leave()

    async def sleep(self, seconds: float) -> None:
        """At least so long, in whole seconds. The run holds no worker meanwhile, and goes on with any."""
        check_seconds("seconds", seconds)
        step_id, self._sleeps = f"__sleep_{self._sleeps}", self._sleeps + 1
        begun = await self.call("BeginStep", pb.BeginStepRequest(run_id=self.run_id, step_id=step_id))
        if begun.should_execute:
            whole = int(-(-seconds // 1))
            await self.call("ScheduleSleep", pb.ScheduleSleepRequest(run_id=self.run_id, duration_seconds=whole))
            self._leave()

    async def call(self, name: str, request: Any) -> Any:
        """A call about this run, under its fence."""
        if self.over:
            raise Over
        try:
            return await self._line.call(name, request, self._fence)
        except Refused as refused:
            if refused.status in LOST:
                self._leave(refused)
            raise WorkflowError(f"{name} was refused: {refused}", retryable=False) from None

    def _leave(self, why: Refused | None = None) -> None:
        self.over = True
        raise Over(*([] if why is None else [str(why)]))


async def _called(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    if inspect.iscoroutinefunction(function):
        return await function(*args)
    result = await asyncio.to_thread(function, *args)
    return await result if inspect.isawaitable(result) else result
