"""A program with `windlass.registry` and nothing else: `python -m tests.e2e.registry_program URL KEY FOLDER`.

Each step leaves a line in a file of its own, so that a test sees what was done, how often, and by whom.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from windlass.registry import Worker, WorkflowContext


async def main(url: str, key: str, folder: str) -> None:
    def leave(name: str, number: int) -> int:
        with (Path(folder) / f"{number}-{name}").open("a") as file:
            file.write(f"{os.getpid()}\n")
        return number

    worker = Worker(url, "orders", api_key=key, max_concurrent=4)

    @worker.register("order")
    async def order(context: WorkflowContext, number: int) -> Any:
        await context.step("charge", leave, "charge", number)
        while not (Path(folder) / "go").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        await context.sleep(1)
        return await context.step("ship", leave, "ship", number)

    await worker.run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
