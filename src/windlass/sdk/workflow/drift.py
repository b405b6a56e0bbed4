"""Compares the code of an app with the journals of its unfinished workflows, before that code is deployed.

A replay runs no step: it ends where the journal ends. A workflow that does not match would be parked when it runs.
"""

from __future__ import annotations

from typing import Any, Protocol
from uuid import UUID

import msgspec

from windlass.core.states import State
from windlass.core.step import Step
from windlass.sdk.app import App
from windlass.sdk.workflow.handler import WorkflowHandler

UNFINISHED = (State.QUEUED, State.RUNNING, State.SLEEPING, State.PARKED)


class Drift(msgspec.Struct, frozen=True):
    """An unfinished workflow that the code no longer matches, and the difference."""

    task_id: UUID
    kind: str
    state: State
    difference: str


class Records(Protocol):
    """Where the journals are: an engine."""

    @property
    def tasks(self) -> Any: ...
    @property
    def parts(self) -> Any: ...

    async def load_steps(self, task_id: UUID) -> list[Step]: ...


async def check_app(app: App, records: Records) -> list[Drift]:
    """Every unfinished workflow of this app that its code no longer matches, oldest last."""
    found = []
    for handler in app.handlers.values():
        if isinstance(handler, WorkflowHandler):
            found += await _check(app, handler, records)
    return found


async def _check(app: App, handler: WorkflowHandler[..., Any], records: Records) -> list[Drift]:
    found, after = [], None
    while True:
        page = await records.tasks.page(
            namespace=app.namespace, states=UNFINISHED, kind=handler.kind, after=after, limit=200
        )
        for row in page.tasks:
            steps = await records.load_steps(row.task.id)
            view = await records.parts.objects.whole(await records.tasks.get(row.task.id))
            difference = await handler.replay(view.task, view.payload, steps) if steps else None
            if difference is not None:
                found.append(Drift(row.task.id, handler.kind, view.task.state, difference))
        if page.next is None:
            return found
        after = page.next
