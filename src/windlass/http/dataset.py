"""What tasks have told of datasets: events, and batches that they have handed over."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from msgspec import Struct

from windlass.core.access import Role
from windlass.engine.dataset import EventView, PublishView
from windlass.http import cursor
from windlass.http.form import Cursor, Limit, Listed
from windlass.http.route import Call, Table
from windlass.http.task import seen

table = Table("datasets")


class Page(Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a list."""

    after: Cursor | None = None
    limit: Limit = 50


class EventForm(Struct, frozen=True, kw_only=True):
    """A dataset has reached a cursor, or a partition of it is there. One that was not declared as an output of its task
    is kept for audit, and routed to nobody. `caller` is the SHA-256 of the certificate it was told with. `routed_at` is
    when the outbox had dealt with it; before there are datasets, nobody is told of it then."""

    id: UUID
    attempt: int
    dataset_uuid: UUID
    dataset_version: UUID
    cursor: int | None
    partition_key: str | None
    start: int | None
    end: int | None
    declared: bool
    caller: str
    at: datetime
    routed_at: datetime | None


class PublishForm(Struct, frozen=True, kw_only=True):
    """A batch of records, to be written to the table of its dataset. `queued_at` is when the outbox had dealt with its
    message; before there are datasets, nobody writes batches to tables."""

    id: UUID
    attempt: int
    dataset_uuid: UUID
    dataset_version: UUID
    batch_uri: str
    record_count: int
    caller: str
    at: datetime
    queued_at: datetime | None


@table.add("GET", "/api/v1/tasks/{task_id}/events", Role.VIEWER)
async def task_events(call: Call[Page, None]) -> Listed[EventForm]:
    """What a task has told of its datasets, oldest first."""
    view, query = await seen(call), call.query
    page = await call.engine.datasets.events(view.task.id, after=cursor.to_position(query.after), limit=query.limit)
    return Listed([_event(one) for one in page.items], cursor.of_position(page.next))


@table.add("GET", "/api/v1/tasks/{task_id}/publishes", Role.VIEWER)
async def task_publishes(call: Call[Page, None]) -> Listed[PublishForm]:
    """The batches that a task has handed over, oldest first."""
    view, query = await seen(call), call.query
    page = await call.engine.datasets.publishes(view.task.id, after=cursor.to_position(query.after), limit=query.limit)
    return Listed([_publish(one) for one in page.items], cursor.of_position(page.next))


def _event(one: EventView) -> EventForm:
    return EventForm(
        id=one.id, attempt=one.attempt, dataset_uuid=one.dataset_uuid, dataset_version=one.dataset_version,
        cursor=one.cursor, partition_key=one.partition_key, start=one.first, end=one.last, declared=one.declared,
        caller=one.caller, at=one.at, routed_at=one.routed_at,
    )  # fmt: skip


def _publish(one: PublishView) -> PublishForm:
    return PublishForm(
        id=one.id, attempt=one.attempt, dataset_uuid=one.dataset_uuid, dataset_version=one.dataset_version,
        batch_uri=one.batch_uri, record_count=one.record_count, caller=one.caller, at=one.at, queued_at=one.queued_at,
    )  # fmt: skip
