"""A first program: a function becomes a task, is submitted, run by a worker, and its result read."""

import asyncio

from windlass import App

app = App("shop")  # DATABASE_URL if it is set, otherwise a PostgreSQL of its own in the folder .windlass


@app.task(max_attempts=5)
async def greet(name: str) -> str:
    return f"Hello, {name}!"


async def main() -> None:
    async with app:
        worker = app.worker()
        working = asyncio.create_task(worker.run())

        # When submit returns, the task is in the database. It runs even if this process dies now.
        handle = await greet.submit("Ada")
        print(await handle.result(timeout="10s"))

        worker.stop()
        await working


asyncio.run(main())
