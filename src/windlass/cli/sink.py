"""`windlass sink`: writes the batches of buffered datasets to their tables. Run any number of them."""

from __future__ import annotations

from dataclasses import asdict

from rich.markup import escape

from windlass import __version__
from windlass.cli.logs import set_up_logs
from windlass.cli.options import NO_DATABASE, NO_LOG, DatabaseOptions, LogOptions
from windlass.cli.output import Unusable, print_json, say
from windlass.cli.process import run_async
from windlass.cli.serve import engine_options, sink_of
from windlass.cli.shutdown import stop_signal
from windlass.serve import open_engine
from windlass.settings import Settings, without_password


def sink(*, database: DatabaseOptions = NO_DATABASE, log: LogOptions = NO_LOG) -> None:
    """Write the batches of buffered datasets to their tables, until Ctrl-C or SIGTERM. Batches are read under the
    setting scratch_uri, which must be that of the servers. While the data database is away, the sink waits."""
    settings = database.settings(**asdict(log))
    if settings.database_url is None:
        raise Unusable("sink needs a database: give --database-url or DATABASE_URL, or use `windlass dev`")
    set_up_logs(settings)
    run_async(run_sink(settings, settings.database_url, as_json=database.json))


async def run_sink(settings: Settings, url: str, *, as_json: bool) -> None:
    stop = stop_signal()
    shown = {
        "database": without_password(url),
        "data_database": without_password(settings.data_database_url or url),
        "scratch": settings.scratch_uri,
    }
    async with open_engine(url, **engine_options(settings)) as engine, sink_of(engine, settings):
        if as_json:
            print_json({**shown, "version": __version__})
        else:
            say(f"[bold]Windlass[/bold] {__version__}: the sink is running")
            for name, address in shown.items():
                say(f"  {name:<13} {escape(address)}")
        await stop.wait()
    if not as_json:
        say("Stopped.")
