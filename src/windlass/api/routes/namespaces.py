"""Namespaces: isolation between tenants. First use creates a namespace; these routes list and declare them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import Struct

from windlass.api.framework import cursor
from windlass.api.framework.forms import Cursor, Limit, Listed, Nothing
from windlass.api.framework.route import Call, Table
from windlass.core.access import Role
from windlass.errors import NotFound

table = Table("namespaces")


class NamespaceForm(Struct, frozen=True):
    """A namespace, and when it was first used or declared."""

    name: str
    created_at: datetime


class NamespaceCounts(NamespaceForm, frozen=True):
    """A namespace, and the number of its tasks in each state."""

    counts: dict[str, int]


class NamespacePage(Struct, frozen=True, forbid_unknown_fields=True):
    """A page of namespaces."""

    after: Cursor | None = None
    limit: Limit = 200


@table.add("GET", "/api/v1/namespaces", Role.VIEWER)
async def list_namespaces(call: Call[NamespacePage, None]) -> Listed[NamespaceForm]:
    """List namespaces by name. A key that is bound to one namespace sees only that one."""
    query = call.query
    found = await call.engine.keys.list_namespaces(
        call.principal.namespace, after=cursor.to_name(query.after), limit=query.limit + 1
    )
    page = found[: query.limit]
    more = page[-1].name if len(found) > query.limit else None
    return Listed([NamespaceForm(n.name, n.created_at) for n in page], cursor.of_name(more))


@table.add("GET", "/api/v1/namespaces/{name}", Role.VIEWER)
async def get_namespace(call: Call[None, None]) -> NamespaceCounts:
    """Get a namespace with the counts of its tasks."""
    found = await _find(call)
    totals = await call.engine.tasks.totals(found.name)
    return NamespaceCounts(found.name, found.created_at, {state.value: count for state, count in totals.items()})


@table.add("PUT", "/api/v1/namespaces/{name}", Role.ADMIN)
async def put_namespace(call: Call[None, Nothing]) -> NamespaceForm:
    """Declare a namespace. A namespace that exists does not change."""
    call.reach(call.path["name"])
    await call.engine.keys.declare_namespace(call.path["name"])
    return await _find(call)


async def _find(call: Call[Any, Any]) -> NamespaceForm:
    name = call.path["name"]
    call.reach(name)
    found = [] if "\x00" in name else await call.engine.keys.list_namespaces(name)
    if not found:
        raise NotFound(f"there is no namespace {name}")
    return NamespaceForm(found[0].name, found[0].created_at)
