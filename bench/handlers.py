"""What our worker runs. Imported within methods only, since it needs the library: see `bench.subject`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from windlass import WorkflowContext
from windlass.sdk import App

A = TypeVar("A", bound=App)


def with_handlers(app: A, hit: Callable[[int, float], None]) -> A:
    """The same app, with a task and a flow that call `hit` first."""

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
