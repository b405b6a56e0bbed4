"""Types of columns, and the form that a literal has to have to be compared with a column of that type.

The rule is that of `predicate_tree.compare`, decided from the type instead of the value. The literal is brought into
the range and scale of the column, so that no engine has to convert the column: that would cost an index or a pushdown,
and engines differ in how they do it.
"""

from __future__ import annotations

import re
from datetime import date, datetime
from decimal import Decimal
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple, TypeAlias
from uuid import UUID

from windlass.datasets.rules.predicate_tree import Literal, as_date, as_timestamp, as_uuid

Bound: TypeAlias = str | bool | int | float | Decimal | UUID | datetime | date


class Family(StrEnum):
    """What a column holds. `local` is a timestamp without a zone."""

    TEXT = "text"
    BOOL = "bool"
    NUMBER = "number"
    FLOAT = "float"
    UUID = "uuid"
    TIMESTAMP = "timestamp"
    LOCAL = "local"
    DATE = "date"
    OTHER = "other"


class Kind(NamedTuple):
    """A type of columns. `first`, `last` and `scale` are of numbers: a column holds the whole numbers from `first` to
    `last`, divided by 10 to the power of `scale`. Without `first` it holds any number."""

    family: Family
    postgres: str  # the type to which a parameter is cast
    duckdb: str
    first: int | None = None
    last: int | None = None
    scale: int = 0


class Comparison(NamedTuple):
    """A comparison that means the same with a literal of the column's own type."""

    op: str
    literal: Bound


# What a comparison is for a column: a comparison, TRUE or FALSE for all values that are not NULL, or always NULL.
Fitted: TypeAlias = Comparison | bool | None


def number(first: int, last: int, scale: int = 0, postgres: str = "bigint", duckdb: str = "") -> Kind:
    return Kind(Family.NUMBER, postgres, duckdb, first, last, scale)


def decimal(precision: int, scale: int) -> Kind:
    most = 10**precision - 1
    return number(-most, most, scale, "numeric", f"DECIMAL({precision}, {scale})")


def _signed(bits: int, duckdb: str) -> Kind:
    return number(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1, 0, "bigint" if bits <= 64 else "numeric", duckdb)


def _unsigned(bits: int, duckdb: str) -> Kind:
    return number(0, 2**bits - 1, 0, "bigint" if bits < 64 else "numeric", duckdb)


TEXT = Kind(Family.TEXT, "text", "VARCHAR")
BOOL = Kind(Family.BOOL, "boolean", "BOOLEAN")
NUMERIC = Kind(Family.NUMBER, "numeric", "")
FLOAT = Kind(Family.FLOAT, "double precision", "DOUBLE")
UUID_ = Kind(Family.UUID, "uuid", "UUID")
TIMESTAMP = Kind(Family.TIMESTAMP, "timestamptz", "TIMESTAMPTZ")
LOCAL = Kind(Family.LOCAL, "timestamp", "TIMESTAMP")
DATE = Kind(Family.DATE, "date", "DATE")
OTHER = Kind(Family.OTHER, "", "")
# The names of types in our schemas, in PostgreSQL and in DuckDB.
_NAMES: dict[str, Kind] = {
    **dict.fromkeys(("text", "varchar", "character varying", "string"), TEXT),
    **dict.fromkeys(("bool", "boolean"), BOOL),
    "tinyint": _signed(8, "TINYINT"),
    **dict.fromkeys(("smallint", "int2"), _signed(16, "SMALLINT")),
    **dict.fromkeys(("integer", "int", "int4"), _signed(32, "INTEGER")),
    **dict.fromkeys(("bigint", "int8"), _signed(64, "BIGINT")),
    "hugeint": _signed(128, "HUGEINT"),
    "utinyint": _unsigned(8, "UTINYINT"),
    "usmallint": _unsigned(16, "USMALLINT"),
    "uinteger": _unsigned(32, "UINTEGER"),
    "ubigint": _unsigned(64, "UBIGINT"),
    "uhugeint": _unsigned(128, "UHUGEINT"),
    **dict.fromkeys(("double", "double precision", "float8", "real", "float", "float4"), FLOAT),
    **dict.fromkeys(("numeric", "decimal"), NUMERIC),
    "uuid": UUID_,
    **dict.fromkeys(("timestamptz", "timestamp with time zone"), TIMESTAMP),
    **dict.fromkeys(("timestamp", "timestamp without time zone", "datetime"), LOCAL),
    **dict.fromkeys(("timestamp_s", "timestamp_ms", "timestamp_us", "timestamp_ns"), LOCAL),
    "date": DATE,
}
_DECIMAL = re.compile(r"(?:numeric|decimal)\((\d{1,4}), ?(\d{1,4})\)", re.ASCII)
_WITH_LENGTH = re.compile(r"(character varying|varchar|timestamp)\(\d+\)", re.ASCII)


@lru_cache(maxsize=1024)
def kind_of(name: str) -> Kind:
    """The kind of a type by its name in our schemas, in PostgreSQL or in DuckDB. Values of a type that is not known
    here are compared with nothing."""
    name = _WITH_LENGTH.sub(r"\1", name.strip().lower())
    if (found := _DECIMAL.fullmatch(name)) is not None:
        return decimal(int(found[1]), int(found[2]))
    return _NAMES.get(name, OTHER)


def fit(kind: Kind, op: str, literal: Literal) -> Fitted:
    """The comparison of a column of this kind with a literal."""
    if isinstance(literal, bool):
        return Comparison(op, literal) if kind.family is Family.BOOL else None
    if isinstance(literal, str):
        value = _read(kind.family, literal)
        return None if value is None else Comparison(op, value)
    if kind.family is Family.FLOAT:
        return Comparison(op, float(literal))
    return _fit_number(kind, op, literal) if kind.family is Family.NUMBER else None


def _read(family: Family, literal: str) -> Bound | None:
    match family:
        case Family.TEXT:
            return literal
        case Family.UUID:
            return as_uuid(literal)
        case Family.TIMESTAMP:
            return as_timestamp(literal)
        case Family.LOCAL:
            instant = as_timestamp(literal)
            return None if instant is None else instant.replace(tzinfo=None)
        case Family.DATE:
            return as_date(literal)
        case _:
            return None


def _fit_number(kind: Kind, op: str, literal: int | Decimal) -> Comparison | bool:
    """A literal between two values of the column is replaced by the lower one, one beyond its range by a constant."""
    if kind.first is None or kind.last is None:
        return Comparison(op, literal)
    numerator, denominator = literal.as_integer_ratio()
    lower, rest = divmod(numerator * 10**kind.scale, denominator)
    if lower > kind.last:
        return op in ("<", "<=", "<>")
    if lower < kind.first:
        return op in (">", ">=", "<>")
    if rest and op in ("=", "<>"):
        return op == "<>"
    if rest:
        op = "<=" if op in ("<", "<=") else ">"
    return Comparison(op, scaled(lower, kind.scale))


def scaled(value: int, scale: int) -> int | Decimal:
    """`value` divided by 10 to the power of `scale`, exactly. (Arithmetic with Decimal rounds to 28 digits.)"""
    digits = tuple(map(int, str(abs(value))))
    return Decimal((int(value < 0), digits, -scale)) if scale else value
