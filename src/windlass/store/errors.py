"""Translates the errors of the database driver into ours. Above `store` nothing knows the driver.

`CommitUnknown` means that the transaction may or may not have been committed. Every write can be repeated with the same
ids in that case.
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


class DatabaseUnavailable(StoreBusy):
    """The connection broke, or the database is shutting down: do not use the connection again."""


class LockHeld(StoreBusy):
    """Another transaction holds a lock for longer than we wait."""

    code = "lock_held"


class Duplicate(Conflict):
    """A row with this id exists."""

    code = "duplicate"


_UNAVAILABLE = (
    OSError,
    asyncio.TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # the connection was closed between two statements
    asyncpg.PostgresConnectionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.OperatorInterventionError,
    asyncpg.PostgresSystemError,  # I/O errors of the server
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.TransactionTimeoutError,
)
_BUSY = (
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.QueryCanceledError,
    asyncpg.InvalidCachedStatementError,  # a migration ran; the driver has dropped the old plan
)


def translate(error: BaseException) -> WindlassError | None:
    """Our error for an error of the driver, or None for a defect of ours, which must not be hidden."""
    if isinstance(error, asyncpg.LockNotAvailableError):
        return LockHeld(f"another transaction holds a lock on this: {error}")
    if isinstance(error, asyncpg.ReadOnlySQLTransactionError):  # another connection may lead to the new primary
        return DatabaseUnavailable("the database accepts no writes now: it is a standby, or set to read only")
    if isinstance(error, _BUSY):
        return StoreBusy(f"the database could not run this statement now: {error}")
    if isinstance(error, _UNAVAILABLE):
        return DatabaseUnavailable(f"the database is away: {why_broken(error)}")
    if isinstance(error, asyncpg.InvalidPasswordError | asyncpg.InvalidAuthorizationSpecificationError):
        return StoreBusy(f"the database refused our login: {error}")
    if isinstance(error, asyncpg.InvalidCatalogNameError):
        return StoreBusy(f"there is no such database: {error}")
    if isinstance(error, asyncpg.UndefinedTableError | asyncpg.InvalidSchemaNameError | asyncpg.UndefinedFunctionError):
        return StoreBusy(f"the schema is missing or old ({error}): run `windlass migrate`")
    if isinstance(error, asyncpg.DependentObjectsStillExistError):
        return Conflict(f"other objects of the database depend on it: {error}")
    if isinstance(error, asyncpg.UniqueViolationError):
        return Duplicate(str(error))
    if isinstance(error, asyncpg.DataError | asyncpg.ProgramLimitExceededError):
        return Invalid(f"the database cannot store this: {error}")
    return None


@contextmanager
def translated(dsn: str | None = None) -> Iterator[None]:
    """Raise our error instead of the driver's. With `dsn`, the error names the server, without the credentials."""
    try:
        yield
    except WindlassError:
        raise
    except Exception as error:
        ours = translate(error)
        if ours is None:
            raise
        if dsn is not None and isinstance(ours, StoreBusy):
            parts = urlsplit(dsn)
            host = parts.netloc.rpartition("@")[2] or parse_qs(parts.query).get("host", [""])[0]
            ours = type(ours)(f"{ours.message} (at {host}{parts.path})")
        raise ours from error
