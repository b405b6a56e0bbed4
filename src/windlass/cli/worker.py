"""`windlass worker`: a process that runs the handlers of an app until it is told to stop."""

from __future__ import annotations

import asyncio
import importlib
import sys
from pathlib import Path

from rich.console import Console

from windlass import sdk
from windlass.cli.stop import stop_signal
from windlass.core.error import Invalid


async def run_worker(
    console: Console, target: str, queues: tuple[str, ...], concurrency: int, name: str | None
) -> None:
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
