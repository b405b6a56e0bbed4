"""Backfills: partitions of a job that are made again."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import Meta, Raw, Struct

from windlass.api.framework import cursor
from windlass.api.framework.forms import Cursor, In, Key, Limit, Listed, Name, Reason
from windlass.api.framework.request import KEY_HEADER
from windlass.api.framework.route import Call, Table
from windlass.core.access import Role
from windlass.datasets.backfills import Backfills, BackfillView
from windlass.datasets.requests import order_of
from windlass.datasets.rules.backfill import KEYS_MAX, BackfillState, Selection
from windlass.datasets.rules.partition import BIGINT_MAX, BIGINT_MIN
from windlass.datasets.rules.status import PartitionStatus
from windlass.net.asgi import NO_STORE, Response

table = Table("backfills")

Bound = Annotated[int, Meta(ge=BIGINT_MIN, le=BIGINT_MAX)] | Annotated[str, Meta(max_length=100)]


class SelectOrder(Struct, frozen=True, forbid_unknown_fields=True):
    """The partitions: by their `keys`; or all that lie between `start` and `end`, both inclusive; or those of the job's
    own output with a `status`, as far as its inputs reach."""

    keys: Annotated[list[Key], Meta(max_length=KEYS_MAX)] = []
    start: Bound | None = None
    end: Bound | None = None
    status: Annotated[list[Literal["missing", "failed", "stale"]], Meta(max_length=3)] = []


class BackfillOrder(Struct, frozen=True, forbid_unknown_fields=True):
    """A job of the active version of a DAG, and which of its partitions to make again. With `downstream`, the backfill
    ends when the jobs below have made again what becomes stale. With `dry_run`, they are only counted."""

    dag: Name
    job: Name
    select: SelectOrder
    downstream: bool = False
    dry_run: bool = False


class CancelBackfillOrder(Struct, frozen=True, forbid_unknown_fields=True):
    """Why."""

    reason: Reason = ""


class BackfillQuery(In, frozen=True, forbid_unknown_fields=True):
    """A page of backfills, of one DAG if it is given."""

    dag: Name | None = None
    after: Cursor | None = None
    limit: Limit = 50


class BackfillJobForm(Struct, frozen=True, kw_only=True):
    """The tasks of a backfill in one job: `tasks` were made, `waiting` of them wait for an input that is not there."""

    job: str
    partitions: int
    tasks: int
    waiting: int
    succeeded: int
    failed: int
    cancelled: int


class BackfillForm(Struct, frozen=True, kw_only=True):
    """A backfill. `jobs` has its own job first, then those below. With `truncated`, it has more partitions than were
    counted when it began. The answer to a dry run has no `id`."""

    id: UUID | None
    namespace: str
    dag: str
    job: str
    select: Raw
    downstream: bool
    state: BackfillState
    jobs: list[BackfillJobForm]
    truncated: bool
    reason: str | None
    created_by: str
    created_at: datetime
    ended_at: datetime | None


@table.add(
    "POST", "/api/v1/backfills", Role.OPERATOR, status=201, known_status=200, headers=(KEY_HEADER,),
    errors=(400, 401, 403, 404, 409, 413, 422, 503),
)  # fmt: skip
async def start_backfill(call: Call[In, BackfillOrder]) -> BackfillForm | Response:
    """Make partitions of a job again. A repeated Idempotency-Key returns the same backfill; a dry run is answered with
    status 200."""
    order, chosen = call.body, call.body.select
    selection = Selection(
        tuple(chosen.keys), chosen.start, chosen.end, tuple(PartitionStatus(one) for one in chosen.status)
    )
    view = await call.engine.service(Backfills).start(
        order.dag,
        order.job,
        selection,
        namespace=call.namespace(call.query.namespace),
        downstream=order.downstream,
        dry_run=order.dry_run,
        key=call.key,
        created_by=call.principal.name,
    )
    form = _form(view)
    return Response(msgspec.json.encode(form), 200, headers=(NO_STORE,)) if order.dry_run else form


@table.add("GET", "/api/v1/backfills", Role.OPERATOR)
async def list_backfills(call: Call[BackfillQuery, None]) -> Listed[BackfillForm]:
    """List backfills, newest first."""
    query = call.query
    found = await call.engine.service(Backfills).page(
        namespace=call.namespace(query.namespace), dag=query.dag, after=cursor.to_position(query.after),
        limit=query.limit + 1,
    )  # fmt: skip
    page, more = cursor.page_of(found, query.limit, lambda view: (view.row.created_at, view.row.id))
    return Listed([_form(view) for view in page], more)


@table.add("GET", "/api/v1/backfills/{backfill_id}", Role.OPERATOR)
async def get_backfill(call: Call[None, None]) -> BackfillForm:
    """Get a backfill with its progress."""
    return _form(await _reached(call))


@table.add("POST", "/api/v1/backfills/{backfill_id}/cancel", Role.OPERATOR, headers=(KEY_HEADER,))
async def cancel_backfill(call: Call[None, CancelBackfillOrder]) -> BackfillForm:
    """Cancel a backfill: no more tasks are made, those that wait end, and those that run are asked to stop."""
    view = await _reached(call)
    order = order_of(call.key, "cancel", view.row.id, call.body)
    return _form(await call.engine.service(Backfills).cancel(view.row.id, call.body.reason, order=order))


async def _reached(call: Call[Any, Any]) -> BackfillView:
    """The backfill in the path, if the key reaches its namespace."""
    view = await call.engine.service(Backfills).get(call.id("backfill_id"))
    call.reach(view.row.namespace)
    return view


def _form(view: BackfillView) -> BackfillForm:
    row = view.row
    return BackfillForm(
        id=None if row.state is BackfillState.PLANNED else row.id, namespace=row.namespace, dag=row.dag, job=row.job,
        select=Raw(msgspec.json.encode(row.selection)), downstream=row.downstream, state=row.state,
        jobs=[
            BackfillJobForm(
                job=job.job, partitions=job.partitions, tasks=job.tasks, waiting=job.waiting, succeeded=job.succeeded,
                failed=job.failed, cancelled=job.cancelled,
            )
            for job in view.jobs
        ],
        truncated=row.truncated, reason=row.reason, created_by=row.created_by, created_at=row.created_at,
        ended_at=row.ended_at,
    )  # fmt: skip
