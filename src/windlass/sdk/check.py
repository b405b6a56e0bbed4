"""Holds the code of an app against what its unfinished workflows have recorded, before that code is deployed.

Nothing is carried out: a replay ends where the record ends. What does not fit would be parked when it is run.
"""

from __future__ import annotations

from typing import Any, Protocol
from uuid import UUID

import msgspec

from windlass.core.step import Step
from windlass.core.transition import State
from windlass.sdk.app import App
from windlass.sdk.workflow_handler import WorkflowHandler

UNFINISHED = (State.QUEUED, State.RUNNING, State.SLEEPING, State.PARKED)


class Drift(msgspec.Struct, frozen=True):
    """An unfinished workflow that the code does not fit, and how they differ."""

    task_id: UUID
    kind: str
    state: State
    difference: str


class Records(Protocol):
    """Where the records are: an engine."""

    @property
    def views(self) -> Any: ...
    @property
    def objects(self) -> Any: ...

    async def load_steps(self, task_id: UUID) -> list[Step]: ...


async def check_app(app: App, records: Records) -> list[Drift]:
    """Every unfinished workflow of this app that its code does not fit, oldest last."""
    found = []
    for handler in app.handlers.values():
        if isinstance(handler, WorkflowHandler):
            found += await _check(app, handler, records)
    return found


async def _check(app: App, handler: WorkflowHandler[..., Any], records: Records) -> list[Drift]:
    found, after = [], None
    while True:
        page = await records.views.page(
            namespace=app.namespace, states=UNFINISHED, kind=handler.kind, after=after, limit=200
        )
        for row in page.tasks:
            steps = await records.load_steps(row.task.id)
            view = await records.objects.whole(await records.views.get(row.task.id))
            difference = await handler.replay(view.task, view.payload, steps) if steps else None
            if difference is not None:
                found.append(Drift(row.task.id, handler.kind, view.task.state, difference))
        if page.next is None:
            return found
        after = page.next
