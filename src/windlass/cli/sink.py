"""`windlass sink`: writes the batches of buffered datasets to their tables. Run any number of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict

from rich.markup import escape

from windlass import __version__
from windlass.api.metrics import tally_app
from windlass.cli.logs import set_up_logs
from windlass.cli.options import NO_DATABASE, NO_LOG, DatabaseOptions, LogOptions
from windlass.cli.output import Unusable, print_json, say
from windlass.cli.process import run_async
from windlass.cli.serve import engine_options, sink_of
from windlass.cli.shutdown import stop_signal
from windlass.datasets.sink_metrics import SinkRows
from windlass.engine.engine import Engine
from windlass.engine.read.metrics import Tally
from windlass.net.server.server import listening
from windlass.serve import open_engine
from windlass.settings import Settings, without_password
from windlass.settings.value import Address


def sink(*, database: DatabaseOptions = NO_DATABASE, log: LogOptions = NO_LOG) -> None:
    """Write the batches of buffered datasets to their tables, until Ctrl-C or SIGTERM. Batches are read under the
    setting scratch_uri, which must be that of the servers. While the data database is away, the sink waits. With the
    setting worker_metrics it serves its own metrics."""
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
    async with (
        open_engine(url, **engine_options(settings)) as engine,
        sink_of(engine, settings),
        _metrics(engine, settings.worker_metrics) as metrics,
    ):
        if metrics is not None:
            shown["metrics"] = metrics
        if as_json:
            print_json({**shown, "version": __version__})
        else:
            say(f"[bold]Windlass[/bold] {__version__}: the sink is running")
            for name, address in shown.items():
                say(f"  {name:<13} {escape(address)}")
        await stop.wait()
    if not as_json:
        say("Stopped.")


@asynccontextmanager
async def _metrics(engine: Engine, address: Address | None) -> AsyncIterator[str | None]:
    """Serves `GET /metrics` of this process until the block ends, and yields its URL."""
    if address is None:
        yield None
        return
    tally = Tally()
    engine.count(tally)
    async with listening(tally_app(tally, engine.service(SinkRows)), address.host, address.port) as url:
        yield f"{url}/metrics"
