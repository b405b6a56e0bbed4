"""Invalidations: what may be invalid, with bounds that fit the columns."""

from __future__ import annotations

from uuid import UUID

import pytest

from windlass.datasets.rules.invalidation import (
    COLUMNS_MAX,
    Bounds,
    InvalidPart,
    Reason,
    RowFilter,
    Scope,
    check,
    reported_id,
)
from windlass.datasets.rules.schema import Column, ColumnType, DatasetSchema
from windlass.errors import Invalid

SCHEMA = DatasetSchema(
    (
        Column("org_id", ColumnType.UUID),
        *(Column(type_.value, type_) for type_ in ColumnType),
        *(Column(f"n{place}", ColumnType.INTEGER) for place in range(COLUMNS_MAX + 1)),
    )
)
ID = UUID(int=1)


def rows(row_filter: RowFilter | None) -> InvalidPart:
    return InvalidPart(Scope.ROW_RANGE, Reason.REORG, None, row_filter)


@pytest.mark.parametrize(
    ("column", "limits"),
    [
        ("integer", Bounds(gte=-(2**31), lte=2**31 - 1)),
        ("bigint", Bounds(gte=7, lte=7)),
        ("bigint", Bounds(lte=2**63 - 1)),
        ("double", Bounds(gte=0.5, lte=10**20)),
        ("numeric", Bounds(gte="-12.50", lte=10**30)),
        ("text", Bounds(gte="a", lte="b")),
        ("uuid", Bounds(gte=str(UUID(int=1)), lte=str(UUID(int=2)))),
        ("timestamptz", Bounds(gte="2026-01-01T00:00:00Z", lte="2026-01-01T02:00:00+01:00")),
        ("date", Bounds(gte="2026-01-01")),
    ],
)
def test_bounds_of_the_type_of_their_column_are_accepted(column: str, limits: Bounds) -> None:
    check(rows({column: limits}), SCHEMA)


@pytest.mark.parametrize(
    ("part", "field"),
    [
        (rows(None), "row_filter"),
        (rows({}), "row_filter"),
        (rows({"nobody": Bounds(gte=1)}), "row_filter"),
        (rows({"org_id": Bounds(gte=str(ID))}), "row_filter"),
        (rows({"seq": Bounds(gte=1)}), "row_filter"),
        (rows({f"n{place}": Bounds(gte=1) for place in range(COLUMNS_MAX + 1)}), "row_filter"),
        (rows({"bigint": Bounds()}), "row_filter.bigint"),
        (rows({"bigint": Bounds(gte=8, lte=7)}), "row_filter.bigint"),
        (rows({"timestamptz": Bounds(gte="2026-01-01T02:00:00Z", lte="2026-01-01T02:00:00+01:00")}),
         "row_filter.timestamptz"),
        (rows({"bigint": Bounds(gte=2**63)}), "row_filter.bigint.gte"),
        (rows({"integer": Bounds(lte=2**31)}), "row_filter.integer.lte"),
        (rows({"integer": Bounds(lte=1.5)}), "row_filter.integer.lte"),
        (rows({"integer": Bounds(lte="1")}), "row_filter.integer.lte"),
        (rows({"double": Bounds(gte=float("nan"))}), "row_filter.double.gte"),
        (rows({"double": Bounds(gte=float("inf"))}), "row_filter.double.gte"),
        (rows({"numeric": Bounds(gte=10**400)}), "row_filter.numeric.gte"),
        (rows({"numeric": Bounds(gte="1e5")}), "row_filter.numeric.gte"),
        (rows({"text": Bounds(gte=1)}), "row_filter.text.gte"),
        (rows({"text": Bounds(gte="a\x00")}), "row_filter.text.gte"),
        (rows({"text": Bounds(gte="a" * 1001)}), "row_filter.text.gte"),
        (rows({"uuid": Bounds(gte="7")}), "row_filter.uuid.gte"),
        (rows({"date": Bounds(gte="2026-02-30")}), "row_filter.date.gte"),
        (rows({"timestamptz": Bounds(gte="yesterday")}), "row_filter.timestamptz.gte"),
        (rows({"bool": Bounds(gte=1)}), "row_filter.bool.gte"),
        (rows({"jsonb": Bounds(gte="{}")}), "row_filter.jsonb.gte"),
        (rows({"bytea": Bounds(gte="00")}), "row_filter.bytea.gte"),
        (InvalidPart(Scope.ROW_RANGE, Reason.MANUAL, "0-99", {"bigint": Bounds(gte=1)}), "partition_key"),
        (InvalidPart(Scope.PARTITION, Reason.MANUAL), "partition_key"),
        (InvalidPart(Scope.PARTITION, Reason.MANUAL, ""), "partition_key"),
        (InvalidPart(Scope.PARTITION, Reason.MANUAL, "0-99", {"bigint": Bounds(gte=1)}), "row_filter"),
    ],
)  # fmt: skip
def test_what_cannot_be_invalid_is_refused_with_its_field(part: InvalidPart, field: str) -> None:
    with pytest.raises(Invalid) as refused:
        check(part, SCHEMA)

    assert refused.value.field == field


def test_a_dataset_without_declared_columns_has_no_rows_to_name() -> None:
    with pytest.raises(Invalid) as refused:
        check(rows({"bigint": Bounds(gte=1)}), None)

    assert refused.value.field == "row_filter"


def test_a_partition_is_enough() -> None:
    check(InvalidPart(Scope.PARTITION, Reason.CORRECTION, "0-99"), None)


def test_the_same_report_is_the_same_invalidation() -> None:
    one = rows({"bigint": Bounds(gte=1, lte=2), "text": Bounds(gte="a")})
    other_order = rows({"text": Bounds(gte="a"), "bigint": Bounds(gte=1, lte=2)})
    other = rows({"bigint": Bounds(gte=1, lte=3), "text": Bounds(gte="a")})

    ids = [reported_id(ID, ID, ID, part) for part in (one, other_order, other)]

    assert ids[0] == ids[1] != ids[2]
    assert reported_id(UUID(int=2), ID, ID, one) != ids[0]
