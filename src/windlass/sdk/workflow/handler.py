"""The handler of a workflow: an async function with a `WorkflowContext`, run from its beginning in each attempt."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, Sequence
from typing import Any, ParamSpec, TypeVar
from uuid import UUID

from msgspec.structs import replace

from windlass.core.command import Claimed
from windlass.core.failure import Category, Failure
from windlass.core.step import Step
from windlass.core.step_command import StepCommand
from windlass.core.submission import Submission
from windlass.core.task import Task
from windlass.errors import Invalid, InvalidState
from windlass.sdk.client import workflow_source
from windlass.sdk.context import set_current
from windlass.sdk.handler.handler import Handler
from windlass.sdk.signals import invalid_is_bad_data
from windlass.sdk.worker.asyncio_tools import until_available
from windlass.sdk.worker.attempt_environment import AttemptEnvironment
from windlass.sdk.workflow.awaitables import StepFailed
from windlass.sdk.workflow.context import INLINE_WAIT_S, WorkflowContext
from windlass.sdk.workflow.exits import CodeMismatch, WorkflowExit

log = logging.getLogger("windlass.worker")

P = ParamSpec("P")
R = TypeVar("R")


class WorkflowHandler(Handler[P, R]):
    """Made by `@app.workflow`."""

    inline_wait_s = INLINE_WAIT_S
    takes_results = False  # a workflow may outlive the results of other tasks, and would need them in every attempt

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not inspect.iscoroutinefunction(self.function):
            raise Invalid(f"{self.kind} must be an async function to be a workflow", field="function")
        if self.in_process:
            raise Invalid("a workflow runs in the event loop; its steps may run elsewhere", field="run_in")
        self._parameter = _context_parameter(self)

    async def run(self, claimed: Claimed, environment: AttemptEnvironment | None = None) -> bytes:  # noqa: ARG002 (workflows are claimed)
        """One attempt, from the beginning, with the recorded steps. The first attempt has none, so it loads none."""
        with invalid_is_bad_data:
            arguments = self.schema.arguments(claimed.payload)
        steps: list[Step] = []
        if claimed.task.attempt > 1:
            steps = await until_available(lambda: workflow_source(self.app.client).load_steps(claimed.task.id))
        progress = self.app.progress_sender.attempt(claimed)
        try:
            context = WorkflowContext(claimed, self.app, steps, sink=progress, inline_wait_s=self.inline_wait_s)
            result = await self._call(arguments, context)
            context._end()
            with invalid_is_bad_data:
                return self.schema.result(result)
        finally:
            await progress.close()

    def failure(self, error: BaseException) -> Failure:
        """The failure that an exception means. A failed step is recorded and would fail again, and so would a workflow
        with a bug in its structure: neither is retried."""
        failure = super().failure(error)
        if isinstance(error, StepFailed):
            category = Category.USER_CODE if error.failure is None else error.failure.category
            return replace(failure, category=category, retryable=False)
        if isinstance(error, InvalidState):
            return replace(failure, retryable=False)
        return failure

    async def replay(self, task: Task, payload: bytes, steps: Sequence[Step]) -> str | None:
        """Compare the code with the journal of one workflow, without running a step. Returns the difference, or None.
        An exception of the code is no difference: it would fail the attempt, not park the workflow."""
        started_at = task.started_at or task.available_at
        running = replace(task, lease_id=task.lease_id or task.id, started_at=started_at)
        context = WorkflowContext(Claimed(running, payload), self.app, steps, source=_ReplaySource())
        try:
            await self._call(self.schema.arguments(payload), context)
            context._end()
        except CodeMismatch as mismatch:
            return mismatch.difference
        except (WorkflowExit, Exception):
            return None
        return None

    async def _call(self, arguments: dict[str, Any], context: WorkflowContext) -> Any:
        set_current(context)
        return await self.function(**arguments, **{self._parameter: context})


def supported_handlers(client: object, handlers: Mapping[str, Handler[..., Any]]) -> dict[str, Handler[..., Any]]:
    """The handlers that a worker of this client can run. A client that cannot record steps runs no workflows."""
    if hasattr(client, "record_step"):
        return dict(handlers)
    workflows = [kind for kind, handler in handlers.items() if isinstance(handler, WorkflowHandler)]
    if workflows:
        log.warning("workflows need a worker beside the database; this one leaves out: %s", ", ".join(workflows))
    return {kind: handler for kind, handler in handlers.items() if kind not in workflows}


class _EndOfJournal(WorkflowExit):
    """The code has reached every recorded step; what follows is new."""


class _ReplaySource:
    """Ends a replay where it would have to run something."""

    async def record_step(self, command: StepCommand) -> Step:
        raise _EndOfJournal(command.place.name)

    async def load_steps(self, task_id: UUID) -> list[Step]:
        raise _EndOfJournal(str(task_id))

    async def submit(self, submission: Submission) -> UUID:
        raise _EndOfJournal(submission.kind)

    async def transact_step(self, command: StepCommand, _: object) -> Step:
        raise _EndOfJournal(command.place.name)


def _context_parameter(handler: Handler[..., Any]) -> str:
    name = handler.schema.context_parameter
    hint = inspect.get_annotations(handler.function, eval_str=False).get(name or "")
    if name is None or (hint is not WorkflowContext and "WorkflowContext" not in str(hint)):
        raise Invalid(f"{handler.kind} must take a parameter `ctx: WorkflowContext`", field="function")
    return name
