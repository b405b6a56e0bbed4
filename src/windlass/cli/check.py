"""`windlass check`: compares workflow code with the recorded steps of unfinished workflows, before a deployment."""

from __future__ import annotations

from rich.markup import escape

from windlass.cli.database import idle_engine
from windlass.cli.options import NO_DATABASE, DatabaseOptions
from windlass.cli.output import Exit, say, show
from windlass.cli.process import run_async
from windlass.cli.worker import export_settings, find_app
from windlass.sdk.app import App
from windlass.sdk.workflow.drift import Drift, check_app
from windlass.settings import Settings


def check(target: str, *, database: DatabaseOptions = NO_DATABASE) -> int:
    """Check the workflows of an app against the recorded steps of unfinished workflows. Runs no handler. Exit code 1 if
    a workflow would be parked.

    Parameters
    ----------
    target
        Module and name of the app, such as `shop.tasks:app`.
    """
    settings = database.settings()
    export_settings(settings)
    drifts = run_async(_check(find_app(target), settings))
    show(drifts, database.json, lambda: _print(drifts))
    return Exit.FAILED if drifts else Exit.OK


async def _check(app: App, settings: Settings) -> list[Drift]:
    async with idle_engine(settings) as engine:
        return await check_app(app, engine)


def _print(drifts: list[Drift]) -> None:
    for drift in drifts:
        say(f"[bold]{drift.kind}[/bold] {drift.task_id} ({drift.state})")
        for line in drift.difference.splitlines():
            say(f"    {escape(line)}")
    say(f"{len(drifts)} workflows would be parked." if drifts else "All unfinished workflows match their code.")
