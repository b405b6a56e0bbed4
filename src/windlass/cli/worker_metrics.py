"""The metrics of a worker beside the database: what it claims and reports goes past the servers, so it tells itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from windlass.settings import Address


@asynccontextmanager
async def serving_metrics(client: object, place: Address | None) -> AsyncIterator[str | None]:
    """`GET /metrics` there until the block ends; yields its URL. A worker far from the database has nothing to tell."""
    if place is None:
        yield None
        return
    from windlass.engine.engine import Engine  # what serves is loaded only where it is asked for
    from windlass.engine.metrics import Tally
    from windlass.http.metrics import tally_app
    from windlass.http.server import listening

    if not isinstance(client, Engine):
        yield None
        return
    tally = Tally()
    client.count(tally)
    async with listening(tally_app(tally), place.host, place.port) as url:
        yield f"{url}/metrics"
