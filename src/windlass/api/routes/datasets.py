"""Datasets written by tasks: their events, and their batches of records."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from msgspec import Struct, convert, field

from windlass.api.framework import cursor
from windlass.api.framework.forms import Cursor, Limit, Listed
from windlass.api.framework.route import Call, Table
from windlass.api.routes.tasks import find_task
from windlass.core.access import Role
from windlass.datasets.read import Datasets

table = Table("datasets")


class Page(Struct, frozen=True, forbid_unknown_fields=True):
    """A page of a list."""

    after: Cursor | None = None
    limit: Limit = 50


class EventForm(Struct, frozen=True, kw_only=True):
    """A dataset reached a cursor, or one of its partitions is complete. An event for a dataset that the task did not
    declare as an output is kept for audit and not routed. `caller` is the SHA-256 of the reporter's certificate.
    `routed_at` is when the outbox processed the event."""

    id: UUID
    attempt: int
    dataset_uuid: UUID
    dataset_version: UUID
    cursor: int | None
    partition_key: str | None
    first: int | None = field(name="start")
    last: int | None = field(name="end")
    declared: bool
    caller: str
    at: datetime
    routed_at: datetime | None


class PublishForm(Struct, frozen=True, kw_only=True):
    """A batch of records for the table of a dataset. `queued_at` is when the outbox processed its message, `sunk_at`
    when a sink had written it to its table, with the task `sink_task_id`. `problem` is why no sink can write it; its
    message is a dead letter then."""

    id: UUID
    attempt: int
    dataset_uuid: UUID
    dataset_version: UUID
    batch_uri: str
    record_count: int
    caller: str
    at: datetime
    queued_at: datetime | None
    sunk_at: datetime | None
    sink_task_id: UUID | None
    problem: str | None


@table.add("GET", "/api/v1/tasks/{task_id}/events", Role.VIEWER)
async def task_events(call: Call[Page, None]) -> Listed[EventForm]:
    """List the dataset events of a task, oldest first."""
    view, query = await find_task(call), call.query
    page = await Datasets(call.engine.store).events(
        view.task.id, after=cursor.to_position(query.after), limit=query.limit
    )
    return Listed(convert(page.items, list[EventForm], from_attributes=True), cursor.of_position(page.next))


@table.add("GET", "/api/v1/tasks/{task_id}/publishes", Role.VIEWER)
async def task_publishes(call: Call[Page, None]) -> Listed[PublishForm]:
    """List the batches that a task published, oldest first."""
    view, query = await find_task(call), call.query
    page = await Datasets(call.engine.store).publishes(
        view.task.id, after=cursor.to_position(query.after), limit=query.limit
    )
    return Listed(convert(page.items, list[PublishForm], from_attributes=True), cursor.of_position(page.next))
