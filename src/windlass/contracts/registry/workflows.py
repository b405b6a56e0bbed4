"""Runs the commands of workers about their runs and steps, and reads step attempts. I/O and no decisions."""

from __future__ import annotations

from uuid import UUID

from msgspec.structs import replace

from windlass.contracts.registry.commands import StepComplete, StepFail, WorkflowCommand, WorkflowReport
from windlass.contracts.registry.rules import StepAttempt
from windlass.contracts.registry.step_try import StepAttemptTable
from windlass.core.step import Step
from windlass.core.task import Task
from windlass.core.validation import PAYLOAD_MAX_BYTES
from windlass.engine.engine import Engine

Answer = Task | Step | StepAttempt


async def run_command(engine: Engine, command: WorkflowCommand) -> Answer:
    """Returns the run, the step or the step attempt of the command. The server has checked its fields."""
    answer: Answer
    if isinstance(command, WorkflowReport | StepFail):
        command = replace(command, jitter=engine.parts.randomness.jitter())
    result = command.result if isinstance(command, WorkflowReport | StepComplete) else None
    if result is not None and len(result) > PAYLOAD_MAX_BYTES:
        what = "result" if isinstance(command, WorkflowReport) else "step"
        async with engine.parts.objects.kept("output", result, command.task_id, what) as reference:
            answer = await engine.workflows.carry_out(replace(command, result=reference))
            return answer
    answer = await engine.workflows.carry_out(command)
    return await engine.parts.objects.whole_step(answer) if isinstance(answer, Step) else answer


async def list_step_attempts(engine: Engine, task_id: UUID) -> list[StepAttempt]:
    """Every step attempt of a run, in start order."""
    async with engine.store.single() as tx:
        return await StepAttemptTable(tx.session).task_attempts(task_id)


async def get_step_attempt(engine: Engine, attempt_id: UUID) -> StepAttempt | None:
    async with engine.store.single() as tx:
        return await StepAttemptTable(tx.session).get_attempt(attempt_id)
