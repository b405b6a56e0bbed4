"""Health and metrics. Only health needs no key."""

from __future__ import annotations

from msgspec import Struct

from windlass.api.framework.route import Call, Table
from windlass.api.metrics import CONTENT_TYPE, metrics_text
from windlass.core.access import Role
from windlass.net.asgi import Response

table = Table("health")


class Health(Struct, frozen=True):
    """`status` is `ok`."""

    status: str


@table.add("GET", "/livez", None)
async def livez(call: Call[None, None]) -> Health:  # noqa: ARG001
    """Check that the process is alive."""
    return Health("ok")


@table.add("GET", "/metrics", Role.VIEWER, media="text/plain")
async def metrics(call: Call[None, None]) -> Response:
    """Get metrics in the Prometheus format. They cover all namespaces, so the key must not be bound to one."""
    call.reach(None)
    return Response(await metrics_text(call.engine), media=CONTENT_TYPE)


@table.add("GET", "/readyz", None)
async def readyz(call: Call[None, None]) -> Health:
    """Check that the database answers, so that requests can be served."""
    await call.engine.ping()
    return Health("ok")
