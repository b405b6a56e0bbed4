"""The commands of `windlass`."""

from __future__ import annotations

import os
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter
from rich.console import Console

from windlass import __version__
from windlass.app import DATA_DIR, migrate_database, open_database
from windlass.cli.dev import run_dev
from windlass.cli.worker import run_worker
from windlass.core.error import Unavailable, WindlassError
from windlass.store.migrate import load_migrations, render_sql

EXIT_FAILED, EXIT_UNREACHABLE = 1, 3

app = App(
    name="windlass", help="A durable task and workflow engine: one engine, every kind of worker.", version=__version__
)
console = Console()
errors = Console(stderr=True)

DatabaseUrl = Annotated[str | None, Parameter(help="PostgreSQL URL; default: DATABASE_URL, else an embedded one.")]
DataDir = Annotated[Path, Parameter(help="Where the embedded PostgreSQL keeps its data.")]


@app.command
def dev(*, data_dir: DataDir = DATA_DIR, database_url: DatabaseUrl = None) -> None:
    """Run PostgreSQL, an engine and a sample worker on this machine, until Ctrl-C."""
    _run(run_dev(console, database_url, data_dir))


@app.command
def worker(
    target: str,
    *,
    queue: Annotated[tuple[str, ...], Parameter(name=("--queue", "-q"), negative="")] = (),
    concurrency: Annotated[int, Parameter(name=("--concurrency", "-c"))] = 32,
    name: str | None = None,
) -> None:
    """Run the handlers of an app: `windlass worker shop.tasks:app -q mail -c 32`. Ctrl-C or SIGTERM drains it.

    Parameters
    ----------
    target
        The module and the name of the app in it, such as `shop.tasks:app`.
    queue
        Take tasks of these queues only (may be given several times); default: all that the app's handlers name.
    concurrency
        How many tasks run side by side.
    name
        How the worker is called in timelines; default: host and process id.
    """
    _run(run_worker(console, target, queue, concurrency, name))


@app.command
def migrate(
    *, sql: bool = False, target: int | None = None, data_dir: DataDir = DATA_DIR, database_url: DatabaseUrl = None
) -> None:
    """Bring the database to the schema of this version. Safe to run from many processes at once.

    Parameters
    ----------
    sql
        Print the statements instead of running them.
    target
        Stop at this version.
    """
    if sql:
        chosen = [m for m in load_migrations() if target is None or m.version <= target]
        print(render_sql(tuple(chosen)))
        return
    _run(_migrate(database_url, data_dir, target))


async def _migrate(database_url: str | None, data_dir: Path, target: int | None) -> None:
    given = database_url or os.environ.get("DATABASE_URL")
    if given is not None:
        applied = await migrate_database(given, target)
    else:
        async with open_database(data_dir=data_dir) as url:  # opening an embedded database brings it up to date
            applied = await migrate_database(url, target)
    for migration in applied:
        console.print(f"applied {migration.version:04d} {migration.name}")
    console.print("The schema is up to date." if not applied else f"{len(applied)} applied.")


def _run(work: Coroutine[Any, Any, None]) -> None:
    """Errors of ours are one line for a person and an exit code for a program; anything else is a defect and shows."""
    try:
        import uvloop

        uvloop.run(work)
    except Unavailable as error:
        _complain(error)
        sys.exit(EXIT_UNREACHABLE)
    except WindlassError as error:
        _complain(error)
        sys.exit(EXIT_FAILED)
    except KeyboardInterrupt:
        sys.exit(130)


def _complain(error: WindlassError) -> None:
    errors.print("[red]error[/red]", error.message, highlight=False, soft_wrap=True)
