"""`windlass dev`: everything on one machine, to try things out. Submits a greeting now and then, so that there is
something to see; stops cleanly at the first Ctrl-C or SIGTERM, and at once at the second."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from windlass.app import open_database
from windlass.cli.stop import stop_signal
from windlass.core.submission import Submission
from windlass.core.transition import State
from windlass.engine.engine import Engine
from windlass.sdk.worker import Worker
from windlass.store.store import Store

EVERY_S = 5.0
SAMPLE = r"{\"name\": \"you\"}"  # as a shell wants it


async def greet(payload: dict[str, Any]) -> str:
    """The sample handler."""
    return f"Hello, {payload['name']}!"


async def run_dev(console: Console, database_url: str | None, data_dir: Path) -> None:
    console.print("[bold]Windlass[/bold] is starting …")
    async with open_database(database_url, data_dir=data_dir) as url, Engine(Store(url)) as engine:
        shown = hidden_password(url) if database_url or "DATABASE_URL" in os.environ else url
        console.print(f"  database  {shown}", soft_wrap=True)
        console.print("  worker    1, queue [cyan]default[/cyan], kind [cyan]greet[/cyan]")
        console.print("Submit a task from any program that can speak SQL:")
        console.print(f"""  psql '{shown}' -c "select windlass.submit('greet', '{SAMPLE}')" """, soft_wrap=True)
        console.print("Stop with Ctrl-C.")
        stop = stop_signal()
        worker = Worker(engine, {"greet": greet}, name="dev-worker")
        running = asyncio.create_task(worker.run())
        samples = asyncio.create_task(_samples(console, engine))
        await stop.wait()
        console.print("Stopping: finishing what runs …")
        samples.cancel()
        worker.stop()
        await running
        console.print("Stopped.")


async def _samples(console: Console, engine: Engine) -> None:
    """A task now and then, and what became of it."""
    number = 0
    while True:
        number += 1
        payload = msgspec.json.encode({"name": f"sample {number}"})
        task_id = await engine.submit(Submission(kind="greet", payload=payload))
        view = await engine.wait(task_id, 30)
        totals = await engine.views.totals()
        done = totals.get(State.SUCCEEDED, 0)
        console.print(
            f"  {view.task.state.value}  {task_id}  {(view.task.result or b'').decode()}  ({done} so far)",
            soft_wrap=True,
        )
        await asyncio.sleep(EVERY_S)


def hidden_password(url: str) -> str:
    """The URL for the screen. Only the password of the embedded database, which is this user's own, is shown."""
    return re.sub(r"(://[^:/@]*):[^@/]*@", r"\1:***@", url)
