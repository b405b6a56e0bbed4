"""Steps of the registry contract. A step id is the name of the step, with `#n` from its second occurrence on."""

from __future__ import annotations

import re
from uuid import UUID

from windlass.contracts.registry.rules import AttemptState, StepAttempt
from windlass.contracts.registry.wire import kagzi_pb2 as pb
from windlass.contracts.registry.wire.messages import error_message, timestamp
from windlass.core.step import Step, StepKind, StepState
from windlass.core.task import Task

_NUMBERED = re.compile(r"(.+)#([2-9]|[1-9][0-9]{1,5})", re.DOTALL)

STATUS = {
    AttemptState.RUNNING: pb.STEP_ATTEMPT_STATUS_RUNNING,
    AttemptState.SUCCEEDED: pb.STEP_ATTEMPT_STATUS_COMPLETED,
    AttemptState.RETRYING: pb.STEP_ATTEMPT_STATUS_FAILED,
    AttemptState.FAILED: pb.STEP_ATTEMPT_STATUS_FAILED,
}
RECORDED = {
    StepState.WAITING: pb.STEP_ATTEMPT_STATUS_PENDING,
    StepState.SUCCEEDED: pb.STEP_ATTEMPT_STATUS_COMPLETED,
    StepState.FAILED: pb.STEP_ATTEMPT_STATUS_FAILED,
}


def read_step_id(step_id: str) -> tuple[str, int]:
    """`charge` is the first of that name, `charge#2` the second."""
    found = _NUMBERED.fullmatch(step_id)
    return (step_id, 1) if found is None else (found[1], int(found[2]))


def step_id_of(name: str, occurrence: int) -> str:
    return name if occurrence == 1 else f"{name}#{occurrence}"


def task_of_recorded_id(text: str) -> UUID | None:
    """The task in the id of a step without step attempts, which a worker of our SDK has recorded."""
    task_id, slash, _ = text.partition("/")
    try:
        return UUID(task_id) if slash else None
    except ValueError:
        return None


def cached_result(step: Step) -> bytes:
    return step.result if step.result is not None else b"null"


def attempt_messages(task: Task, steps: list[Step], attempts: list[StepAttempt]) -> list[pb.StepAttempt]:
    """Every step attempt of a run, in start order. A step without attempts counts as one."""
    known = {step.key: step for step in steps}
    latest = {attempt.key: attempt.id for attempt in attempts}
    tried = [(a.begun_at, a.number, _tried(task, a, known.get(a.key), latest[a.key] == a.id)) for a in attempts]
    plain = [(s.recorded_at, 0, _recorded(task, s)) for s in steps if s.key not in latest]
    return [message for _, _, message in sorted([*tried, *plain], key=lambda item: item[:2])]


def _tried(task: Task, attempt: StepAttempt, step: Step | None, is_latest: bool) -> pb.StepAttempt:
    status = STATUS[attempt.state]
    if attempt.state is AttemptState.RETRYING and is_latest:
        status = pb.STEP_ATTEMPT_STATUS_PENDING
    asleep = step is not None and step.kind is StepKind.SLEEP
    output = cached_result(step) if attempt.state is AttemptState.SUCCEEDED and step is not None else b""
    return pb.StepAttempt(
        step_attempt_id=str(attempt.id), workflow_run_id=str(task.id),
        step_id=step_id_of(attempt.name, attempt.occurrence),
        kind=pb.STEP_KIND_SLEEP if asleep else pb.STEP_KIND_FUNCTION, status=status, config=attempt.given or b"",
        output=output, error=error_message(attempt.error), started_at=timestamp(attempt.begun_at),
        finished_at=timestamp(attempt.ended_at), created_at=timestamp(attempt.begun_at),
        updated_at=timestamp(attempt.ended_at or attempt.begun_at), namespace_id=task.namespace,
    )  # fmt: skip


def _recorded(task: Task, step: Step) -> pb.StepAttempt:
    step_id = step_id_of(step.name, step.occurrence)
    return pb.StepAttempt(
        step_attempt_id=f"{step.task_id}/{step_id}", workflow_run_id=str(task.id), step_id=step_id,
        kind=pb.STEP_KIND_SLEEP if step.kind is StepKind.SLEEP else pb.STEP_KIND_FUNCTION, status=RECORDED[step.state],
        output=cached_result(step) if step.state is StepState.SUCCEEDED else b"", error=error_message(step.error),
        finished_at=timestamp(step.recorded_at if step.done else None), created_at=timestamp(step.recorded_at),
        updated_at=timestamp(step.recorded_at), namespace_id=task.namespace,
        child_workflow_run_id="" if step.child_id is None else str(step.child_id),
    )  # fmt: skip
