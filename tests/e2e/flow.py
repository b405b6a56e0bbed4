"""A workflow whose workers are killed: `windlass worker tests.e2e.flow:app`. Each call of a step leaves a line."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from windlass import App, WorkflowContext, current

app = App("flow")
FOLDER = Path(os.environ.get("WINDLASS_TEST_FOLDER", "/nonexistent"))
STEPS, STOPS = 8, (2, 5)


async def work(number: int) -> int:
    with (FOLDER / "calls").open("a") as calls:
        calls.write(f"{number} {current().idempotency_key} {os.getpid()}\n")
    if number in STOPS and not (FOLDER / f"go-{number}").exists():
        (FOLDER / f"at-{number}").touch()
        await asyncio.Event().wait()  # until we are killed, between the effect and its record
    return number


async def debit(connection: Any, amount: int) -> int:
    return int(await connection.fetchval("update account set balance = balance - $1 returning balance", amount))


@app.workflow(retry_delay="10ms", max_losses=10)
async def long(ctx: WorkflowContext) -> list[int]:
    done = [await ctx.step(work, number) for number in range(STEPS)]
    return [*done, await ctx.transaction(debit, 3)]
