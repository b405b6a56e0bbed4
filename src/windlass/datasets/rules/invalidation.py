"""Invalidations: a part of a dataset was wrong, and the jobs that have read it are notified, each by one task.

A part is a partition, or the rows whose columns lie between bounds. The bounds are compared with declared columns, so
they are checked against the types of these, and limited in number and size.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from enum import StrEnum
from typing import TypeAlias
from uuid import UUID

import msgspec

from windlass.core.effects import register_effect
from windlass.core.ids import derived_id
from windlass.core.states import Effect, Instant
from windlass.core.validation import check_text
from windlass.datasets.rules.canonical import digest
from windlass.datasets.rules.partition import PARTITION_MAX
from windlass.datasets.rules.predicate_tree import as_date, as_timestamp, as_uuid
from windlass.datasets.rules.predicate_type import Family, Kind, kind_of
from windlass.datasets.rules.schema import DatasetSchema
from windlass.errors import Invalid

INVALIDATE = "invalidate"  # the effect that makes the tasks of an invalidation
register_effect(INVALIDATE, detached=True)
COLUMNS_MAX, BOUND_MAX = 16, 1000
NUMBER_MAX = 10**309  # greater than every double
_DECIMAL = re.compile(r"-?[0-9]{1,200}(\.[0-9]{1,200})?", re.ASCII)

Comparable: TypeAlias = str | int | float | Decimal | UUID | datetime | date


class Scope(StrEnum):
    """What of a dataset is invalid."""

    PARTITION = "partition"
    ROW_RANGE = "row_range"


class Reason(StrEnum):
    """Why it is invalid."""

    REORG = "reorg"
    CORRECTION = "correction"
    MANUAL = "manual"
    SCHEMA_CHANGE = "schema_change"


class Bounds(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The least and the greatest value of a column, both inclusive."""

    gte: str | int | float | None = None
    lte: str | int | float | None = None


RowFilter: TypeAlias = dict[str, Bounds]


class InvalidPart(msgspec.Struct, frozen=True):
    """What is invalid, and why."""

    scope: Scope
    reason: Reason
    partition_key: str | None = None
    row_filter: RowFilter | None = None

    @property
    def filter_json(self) -> str | None:
        return None if self.row_filter is None else msgspec.json.encode(self.row_filter, order="sorted").decode()


class Invalidation(msgspec.Struct, frozen=True):
    """A recorded invalidation. `row_filter` and `source` are JSON; the source is a key or a task."""

    id: UUID
    namespace: str
    dataset_uuid: UUID
    dataset_version: UUID
    scope: Scope
    key: str | None
    row_filter: str | None
    reason: Reason
    source: str
    created_at: Instant

    @property
    def shown(self) -> dict[str, object]:
        """As the claim of a task shows it."""
        row_filter = None if self.row_filter is None else msgspec.json.decode(self.row_filter)
        return {"id": str(self.id), "scope": self.scope, "row_filter": row_filter}

    @property
    def content(self) -> tuple[object, ...]:
        """What a repeated order has to have too."""
        row_filter = None if self.row_filter is None else msgspec.json.decode(self.row_filter)
        return self.dataset_uuid, self.scope, self.key, row_filter, self.reason

    def effect(self, task_id: UUID, attempt: int) -> Effect:
        """The effect that makes its tasks, of an invalidation that a task reports."""
        body: dict[str, object] = {"invalidation_id": str(self.id)}
        return Effect(derived_id(INVALIDATE, self.id), INVALIDATE, self.namespace, task_id, attempt, body)


def reported_id(task_id: UUID, dataset_uuid: UUID, dataset_version: UUID, part: InvalidPart) -> UUID:
    """The id of an invalidation that a task reports: the same again is the same, also in another attempt."""
    what = digest([part.scope, part.partition_key, msgspec.to_builtins(part.row_filter), part.reason])
    return derived_id("invalidation", task_id, dataset_uuid, dataset_version, what)


def check(part: InvalidPart, schema: DatasetSchema | None) -> None:
    """Raise Invalid with the field that is wrong. Whether the partition exists, the caller checks."""
    if part.scope is Scope.PARTITION:
        if part.row_filter is not None:
            raise Invalid("belongs to the scope row_range", field="row_filter")
        if part.partition_key is None:
            raise Invalid("is missing: the scope is partition", field="partition_key")
        check_text("partition_key", part.partition_key, PARTITION_MAX)
        return
    if part.partition_key is not None:
        raise Invalid("belongs to the scope partition", field="partition_key")
    if not part.row_filter:
        raise Invalid("is missing: the scope is row_range", field="row_filter")
    if len(part.row_filter) > COLUMNS_MAX:
        raise Invalid(f"must have at most {COLUMNS_MAX} columns", field="row_filter")
    columns = {} if schema is None else {column.name: column.type for column in schema.writer_columns}
    for name, limits in part.row_filter.items():
        if name not in columns:
            raise Invalid(f"{name[:100]!r} is no column that the dataset declares", field="row_filter")
        _check_bounds(name, limits, columns)


def _check_bounds(name: str, limits: Bounds, columns: Mapping[str, str]) -> None:
    field = f"row_filter.{name}"
    if limits.gte is None and limits.lte is None:
        raise Invalid("must have gte, lte or both", field=field)
    kind = kind_of(columns[name])
    low, high = (
        None if value is None else _read(kind, value, f"{field}.{which}")
        for which, value in (("gte", limits.gte), ("lte", limits.lte))
    )
    if low is not None and high is not None and low > high:  # type: ignore[operator]  # of one type, by their kind
        raise Invalid("gte must not be after lte", field=field)


def _read(kind: Kind, value: str | int | float, field: str) -> Comparable:
    found = _text(kind, value, field) if isinstance(value, str) else _number(kind, value)
    if found is None:
        raise Invalid(f"is no value of this column, which holds {kind.postgres or 'what has no order'}", field=field)
    return found


def _text(kind: Kind, value: str, field: str) -> Comparable | None:
    check_text(field, value, BOUND_MAX)
    match kind.family:
        case Family.TEXT:
            return value
        case Family.UUID:
            return as_uuid(value)
        case Family.TIMESTAMP:
            return as_timestamp(value)
        case Family.DATE:
            return as_date(value)
        case Family.NUMBER if kind.first is None and _DECIMAL.fullmatch(value):
            return Decimal(value)
        case _:
            return None


def _number(kind: Kind, value: int | float) -> Comparable | None:
    if not abs(value) < NUMBER_MAX or kind.family not in (Family.NUMBER, Family.FLOAT):  # also for NaN
        return None
    if kind.family is Family.FLOAT or kind.first is None or kind.last is None:
        return Decimal(value)
    return value if isinstance(value, int) and kind.first <= value <= kind.last else None
