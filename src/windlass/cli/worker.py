"""`windlass worker`: a process that runs the handlers of an app until it is told to stop."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from windlass import sdk
from windlass.cli.logs import set_up_logs
from windlass.cli.option import NO_DATABASE, NO_LOG, DatabaseOptions, LogOptions
from windlass.cli.output import console
from windlass.cli.process import run_async
from windlass.cli.stop import stop_signal
from windlass.core.error import Invalid
from windlass.settings import Settings


def worker(
    target: str,
    *,
    queue: Annotated[tuple[str, ...], Parameter(name=("--queue", "-q"), negative="")] = (),
    concurrency: Annotated[int, Parameter(name=("--concurrency", "-c"))] = 32,
    name: str | None = None,
    database: DatabaseOptions = NO_DATABASE,
    log: LogOptions = NO_LOG,
) -> None:
    """Run the handlers of an app: `windlass worker shop.tasks:app -q mail -c 32`. Ctrl-C or SIGTERM drains it.

    Parameters
    ----------
    target
        The module and the name of the app in it, such as `shop.tasks:app`.
    queue
        Take tasks of these queues only (may be given several times, or with commas); default: all that the app's
        handlers name.
    concurrency
        How many tasks run side by side.
    name
        How the worker is called in timelines; default: host and process id.
    """
    queues = tuple(one.strip() for given in queue for one in given.split(","))
    settings = database.settings(**log.flags)
    set_up_logs(settings)
    tell_the_app(settings)
    run_async(run_worker(target, queues, concurrency, name))


def tell_the_app(settings: Settings) -> None:
    """An app that names no database of its own uses the one that this command was told of."""
    os.environ["WINDLASS_DATA_DIR"] = str(settings.data_dir)
    if settings.database_url is not None:
        os.environ["WINDLASS_DATABASE_URL"] = settings.database_url


async def run_worker(target: str, queues: tuple[str, ...], concurrency: int, name: str | None) -> None:
    app = find_app(target)
    async with app:
        worker = app.worker(queues=queues or None, name=name, concurrency=concurrency)
        console.print(f"[bold]{worker.name}[/bold] runs {', '.join(sorted(app.handlers))}", soft_wrap=True)
        console.print(f"  from {', '.join(worker.queues)}, {concurrency} at a time. Stop with Ctrl-C.", soft_wrap=True)
        stop = stop_signal()
        working = asyncio.create_task(worker.run())
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait({working, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            console.print("Stopping: finishing what runs …")
        worker.stop()
        stopped.cancel()
        await working
        console.print("Stopped.")


def find_app(target: str) -> sdk.App:
    """The app in `package.module:name`, with the current folder on the path, as `python -m` has it."""
    module, separator, attribute = target.partition(":")
    if not separator or not module or not attribute:
        raise Invalid(f"{target!r} is not like shop.tasks:app", field="target")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise
        raise Invalid(f"there is no module {module}", field="target") from None
    except AttributeError:
        raise Invalid(f"the module {module} has no {attribute}", field="target") from None
    if not isinstance(found, sdk.App):
        raise Invalid(f"{target} is not an App but {type(found).__name__}", field="target")
    return found
