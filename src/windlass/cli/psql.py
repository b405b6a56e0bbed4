"""`windlass psql`: psql on the database of datasets. A dataset in PostgreSQL is a variable with its name, which stands
for the view of its current version."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote, urlsplit, urlunsplit

from cyclopts import Parameter

from windlass.cli.api import HERE
from windlass.cli.database import open_url
from windlass.cli.doctor import NO_DATABASE_YET
from windlass.cli.options import DatabaseOptions
from windlass.cli.output import Exit, Unusable
from windlass.cli.process import run_async
from windlass.datasets.rules.table_sql import view_name
from windlass.errors import Rejected, WindlassError
from windlass.serve import has_embedded
from windlass.settings import Settings
from windlass.store.embedded.host import find_software

DATASETS_MAX = 10_000


def psql(
    sql: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    *,
    csv: Annotated[bool, Parameter(show_default=False, help="Print CSV.")] = False,
    database_url: Annotated[str | None, Parameter(help="PostgreSQL URL. Default: the settings, else embedded.")] = None,
    data_dir: Annotated[Path | None, Parameter(help="Data folder of the embedded PostgreSQL.")] = None,
) -> int:
    """Run SQL on the database of datasets, or open psql: `windlass psql 'select * from :alerts'`. Each dataset in
    PostgreSQL is a psql variable with its name: the view of its current version.

    Parameters
    ----------
    sql
        What to run. Default: psql asks you.
    """
    settings = DatabaseOptions(database_url, data_dir).settings()
    if settings.database_url is None and settings.data_database_url is None and not has_embedded(settings.data_dir):
        raise Unusable(f"there is no database in {settings.data_dir}: {NO_DATABASE_YET}")
    return run_async(_run(settings, sql, csv))


async def _run(settings: Settings, sql: str | None, csv: bool) -> int:
    async with open_url(settings, migrate=False) as url:
        parts = urlsplit(settings.data_database_url or url)
        user, _, password = parts.netloc.rpartition("@")[0].partition(":")
        shown = parts._replace(netloc=parts.netloc.replace(f"{user}:{password}@", f"{user}@", 1))
        # Not as an argument: every user of the machine can read those.
        variables = {**os.environ, "PGPASSWORD": unquote(password)} if password else dict(os.environ)
        command = [program(), "--dbname", urlunsplit(shown), "--quiet", *(["--csv"] * csv)]
        for name, view in views():
            command += ["--set", f"{name}={view}"]
        if sql is not None:
            command += ["--no-psqlrc", "--set", "ON_ERROR_STOP=1", "--pset", "pager=off", "--file", "-"]
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, lambda: None)  # Ctrl-C is for psql
        process = await asyncio.create_subprocess_exec(
            *command, stdin=None if sql is None else asyncio.subprocess.PIPE, env=variables
        )
        await process.communicate(None if sql is None else sql.encode())
        return Exit.OK if process.returncode == 0 else Exit.FAILED


def program() -> str:
    """Path of psql: that of the embedded PostgreSQL, else the one on `PATH`."""
    try:
        return str(find_software(None).program("psql"))
    except Rejected:
        found = shutil.which("psql")
    if found is None:
        raise Unusable("psql is not installed: install it, or windlass-engine[embedded], which has it")
    return found


def views() -> Iterator[tuple[str, str]]:
    """Datasets in PostgreSQL and their views. None if no server answers."""
    try:
        for dataset in HERE.client().items("/datasets", HERE.space, DATASETS_MAX):
            if dataset["storage"] == "postgres" and dataset["name"] and dataset["current_version"]:
                yield dataset["name"], view_name(dataset["dataset_uuid"])
    except WindlassError:
        return
