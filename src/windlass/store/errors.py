"""Turns what the database driver raises into our error tree; above `store` nobody knows the driver.

Owns one distinction that matters to callers: `CommitUnknown` means that the transaction may or may not have been
committed. Everything we write is made to be run again in that case, with the same ids.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import parse_qs, urlsplit

import asyncpg

from windlass.errors import Conflict, Invalid, StoreBusy, WindlassError, why_broken


class CommitUnknown(StoreBusy):
    """The reply to a commit was lost: it may have happened or not."""

    code = "commit_unknown"


class Away(StoreBusy):
    """The connection broke, or the database is going: another statement on it makes no sense."""


class LockHeld(StoreBusy):
    """Another transaction holds a lock for longer than we wait."""

    code = "lock_held"


class Duplicate(Conflict):
    """A row with this id is there already."""

    code = "duplicate"


_AWAY = (
    OSError,
    asyncio.TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # of a connection that was closed between two statements
    asyncpg.PostgresConnectionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.OperatorInterventionError,
    asyncpg.PostgresSystemError,  # its disk fails
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.TransactionTimeoutError,
)
_BUSY = (
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.QueryCanceledError,
    asyncpg.InvalidCachedStatementError,  # a migration ran beside us; the driver has dropped the old plan
)


def translate(error: BaseException) -> WindlassError | None:
    """Our error for the driver's, or None if it is a defect of ours that must not be hidden."""
    if isinstance(error, asyncpg.LockNotAvailableError):
        return LockHeld(f"somebody holds a lock on this: {error}")
    if isinstance(error, asyncpg.ReadOnlySQLTransactionError):  # another connection may lead to the new primary
        return Away("the database takes no writes now: it is a standby, or was set to read only")
    if isinstance(error, _BUSY):
        return StoreBusy(f"the database could not do this now: {error}")
    if isinstance(error, _AWAY):
        return Away(f"the database is away: {why_broken(error)}")
    if isinstance(error, asyncpg.InvalidPasswordError | asyncpg.InvalidAuthorizationSpecificationError):
        return StoreBusy(f"the database refused our login: {error}")
    if isinstance(error, asyncpg.InvalidCatalogNameError):
        return StoreBusy(f"there is no such database: {error}")
    if isinstance(error, asyncpg.UndefinedTableError | asyncpg.InvalidSchemaNameError | asyncpg.UndefinedFunctionError):
        return StoreBusy(f"the schema is missing or old ({error}): run `windlass migrate`")
    if isinstance(error, asyncpg.UniqueViolationError):
        return Duplicate(str(error))
    if isinstance(error, asyncpg.DataError):
        return Invalid(f"the database cannot store this: {error}")
    return None


def place_of(dsn: str) -> str:
    """Where a database is, without who we are to it."""
    parts = urlsplit(dsn)
    host = parts.netloc.rpartition("@")[2] or parse_qs(parts.query).get("host", [""])[0]
    return f"{host}{parts.path}"


@contextmanager
def translated(dsn: str | None = None) -> Iterator[None]:
    """Raise our error instead of the driver's. With `dsn`, the error names the server."""
    try:
        yield
    except WindlassError:
        raise
    except Exception as error:
        ours = translate(error)
        if ours is None:
            raise
        if dsn is not None and isinstance(ours, StoreBusy):
            ours = type(ours)(f"{ours.message} (at {place_of(dsn)})")
        raise ours from error
