"""Workflows: their steps, signals to them, and a fork from a step."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from windlass.api.framework.forms import Listed, Name
from windlass.api.framework.request import KEY_HEADER
from windlass.api.framework.route import Call, Table
from windlass.api.routes.task_forms import ErrorForm, TaskForm, error_form, raw
from windlass.api.routes.tasks import find_task, full_form
from windlass.core.access import Role
from windlass.core.ids import derived_id
from windlass.core.step import Step, StepKind, StepState

table = Table("workflows")


class NewSignal(Struct, frozen=True, forbid_unknown_fields=True):
    """`payload` is any JSON."""

    payload: Raw | UnsetType = UNSET


class ForkOrder(Struct, frozen=True, forbid_unknown_fields=True):
    """The first step to execute again."""

    from_step: Name
    occurrence: Annotated[int, Meta(ge=1, le=1_000_000)] = 1


class StepForm(Struct, frozen=True, kw_only=True):
    """A recorded step."""

    name: str
    occurrence: int
    position: int
    kind: StepKind
    state: StepState
    attempt: int
    failures: int
    recorded_at: datetime
    took_s: float
    wake_at: datetime | None
    child_id: UUID | None
    error: ErrorForm | None
    result: Raw


@table.add("POST", "/api/v1/tasks/{task_id}/signals/{name}", Role.SUBMITTER, headers=(KEY_HEADER,))
async def send_signal(call: Call[None, NewSignal]) -> TaskForm:
    """Send a signal to a workflow, which may wait for it now or later. A repeated Idempotency-Key sends it once."""
    view, name, payload = await find_task(call), call.path["name"], call.body.payload
    key = call.key
    await call.engine.signal(
        view.task.id,
        name,
        b"null" if payload is UNSET else bytes(payload),
        signal_id=None if key is None else derived_id("signal", view.task.id, name, key),
    )
    return await full_form(call, await call.engine.tasks.get(view.task.id))


@table.add("GET", "/api/v1/tasks/{task_id}/steps", Role.VIEWER)
async def list_steps(call: Call[None, None]) -> Listed[StepForm]:
    """List the recorded steps of a workflow, in the order in which its code called them."""
    view = await find_task(call)
    steps = await call.engine.tasks.steps(view.task.id)
    return Listed([_form(step) for step in sorted(steps, key=lambda step: step.position)], None)


@table.add("POST", "/api/v1/tasks/{task_id}/fork", Role.OPERATOR, status=201)
async def fork_task(call: Call[None, ForkOrder]) -> TaskForm:
    """Fork a workflow: a new one keeps the results recorded before a step, and executes the rest again."""
    view = await find_task(call)
    new = await call.engine.fork(view.task.id, call.body.from_step, occurrence=call.body.occurrence)
    return await full_form(call, await call.engine.tasks.get(new))


def _form(step: Step) -> StepForm:
    return StepForm(
        name=step.name, occurrence=step.occurrence, position=step.position, kind=step.kind, state=step.state,
        attempt=step.attempt, failures=step.failures, recorded_at=step.recorded_at, took_s=step.took_s,
        wake_at=step.wake_at, child_id=step.child_id, error=error_form(step.error), result=raw(step.result),
    )  # fmt: skip
