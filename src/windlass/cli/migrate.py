"""`windlass migrate`: applies or prints the migrations of this version."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from windlass.cli.database import open_url
from windlass.cli.options import NO_DATABASE, DatabaseOptions
from windlass.cli.output import Unusable, print_json, say
from windlass.cli.process import run_async
from windlass.datasets.data.database import render_data_sql
from windlass.serve import migrate_data_database, migrate_database
from windlass.settings import Settings
from windlass.store.migrate import Migration, load_migrations, render_sql


def migrate(
    *,
    sql: Annotated[bool, Parameter(show_default=False)] = False,
    data: Annotated[bool, Parameter(show_default=False)] = False,
    target: int | None = None,
    database: DatabaseOptions = NO_DATABASE,
) -> None:
    """Migrate the database to the schema of this version, and the data database, if there is one beside it. Safe to run
    from several processes at once.

    Parameters
    ----------
    sql
        Print the SQL statements instead of running them. They include the tables of datasets.
    data
        With `--sql`: print only the tables of datasets, for a data database of its own.
    target
        Stop at this version.
    """
    if data and not sql:
        raise Unusable("--data needs --sql: without it, both databases are migrated")
    if sql and data:
        print("\\set ON_ERROR_STOP on\n" + render_data_sql())
        return
    if sql:
        chosen = [m for m in load_migrations() if target is None or m.version <= target]
        print(render_sql(tuple(chosen)) + render_data_sql())
        return
    applied = run_async(_migrate(database.settings(), target))
    if database.json:
        print_json({"applied": [{"version": m.version, "name": m.name} for m in applied]})
        return
    for migration in applied:
        say(f"applied {migration.version:04d} {migration.name}")
    say(f"{len(applied)} applied." if applied else "The schema is up to date.")


async def _migrate(settings: Settings, target: int | None) -> tuple[Migration, ...]:
    async with open_url(settings, migrate=False) as url:
        applied = await migrate_database(url, target)
    if settings.data_database_url is not None:
        await migrate_data_database(settings.data_database_url)
    return applied
