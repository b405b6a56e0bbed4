"""Health and metrics: whether the process lives, whether it can do its work, and what happened. Health is the only
thing that is told without a key."""

from __future__ import annotations

from msgspec import Struct
from starlette.responses import Response

from windlass.core.access import Role, check_reach
from windlass.http.metrics import CONTENT_TYPE, metrics_text
from windlass.http.route import Call, Table

table = Table("health")


class Health(Struct, frozen=True):
    """`ok` says it all."""

    status: str


@table.add("GET", "/livez", None)
async def livez(call: Call[None, None]) -> Health:
    """The process lives."""
    assert call.engine
    return Health("ok")


@table.add("GET", "/metrics", Role.VIEWER, media="text/plain")
async def metrics(call: Call[None, None]) -> Response:
    """Metrics as Prometheus reads them. They tell of all namespaces, and so need a key that is bound to none."""
    check_reach(call.principal, None)
    return Response(await metrics_text(call.engine), media_type=CONTENT_TYPE)


@table.add("GET", "/readyz", None)
async def readyz(call: Call[None, None]) -> Health:
    """The database answers, so that requests can be served."""
    await call.engine.ping()
    return Health("ok")
