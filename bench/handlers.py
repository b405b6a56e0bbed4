"""The handlers of our worker. Imported within methods only, since it imports the library: see `bench.subject`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from windlass import WorkflowContext
from windlass.sdk import App

A = TypeVar("A", bound=App)


def with_handlers(app: A, hit: Callable[[int, float], None]) -> A:
    """Add a task and a flow, which call `hit` first, to the app."""

    @app.task(kind="noop")
    async def noop(index: int, sent_at: float) -> None:
        hit(index, sent_at)

    @app.workflow(kind="flow")
    async def flow(index: int, sent_at: float, ctx: WorkflowContext) -> None:
        hit(index, sent_at)
        for _ in range(3):
            await ctx.step(step)

    return app


async def step() -> int:
    return 1
