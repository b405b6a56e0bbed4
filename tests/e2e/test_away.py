"""What callers see while PostgreSQL goes away and comes back: an error that says "later", and never the driver's."""

from __future__ import annotations

import asyncpg
import pytest

from windlass import Unavailable, WindlassError, open_engine
from windlass.serve import migrate_database
from windlass.store import migrate
from windlass.store.errors import translated

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError("nobody there"),
        TimeoutError(),
        asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation"),
        asyncpg.CannotConnectNowError("the database system is starting up"),
        asyncpg.AdminShutdownError("terminating connection due to administrator command"),
        asyncpg.CrashShutdownError("terminating connection because of crash of another server process"),
        asyncpg.InterfaceError("connection is closed"),
        asyncpg.InternalClientError("cannot switch to state 12; another operation (2) is in progress"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_the_driver_says_of_a_database_that_went_away_means_later(error: Exception) -> None:
    with pytest.raises(Unavailable), translated():
        raise error


def test_a_defect_of_ours_is_not_mistaken_for_an_absent_database() -> None:
    with pytest.raises(ZeroDivisionError), translated():
        _ = 1 / 0
    assert not issubclass(ZeroDivisionError, WindlassError)


async def test_a_database_that_goes_away_while_an_engine_or_a_migration_begins_means_later(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def torn(*_args: object, **_options: object) -> None:
        raise asyncpg.InternalClientError("cannot switch to state 15; another operation (2) is in progress")

    monkeypatch.setattr(migrate, "check", torn)
    monkeypatch.setattr(migrate, "migrate", torn)
    with pytest.raises(Unavailable):
        async with open_engine(database):
            pass
    with pytest.raises(Unavailable):
        await migrate_database(database)
