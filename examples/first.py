"""A first program: submit a task, run it, read its result."""

import asyncio
import json

from windlass import Submission, Worker, open_engine


async def greet(payload: dict) -> str:
    return f"Hello, {payload['name']}!"


async def main() -> None:
    # DATABASE_URL if it is set, otherwise a PostgreSQL of its own in the folder .windlass
    async with open_engine() as engine:
        worker = Worker(engine, {"greet": greet})
        working = asyncio.create_task(worker.run())

        # When submit returns, the task is in the database and will be run, whatever dies meanwhile.
        task_id = await engine.submit(Submission(kind="greet", payload=b'{"name": "Ada"}'))
        view = await engine.wait(task_id, timeout_s=10)
        print(view.task.state, json.loads(view.task.result))

        worker.stop()
        await working


asyncio.run(main())
