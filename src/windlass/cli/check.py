"""`windlass check`: does the code still fit what its unfinished workflows have recorded? Ask before you deploy."""

from __future__ import annotations

from rich.markup import escape

from windlass.app import open_blobs, open_database
from windlass.cli.option import NO_DATABASE, DatabaseOptions
from windlass.cli.output import Exit, say, show
from windlass.cli.process import run_async
from windlass.cli.worker import find_app, tell_the_app
from windlass.engine.engine import Engine
from windlass.sdk.app import App
from windlass.sdk.check import Drift, check_app
from windlass.settings import Settings
from windlass.store.store import Store


def check(target: str, *, database: DatabaseOptions = NO_DATABASE) -> int:
    """Hold the workflows of an app against their records; exit code 1 if one would be parked. Nothing is carried out.

    Parameters
    ----------
    target
        The module and the name of the app in it, such as `shop.tasks:app`.
    """
    settings = database.settings()
    tell_the_app(settings)
    drifts = run_async(_check(find_app(target), settings))
    show(drifts, database.json, lambda: _tell(drifts))
    return Exit.FAILED if drifts else Exit.OK


async def _check(app: App, settings: Settings) -> list[Drift]:
    async with open_database(settings.database_url, data_dir=settings.data_dir) as url:
        # Its loops do not run: we only look.
        blobs = None if settings.blobs_url is None else open_blobs(settings.blobs_url)
        engine = Engine(Store(url, pooled=settings.pooled), listen=False, blobs=blobs)
        try:
            await engine.store.check_schema()
            return await check_app(app, engine)
        finally:
            await engine.close()


def _tell(drifts: list[Drift]) -> None:
    for drift in drifts:
        say(f"[bold]{drift.kind}[/bold] {drift.task_id} ({drift.state})")
        for line in drift.difference.splitlines():
            say(f"    {escape(line)}")
    say(f"{len(drifts)} would be parked." if drifts else "Every unfinished workflow fits.")
