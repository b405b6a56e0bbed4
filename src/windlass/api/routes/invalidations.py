"""Invalidations: data of a dataset that was wrong, and the jobs that repair what they made of it."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from msgspec import Raw, Struct

from windlass.api.framework import cursor
from windlass.api.framework.forms import Cursor, In, Key, Limit, Listed
from windlass.api.framework.request import KEY_HEADER
from windlass.api.framework.route import Call, Table
from windlass.api.routes.catalog import which_dataset
from windlass.core.access import Role
from windlass.datasets.invalidations import Invalidations
from windlass.datasets.rules.invalidation import Bounds, InvalidPart, Reason, Scope
from windlass.datasets.tables.invalidations import InvalidationView

table = Table("invalidations")


class InvalidationOrder(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is wrong in the current version of a dataset: a partition, by its key; or the rows whose declared columns
    lie between bounds, both inclusive."""

    scope: Scope
    reason: Reason
    partition_key: Key | None = None
    row_filter: dict[str, Bounds] | None = None


class InvalidationPage(In, frozen=True, forbid_unknown_fields=True):
    """A page of invalidations."""

    after: Cursor | None = None
    limit: Limit = 50


class InvalidationForm(Struct, frozen=True, kw_only=True):
    """An invalidation. `tasks` are those of the jobs that read the data, `processed_by` the jobs whose task has
    succeeded. `processed_at` is when all had; null until then. `source` is the key or the task that reported it."""

    id: UUID
    dataset_uuid: UUID
    dataset_version: UUID
    scope: Scope
    partition_key: str | None
    row_filter: Raw | None
    reason: Reason
    source: Raw
    created_at: datetime
    tasks: list[UUID]
    processed_by: list[str]
    processed_at: datetime | None


@table.add("POST", "/api/v1/datasets/{dataset}/invalidations", Role.OPERATOR, status=201, headers=(KEY_HEADER,))
async def invalidate(call: Call[In, InvalidationOrder]) -> InvalidationForm:
    """Report that a part of a dataset was wrong. Each job that reads it gets one task. A repeated Idempotency-Key
    returns the same invalidation."""
    order = call.body
    part = InvalidPart(order.scope, order.reason, order.partition_key, order.row_filter)
    service = call.engine.service(Invalidations)
    return _form(await service.invalidate(call.principal, *which_dataset(call), part, key=call.key))


@table.add("GET", "/api/v1/datasets/{dataset}/invalidations", Role.OPERATOR)
async def list_invalidations(call: Call[InvalidationPage, None]) -> Listed[InvalidationForm]:
    """List the invalidations of a dataset, newest first."""
    query = call.query
    found = await call.engine.service(Invalidations).page(
        call.principal, *which_dataset(call), after=cursor.to_position(query.after), limit=query.limit + 1
    )
    page, more = cursor.page_of(found, query.limit, lambda view: (view.invalidation.created_at, view.invalidation.id))
    return Listed([_form(view) for view in page], more)


def _form(view: InvalidationView) -> InvalidationForm:
    i = view.invalidation
    return InvalidationForm(
        id=i.id, dataset_uuid=i.dataset_uuid, dataset_version=i.dataset_version, scope=i.scope, partition_key=i.key,
        row_filter=None if i.row_filter is None else Raw(i.row_filter.encode()), reason=i.reason,
        source=Raw(i.source.encode()), created_at=i.created_at, tasks=list(view.tasks),
        processed_by=list(view.processed_by), processed_at=view.processed_at,
    )  # fmt: skip
