"""Namespaces: isolation between tenants. A name is enough to have one; here they are listed and made known."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import Struct

from windlass.core.access import Role
from windlass.core.error import NotFound
from windlass.http import cursor
from windlass.http.form import Cursor, Limit, Listed, Nothing
from windlass.http.route import Call, Table

table = Table("namespaces")


class NamespaceForm(Struct, frozen=True):
    """A namespace, and since when it is known."""

    name: str
    created_at: datetime


class NamespaceCounts(NamespaceForm, frozen=True):
    """A namespace, and how many tasks of it are in each state."""

    counts: dict[str, int]


class NamespacePage(Struct, frozen=True, forbid_unknown_fields=True):
    """A page of namespaces."""

    after: Cursor | None = None
    limit: Limit = 200


@table.add("GET", "/api/v1/namespaces", Role.VIEWER)
async def list_namespaces(call: Call[NamespacePage, None]) -> Listed[NamespaceForm]:
    """Namespaces by name; a key that is bound to one sees that one."""
    query = call.query
    found = await call.engine.access.list_namespaces(
        call.principal.namespace, after=cursor.to_name(query.after), limit=query.limit + 1
    )
    page = found[: query.limit]
    more = page[-1].name if len(found) > query.limit else None
    return Listed([NamespaceForm(n.name, n.created_at) for n in page], cursor.of_name(more))


@table.add("GET", "/api/v1/namespaces/{name}", Role.VIEWER)
async def get_namespace(call: Call[None, None]) -> NamespaceCounts:
    """One namespace, with its tasks counted."""
    found = await _known(call)
    totals = await call.engine.views.totals(found.name)
    return NamespaceCounts(found.name, found.created_at, {state.value: count for state, count in totals.items()})


@table.add("PUT", "/api/v1/namespaces/{name}", Role.ADMIN)
async def put_namespace(call: Call[None, Nothing]) -> NamespaceForm:
    """Make a namespace known; one that is known stays as it is."""
    call.reach(call.path["name"])
    await call.engine.access.declare_namespace(call.path["name"])
    return await _known(call)


async def _known(call: Call[Any, Any]) -> NamespaceForm:
    name = call.path["name"]
    call.reach(name)
    found = [] if "\x00" in name else await call.engine.access.list_namespaces(name)
    if not found:
        raise NotFound(f"there is no namespace {name}")
    return NamespaceForm(found[0].name, found[0].created_at)
