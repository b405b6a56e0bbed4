"""A `where` as a filter of pyarrow, which is imported only when one is made.

With the schema of the table it takes exactly the rows that `Where.matches` takes. Without it, a column is trusted to be
comparable with its literals, and pyarrow raises an error if it is not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

from windlass.datasets.rules.predicate_tree import And, Compare, In, IsNull, Like, Literal, Node, Not, Or
from windlass.datasets.rules.predicate_type import (
    BOOL,
    DATE,
    FLOAT,
    LOCAL,
    OTHER,
    TEXT,
    TIMESTAMP,
    UUID_,
    Bound,
    Comparison,
    Family,
    Kind,
    decimal,
    fit,
    number,
)

if TYPE_CHECKING:
    import pyarrow

Expression = Any  # pyarrow.compute.Expression
_IN_SETS = frozenset({Family.TEXT, Family.NUMBER})  # their equal values are equal bytes, unlike 0.0 and -0.0


def expression(tree: Node, schema: pyarrow.Schema | None) -> Expression:
    """The filter for tables with this schema."""
    return _Writer(schema).node(tree)


class _Column:
    """A column in the form in which it is compared, and the type that its literals get."""

    __slots__ = ("kind", "type", "value")

    def __init__(self, value: Expression, kind: Kind, type_: pyarrow.DataType) -> None:
        self.value = value
        self.kind = kind
        self.type = type_


class _Writer:
    def __init__(self, schema: pyarrow.Schema | None) -> None:
        import pyarrow
        import pyarrow.compute

        self._arrow: Any = pyarrow
        self._compute: Any = pyarrow.compute
        self._schema = schema
        self._null = self._compute.scalar(pyarrow.scalar(None, pyarrow.bool_()))

    def node(self, node: Node) -> Expression:
        match node:
            case And(items):
                return _joined([self.node(item) for item in items], lambda one, other: one & other)
            case Or(items):
                return _joined([self.node(item) for item in items], lambda one, other: one | other)
            case Not(item):
                return ~self.node(item)
            case IsNull(column):
                return self._compute.scalar(True) if self._is_missing(column) else self._field(column).is_null()
            case Like(column, pattern):
                return self._like(column, pattern)
            case In(column, literals):
                return self._in(column, literals)
            case Compare(column, op, literal):
                return self._compare(column, op, literal)

    def _compare(self, column: str, op: str, literal: Literal) -> Expression:
        if self._schema is None:
            return self._untyped(column, op, literal)
        if (found := self._column(column)) is None:
            return self._null
        match fit(found.kind, op, literal):
            case None:
                return self._null
            case bool(truth):
                return self._compute.if_else(found.value.is_valid(), truth, self._null)
            case Comparison(op, value):
                compared = _compared(found.value, op, self._scalar(value, found.type))
                is_nan = found.kind is FLOAT and op in (">", ">=")  # NaN is greater than all numbers
                return self._compute.is_nan(found.value) | compared if is_nan else compared

    def _in(self, column: str, literals: tuple[Literal, ...]) -> Expression:
        found = None if self._schema is None else self._column(column)
        if found is None or found.kind.family not in _IN_SETS:
            return _joined([self._compare(column, "=", each) for each in literals], lambda one, other: one | other)
        fitted = [fit(found.kind, "=", literal) for literal in literals]
        values = [each.literal for each in fitted if isinstance(each, Comparison)]
        listed = self._compute.is_in(found.value, self._arrow.array(values, found.type))
        known = self._compute.if_else(found.value.is_valid(), listed, self._null)
        return known | self._null if None in fitted else known

    def _like(self, column: str, pattern: str) -> Expression:
        found = self._column(column)
        if found is None or found.kind is not TEXT:
            return self._null
        return self._compute.match_substring_regex(found.value, _regex(pattern))

    def _untyped(self, column: str, op: str, literal: Literal) -> Expression:
        field = self._field(column)
        if isinstance(literal, bool | str):
            return _compared(field, op, self._scalar(literal, None))
        compared = _compared(field, op, self._scalar(literal if _is_short(literal) else Decimal(literal), None))
        return self._compute.is_nan(field) | compared if op in (">", ">=") else compared

    def _column(self, column: str) -> _Column | None:
        """None if the table does not have it. Without a schema it is text, for LIKE."""
        if self._schema is None:
            return _Column(self._field(column), TEXT, self._arrow.string())
        if self._is_missing(column):
            return None
        type_ = self._schema.field(column).type
        field = self._field(column)
        if self._arrow.types.is_dictionary(type_):
            type_ = type_.value_type
            field = field.cast(type_)
        kind, own = self._kind(type_)
        return _Column(field if own == type_ else field.cast(own, safe=False), kind, own)

    def _kind(self, type_: pyarrow.DataType) -> tuple[Kind, pyarrow.DataType]:
        """The kind of a type, and the type in which its values are compared."""
        arrow, types = self._arrow, self._arrow.types
        if types.is_string(type_) or types.is_large_string(type_) or types.is_string_view(type_):
            return TEXT, arrow.string() if types.is_string_view(type_) else type_
        if types.is_boolean(type_):
            return BOOL, type_
        if types.is_integer(type_):
            bits = type_.bit_width
            signed = types.is_signed_integer(type_)
            return number(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else number(0, 2**bits - 1), type_
        if types.is_decimal(type_):
            return decimal(type_.precision, type_.scale), type_
        if types.is_floating(type_):
            return FLOAT, arrow.float64()
        if type_ == arrow.uuid():
            return UUID_, arrow.binary(16)
        if types.is_timestamp(type_):
            zoned = type_.tz is not None
            return TIMESTAMP if zoned else LOCAL, arrow.timestamp("us", "UTC" if zoned else None)
        return (DATE, arrow.date32()) if types.is_date(type_) else (OTHER, type_)

    def _scalar(self, value: Bound, type_: pyarrow.DataType | None) -> Expression:
        if isinstance(value, UUID):
            return self._compute.scalar(self._arrow.scalar(value.bytes, type_))
        if isinstance(value, int) and type_ is not None and self._arrow.types.is_decimal(type_):
            return self._compute.scalar(self._arrow.scalar(Decimal(value), type_))
        return self._compute.scalar(self._arrow.scalar(value, type_))

    def _field(self, column: str) -> Expression:
        return self._compute.field(column)

    def _is_missing(self, column: str) -> bool:
        return self._schema is not None and self._schema.get_field_index(column) < 0


def _compared(value: Expression, op: str, literal: Expression) -> Expression:
    match op:
        case "=":
            return value == literal
        case "<>":
            return value != literal
        case "<":
            return value < literal
        case "<=":
            return value <= literal
        case ">":
            return value > literal
        case _:
            return value >= literal


def _regex(pattern: str) -> str:
    """A LIKE pattern for RE2, which matches in linear time. `match_like` of pyarrow takes a backslash for an escape,
    and does not match one that is escaped before the last `%`."""
    parts = {"%": ".*", "_": "."}
    return rf"(?s)\A{''.join(parts.get(each) or re.escape(each) for each in pattern)}\z"


def _is_short(literal: int | Decimal) -> bool:
    return isinstance(literal, int) and -(2**63) <= literal < 2**63


def _joined(items: Sequence[Expression], join: Callable[[Expression, Expression], Expression]) -> Expression:
    """Joined in halves: pyarrow walks an expression recursively, and a chain of a thousand would be deep."""
    if len(items) == 1:
        return items[0]
    half = len(items) // 2
    return join(_joined(items[:half], join), _joined(items[half:], join))
