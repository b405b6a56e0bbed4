"""Upgrades the schema from one version to the next, and checks that code and schema match.

Version 1 is `schema.sql`; later versions are the files in `migrations`. A migration that was applied never changes: its
checksum is recorded in the transaction that applies it. A lock makes processes take turns. The schema `windlass` and
the table `windlass.migration` are created here, before the first migration runs.
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
_FILE_NAME = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")

_LOCK = f"select pg_advisory_xact_lock({int.from_bytes(b'windlass')})"
_HAS_LEDGER = "select to_regclass('windlass.migration')"
_APPLIED = "select version, name, checksum from windlass.migration order by version"
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
    """One version of the schema. Its text is read with `\n` line ends, so the checksum is the same on all systems."""

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
        """The statement that records it as applied. Its values need no quoting."""
        values = f"{self.version}, '{self.name}', '{self.checksum}'"
        return f"insert into windlass.migration (version, name, checksum) values ({values});"  # noqa: S608


@cache
def load_migrations() -> tuple[Migration, ...]:
    """All migrations in order, the first of which is the schema."""
    return read_migrations(resources.files("windlass.store"))


def read_migrations(folder: Traversable) -> tuple[Migration, ...]:
    """`schema.sql` and the folder `migrations` beside it."""
    schema = Migration(1, "schema", (folder / "schema.sql").read_text(encoding="utf-8"))
    names = sorted(file.name for file in (folder / "migrations").iterdir() if file.name.endswith(".sql"))
    found = [schema]
    for name in names:
        match = _FILE_NAME.fullmatch(name)
        if match is None:
            raise Invalid(f"{name!r} is not named like 0002_what_it_does.sql", field="migrations")
        text = (folder / "migrations" / name).read_text(encoding="utf-8")
        found.append(Migration(int(match[1]), match[2], text))
    if [migration.version for migration in found] != list(range(1, len(found) + 1)):
        raise Invalid(f"{', '.join(names)} are not numbered 0002, 0003, … without gaps", field="migrations")
    return tuple(found)


async def migrate(
    connection: asyncpg.Connection, *, target: int | None = None, migrations: Sequence[Migration] | None = None
) -> tuple[Migration, ...]:
    """Apply the missing migrations, up to `target`, and return them. Many processes may call this at once."""
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
    # Read committed, to see what other processes applied while we waited for the lock.
    async with connection.transaction(isolation="read_committed"):
        await connection.execute(_LOCK)
        if await connection.fetchval(_HAS_LEDGER) is None:
            await connection.execute(_LEDGER)
        applied = await connection.fetch(_APPLIED)
        _compare(applied, known)
        if len(applied) >= len(wanted):
            return None
        migration = wanted[len(applied)]
        try:
            await connection.execute(migration.sql)
            await connection.execute(migration.record)
        except (asyncpg.PostgresConnectionError, asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError) as error:
            raise StoreBusy(f"migration {migration.title} was interrupted and changed nothing: {error}") from error
        except asyncpg.PostgresError as error:
            raise Rejected(f"migration {migration.title} failed and changed nothing: {error}") from error
        return migration


async def check(connection: asyncpg.Connection, *, migrations: Sequence[Migration] | None = None) -> None:
    """Raise Rejected unless the schema is exactly the one of this code."""
    _require_server(connection)
    known = load_migrations() if migrations is None else tuple(migrations)
    async with connection.transaction(readonly=True):
        if await connection.fetchval(_HAS_LEDGER) is None:
            raise Rejected("this database has no Windlass schema: run `windlass migrate`", reason="missing")
        applied = await connection.fetch(_APPLIED)
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


def _compare(applied: Sequence[asyncpg.Record], known: Sequence[Migration]) -> None:
    """Raise Rejected unless the applied migrations are the first of the known ones, with the same text. A released
    schema never changes, so a database with another first version was made by an unreleased Windlass."""
    titles = [f"{row['version']:04}_{row['name']}" for row in applied]
    if applied and known and applied[0]["checksum"] != known[0].checksum:
        raise Rejected(
            f"this database was made by a development version of Windlass ({titles[0]}) and cannot be upgraded: "
            "remove the development folder (.windlass), or start with an empty database",
            reason="development",
        )
    if len(applied) > len(known):
        raise Rejected(
            f"the schema is at version {applied[-1]['version']}, newer than this Windlass, which knows {len(known)}: "
            "install the newer release",
            reason="newer",
        )
    for row, title, migration in zip(applied, titles, known, strict=False):
        if (row["version"], row["checksum"]) != (migration.version, migration.checksum):
            raise Rejected(
                f"migration {migration.title} is not the one that was applied to this database ({title}): "
                "an applied migration must not be edited, write a new one",
                reason="edited",
            )


def render_sql(migrations: Iterable[Migration]) -> str:
    """A psql script that applies these migrations, and fails unless the schema is at the version before the first."""
    return "\\set ON_ERROR_STOP on\n" + "".join(map(_script, migrations))


def _script(migration: Migration) -> str:
    # The separate semicolon ends a text that lacks one or ends with a comment.
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
