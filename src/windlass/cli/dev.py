"""`windlass dev`: everything on one machine, to try things out. Submits a greeting now and then, so that there is
something to see; stops cleanly at the first Ctrl-C or SIGTERM, and at once at the second."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from windlass.app import migrate_database, open_embedded
from windlass.cli.option import NO_DATABASE, DatabaseOptions
from windlass.cli.output import console
from windlass.cli.process import run_async
from windlass.cli.stop import stop_signal
from windlass.core.submission import Submission
from windlass.core.transition import State
from windlass.engine.engine import Engine
from windlass.sdk.worker import Worker
from windlass.settings import Settings, without_password
from windlass.store.store import Store

EVERY_S = 5.0
SAMPLE = r"{\"name\": \"you\"}"  # as a shell wants it


async def greet(payload: dict[str, Any]) -> str:
    """The sample handler."""
    return f"Hello, {payload['name']}!"


def dev(*, database: DatabaseOptions = NO_DATABASE) -> None:
    """Run PostgreSQL, an engine and a sample worker on this machine, until Ctrl-C."""
    run_async(run_dev(database.settings()))


@asynccontextmanager
async def dev_database(settings: Settings) -> AsyncIterator[tuple[str, str]]:
    """The URL, and what of it may be shown: only the password of the embedded database, which is this user's own."""
    if settings.database_url is not None:
        yield settings.database_url, without_password(settings.database_url)
        return
    async with open_embedded(settings.data_dir) as url:
        await migrate_database(url)
        yield url, url


async def run_dev(settings: Settings) -> None:
    console.print("[bold]Windlass[/bold] is starting …")
    async with dev_database(settings) as (url, shown), Engine(Store(url)) as engine:
        console.print(f"  database  {shown}", soft_wrap=True)
        console.print("  worker    1, queue [cyan]default[/cyan], kind [cyan]greet[/cyan]")
        console.print("Submit a task from any program that can speak SQL:")
        console.print(f"""  psql '{shown}' -c "select windlass.submit('greet', '{SAMPLE}')" """, soft_wrap=True)
        console.print("Stop with Ctrl-C.")
        stop = stop_signal()
        worker = Worker(engine, {"greet": greet}, name="dev-worker")
        running = asyncio.create_task(worker.run())
        samples = asyncio.create_task(_samples(engine))
        await stop.wait()
        console.print("Stopping: finishing what runs …")
        samples.cancel()
        worker.stop()
        await running
        console.print("Stopped.")


async def _samples(engine: Engine) -> None:
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
