"""Health: whether the process lives, and whether it can do its work. The only routes without a key."""

from __future__ import annotations

from msgspec import Struct

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


@table.add("GET", "/readyz", None)
async def readyz(call: Call[None, None]) -> Health:
    """The database answers, so that requests can be served."""
    await call.engine.ping()
    return Health("ok")
