"""Workflows: their steps, signals to them, and a fork from a step."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from windlass.core.access import Role
from windlass.core.id import derived_id
from windlass.core.step import Step, StepKind, StepState
from windlass.http.form import Listed, Name
from windlass.http.read import KEY_HEADER
from windlass.http.route import Call, Table
from windlass.http.task import seen, shown
from windlass.http.task_form import ErrorForm, TaskForm, error_form, raw

table = Table("workflows")


class NewSignal(Struct, frozen=True, forbid_unknown_fields=True):
    """`payload` is any JSON."""

    payload: Raw | UnsetType = UNSET


class ForkOrder(Struct, frozen=True, forbid_unknown_fields=True):
    """The step from which everything is done again."""

    from_step: Name
    occurrence: Annotated[int, Meta(ge=1, le=1_000_000)] = 1


class StepForm(Struct, frozen=True, kw_only=True):
    """One step as it is recorded."""

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
    """Send a signal to a workflow, which may wait for it now or later. The same Idempotency-Key again is the same."""
    view, name, payload = await seen(call), call.path["name"], call.body.payload
    key = call.key
    await call.engine.signal(
        view.task.id,
        name,
        b"null" if payload is UNSET else bytes(payload),
        signal_id=None if key is None else derived_id("signal", view.task.id, name, key),
    )
    return await shown(call, await call.engine.views.get(view.task.id))


@table.add("GET", "/api/v1/tasks/{task_id}/steps", Role.VIEWER)
async def list_steps(call: Call[None, None]) -> Listed[StepForm]:
    """The steps that a workflow has recorded, in the order in which its code asked for them."""
    view = await seen(call)
    steps = await call.engine.views.steps(view.task.id)
    return Listed([_form(step) for step in sorted(steps, key=lambda step: step.position)], None)


@table.add("POST", "/api/v1/tasks/{task_id}/fork", Role.OPERATOR, status=201)
async def fork_task(call: Call[None, ForkOrder]) -> TaskForm:
    """A new workflow that keeps what this one recorded before a step, and does the rest again."""
    view = await seen(call)
    new = await call.engine.fork(view.task.id, call.body.from_step, occurrence=call.body.occurrence)
    return await shown(call, await call.engine.views.get(new))


def _form(step: Step) -> StepForm:
    return StepForm(
        name=step.name, occurrence=step.occurrence, position=step.position, kind=step.kind, state=step.state,
        attempt=step.attempt, failures=step.failures, recorded_at=step.recorded_at, took_s=step.took_s,
        wake_at=step.wake_at, child_id=step.child_id, error=error_form(step.error), result=raw(step.result),
    )  # fmt: skip
