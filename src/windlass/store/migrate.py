"""Brings the schema from one version to the next, and tells when code and schema do not fit.

Version 1 is `schema.sql`; later versions are the files in `migrations`. The rule of this file: a migration that was
applied never changes. Its checksum is recorded with it, in the transaction that applies it, under a lock that makes any
number of processes take turns. It does not know what the migrations say; the schema `windlass` and the table
`windlass.migration` are its own, and are there before the first of them runs.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

import asyncpg

from windlass.errors import Invalid, Rejected, StoreBusy

SERVER_MAJOR_MIN = 14
_LOCK_KEY = int.from_bytes(b"windlass")
_FILE_NAME = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")

_LOCK = f"select pg_advisory_xact_lock({_LOCK_KEY})"
_LEDGER = """\
create schema if not exists windlass;
create table if not exists windlass.migration (
    version    integer     primary key,
    name       text        not null,
    checksum   text        not null,
    applied_at timestamptz not null default statement_timestamp()
);"""


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema. Equal checksums mean equal text, whatever the line ends of the checkout."""

    version: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()

    @property
    def title(self) -> str:
        return f"{self.version:04}_{self.name}"

    @property
    def record(self) -> str:
        """The statement that notes it as applied; both parts of the text are plain words and need no quoting."""
        values = f"{self.version}, '{self.name}', '{self.checksum}'"
        return f"insert into windlass.migration (version, name, checksum) values ({values});"  # noqa: S608


@dataclass(frozen=True, slots=True)
class _Applied:
    version: int
    name: str
    checksum: str


@cache
def load_migrations() -> tuple[Migration, ...]:
    """All migrations in order, the first of which is the schema."""
    return read_migrations(resources.files("windlass.store"))


def read_migrations(folder: Traversable) -> tuple[Migration, ...]:
    """`schema.sql` and the folder `migrations` beside it."""
    schema = Migration(1, "schema", (folder / "schema.sql").read_text(encoding="utf-8"))
    names = sorted(file.name for file in (folder / "migrations").iterdir() if file.name.endswith(".sql"))
    found = (schema, *(_read(folder / "migrations" / name) for name in names))
    if [migration.version for migration in found] != list(range(1, len(found) + 1)):
        raise Invalid(f"{', '.join(names)} are not numbered 0002, 0003, … without gaps", field="migrations")
    return found


def _read(file: Traversable) -> Migration:
    match = _FILE_NAME.fullmatch(file.name)
    if match is None:
        raise Invalid(f"{file.name!r} is not named like 0002_what_it_does.sql", field="migrations")
    return Migration(int(match[1]), match[2], file.read_text(encoding="utf-8"))


async def migrate(
    connection: asyncpg.Connection, *, target: int | None = None, migrations: Sequence[Migration] | None = None
) -> tuple[Migration, ...]:
    """Applies what is missing, up to `target`, and returns it. Safe to call from many processes at once."""
    _require_server(connection)
    known = load_migrations() if migrations is None else tuple(migrations)
    if target is not None and not 0 <= target <= len(known):
        raise Invalid(f"there is no migration {target}; the last one is {len(known)}", field="target")
    wanted = known[:target]
    applied: list[Migration] = []
    while (migration := await _apply_next(connection, known, wanted)) is not None:
        applied.append(migration)
    return tuple(applied)


async def _apply_next(
    connection: asyncpg.Connection, known: Sequence[Migration], wanted: Sequence[Migration]
) -> Migration | None:
    # Read committed: what others applied while we waited for the lock must be seen after it.
    async with connection.transaction(isolation="read_committed"):
        await connection.execute(_LOCK)
        if not await _has_ledger(connection):
            await connection.execute(_LEDGER)
        applied = await _applied(connection)
        _compare(applied, known)
        if len(applied) >= len(wanted):
            return None
        migration = wanted[len(applied)]
        await _apply(connection, migration)
        return migration


async def _apply(connection: asyncpg.Connection, migration: Migration) -> None:
    try:
        await connection.execute(migration.sql)
        await connection.execute(migration.record)
    except (asyncpg.PostgresConnectionError, asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError) as error:
        raise StoreBusy(f"migration {migration.title} was interrupted and changed nothing: {error}") from error
    except asyncpg.PostgresError as error:
        raise Rejected(f"migration {migration.title} failed and changed nothing: {error}") from error


async def check(connection: asyncpg.Connection, *, migrations: Sequence[Migration] | None = None) -> None:
    """Returns if the schema is exactly the one that this code was written for."""
    _require_server(connection)
    known = load_migrations() if migrations is None else tuple(migrations)
    async with connection.transaction(readonly=True):
        if not await _has_ledger(connection):
            raise Rejected("this database has no Windlass schema: run `windlass migrate`", reason="missing")
        applied = await _applied(connection)
    _compare(applied, known)
    if len(applied) < len(known):
        raise Rejected(
            f"the schema is at version {len(applied)}, this Windlass needs {len(known)}: run `windlass migrate`",
            reason="older",
        )


def _require_server(connection: asyncpg.Connection) -> None:
    major = connection.get_server_version().major
    if major < SERVER_MAJOR_MIN:
        raise Rejected(
            f"Windlass needs PostgreSQL {SERVER_MAJOR_MIN} or newer; this server is {major}", reason="server"
        )


async def _has_ledger(connection: asyncpg.Connection) -> bool:
    return await connection.fetchval("select to_regclass('windlass.migration')") is not None


async def _applied(connection: asyncpg.Connection) -> list[_Applied]:
    rows = await connection.fetch("select version, name, checksum from windlass.migration order by version")
    return [_Applied(*row) for row in rows]


def _compare(applied: Sequence[_Applied], known: Sequence[Migration]) -> None:
    """What was applied must be the beginning of what is known, text by text. A released schema never changes, so that a
    database that began with another one was made by an unreleased Windlass."""
    if applied and known and applied[0].checksum != known[0].checksum:
        raise Rejected(
            f"this database was made by a development version of Windlass ({applied[0].version:04}_{applied[0].name}) "
            "and cannot be upgraded: remove the development folder (.windlass), or start with an empty database",
            reason="development",
        )
    if len(applied) > len(known):
        raise Rejected(
            f"the schema is at version {applied[-1].version}, newer than this Windlass, which knows {len(known)}: "
            "install the newer release",
            reason="newer",
        )
    for row, migration in zip(applied, known, strict=False):
        if (row.version, row.checksum) != (migration.version, migration.checksum):
            raise Rejected(
                f"migration {migration.title} is not the one that was applied to this database "
                f"({row.version:04}_{row.name}): an applied migration must not be edited, write a new one",
                reason="edited",
            )


def render_sql(migrations: Iterable[Migration], after: int = 0) -> str:
    """A script for psql that does what `migrate` does from version `after` on, and refuses any other beginning."""
    steps = [_script(migration) for migration in migrations if migration.version > after]
    return "\\set ON_ERROR_STOP on\n" + "".join(steps)


def _script(migration: Migration) -> str:
    # The lone semicolon ends a text that forgot its own, or that ends in a comment.
    return f"""
-- {migration.title}
begin;
{_LOCK};
{_LEDGER}
do $windlass$
declare
    current integer := (select coalesce(max(version), 0) from windlass.migration);
begin
    if current <> {migration.version - 1} then
        raise 'migration {migration.title} cannot follow schema version %', current;
    end if;
end
$windlass$;

{migration.sql.rstrip()}
;
{migration.record}
commit;
"""  # noqa: S608
