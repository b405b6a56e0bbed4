"""Metrics of a worker that uses the database directly. Its claims and reports bypass the servers, so it serves them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from windlass.settings import Address


@asynccontextmanager
async def serving_metrics(client: object, address: Address | None) -> AsyncIterator[str | None]:
    """Serves `GET /metrics` until the block ends and yields its URL. A worker that uses a server has no metrics."""
    if address is None:
        yield None
        return
    from windlass.api.metrics import tally_app
    from windlass.engine.engine import Engine  # imported only when metrics are on
    from windlass.engine.read.metrics import Tally
    from windlass.net.server.server import listening

    if not isinstance(client, Engine):
        yield None
        return
    tally = Tally()
    client.count(tally)
    async with listening(tally_app(tally), address.host, address.port) as url:
        yield f"{url}/metrics"
