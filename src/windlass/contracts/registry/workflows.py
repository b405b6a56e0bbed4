"""Runs the commands of workers about their runs and steps, and reads step attempts. I/O and no decisions."""

from __future__ import annotations

from uuid import UUID

from msgspec.structs import replace

from windlass.contracts.registry.commands import StepComplete, WorkflowCommand, WorkflowReport, checked_command
from windlass.contracts.registry.rules import StepAttempt
from windlass.contracts.registry.step_try import StepAttemptTable
from windlass.core.step import Step
from windlass.core.task import Task
from windlass.engine.engine import Engine
from windlass.errors import NotFound, TooLarge

Answer = Task | Step | StepAttempt


async def run_command(engine: Engine, command: WorkflowCommand) -> Answer:
    """Returns the run, the step or the step attempt of the command."""
    try:
        checked = checked_command(command, engine.parts.randomness.jitter())
    except TooLarge:
        assert isinstance(command, WorkflowReport | StepComplete), command
        assert command.result is not None
        checked_command(replace(command, result=b"null"), 0.0)
        what = "result" if isinstance(command, WorkflowReport) else "step"
        async with engine.parts.objects.kept("output", command.result, command.task_id, what) as text:
            answer: Answer = await engine.workflows.carry_out(replace(command, result=text))
            return answer
    answer = await engine.workflows.carry_out(checked)
    return await engine.parts.objects.whole_step(answer) if isinstance(answer, Step) else answer


async def list_step_attempts(engine: Engine, task_id: UUID) -> list[StepAttempt]:
    """Every step attempt of a run, in start order."""
    async with engine.store.single() as tx:
        return await StepAttemptTable(tx.session).task_attempts(task_id)


async def get_step_attempt(engine: Engine, attempt_id: UUID) -> StepAttempt:
    async with engine.store.single() as tx:
        found = await StepAttemptTable(tx.session).get_attempt(attempt_id)
    if found is None:
        raise NotFound(f"there is no step attempt {attempt_id}")
    return found
