"""Opens the database of a command: the one in the settings, or the embedded PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from windlass.engine.engine import Engine
from windlass.serve import checked_url, migrate_database, open_blobs, open_embedded
from windlass.settings import Settings
from windlass.store.store import Store


@asynccontextmanager
async def open_url(settings: Settings, *, migrate: bool = True) -> AsyncIterator[str]:
    """Yields the URL of the database. With `migrate`, an embedded one is brought to the schema of this version."""
    if settings.database_url is not None:
        yield checked_url(settings.database_url)
        return
    async with open_embedded(settings.data_dir) as url:
        if migrate:
            await migrate_database(url)
        yield url


@asynccontextmanager
async def idle_engine(settings: Settings) -> AsyncIterator[Engine]:
    """Yields an engine whose loops do not run, for commands that make a few calls."""
    async with open_url(settings) as url:
        blobs = None if settings.blobs_url is None else open_blobs(settings.blobs_url)
        engine = Engine(Store(url, pooled=settings.pooled), listen=False, blobs=blobs)
        try:
            await engine.store.check_schema()
            yield engine
        finally:
            await engine.close()
