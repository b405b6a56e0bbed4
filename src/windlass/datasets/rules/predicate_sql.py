"""A `where` as SQL of PostgreSQL or DuckDB, with all literals as parameters `$1`, `$2`, … and all names quoted.

With the types of the columns the SQL takes exactly the rows that `Where.matches` takes, whatever the types are. A
column that is not among them is NULL. Without types, a column is trusted to be comparable with its literals: numbers
with numbers, strings with text. PostgreSQL raises an error if it is not; DuckDB would convert silently, so it gets a
check of the type, and raises or says NULL.

Strings are compared by code point, which DuckDB always does and PostgreSQL does with `COLLATE "C"`. Parameters for
DuckDB are strings, numbers and booleans only, so that they can be sent to the process that runs the query.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Literal as OneOf
from typing import TypeAlias
from uuid import UUID

from windlass.datasets.rules.predicate_tree import And, Compare, In, IsNull, Like, Literal, Node, Not, Or
from windlass.datasets.rules.predicate_type import (
    BOOL,
    FLOAT,
    NUMERIC,
    TEXT,
    Bound,
    Comparison,
    Family,
    Kind,
    fit,
    kind_of,
)

Dialect: TypeAlias = OneOf["postgres", "duckdb"]
INT64 = range(-(2**63), 2**63)
_NULL = "NULL::boolean"
_DUCKDB_NUMBERS = (
    "'TINYINT', 'SMALLINT', 'INTEGER', 'BIGINT', 'HUGEINT', 'UTINYINT', 'USMALLINT', 'UINTEGER', 'UBIGINT', 'UHUGEINT'"
)


def render(
    tree: Node, dialect: Dialect, types: Mapping[str, str] | None = None, first: int = 1
) -> tuple[str, list[object]]:
    """The SQL and its parameters, which are numbered from `first` on."""
    if dialect not in ("postgres", "duckdb"):
        raise ValueError(f"there is no dialect {dialect!r}; use postgres or duckdb")
    kinds = None if types is None else {name: kind_of(type_) for name, type_ in types.items()}
    writer: _Writer = _Postgres(kinds, first) if dialect == "postgres" else _DuckDB(kinds, first)
    return writer.node(tree), writer.params


class _Writer:
    """What the dialects share."""

    def __init__(self, kinds: Mapping[str, Kind] | None, first: int) -> None:
        self._kinds = kinds
        self._first = first
        self.params: list[object] = []

    def node(self, node: Node) -> str:
        match node:
            case And(items):
                return f"({' AND '.join(map(self.node, items))})"
            case Or(items):
                return f"({' OR '.join(map(self.node, items))})"
            case Not(item):
                return f"(NOT {self.node(item)})"
            case IsNull(column):
                missing = self._kinds is not None and column not in self._kinds
                return "TRUE" if missing else f"({quoted(column)} IS NULL)"
            case Like(column, pattern):
                return self._like(column, pattern)
            case In(column, literals):
                return self._in(column, literals)
            case Compare(column, op, literal):
                return self._compare(column, op, literal)

    def _compare(self, column: str, op: str, literal: Literal) -> str:
        if self._kinds is None:
            return self._untyped(column, op, literal)
        if (kind := self._kinds.get(column)) is None:
            return _NULL
        match fit(kind, op, literal):
            case None:
                return _NULL
            case bool(truth):
                return _constant(column, truth)
            case Comparison(op, value):
                return self._comparison(kind, column, op, value)

    def _in(self, column: str, literals: tuple[Literal, ...]) -> str:
        return f"({' OR '.join(self._compare(column, '=', literal) for literal in literals)})"

    def _like(self, column: str, pattern: str) -> str:
        if self._kinds is not None and self._kinds.get(column) is not TEXT:
            return _NULL
        return f"({self._text(column)} LIKE {self._param(pattern, TEXT)} ESCAPE '')"

    def _text(self, column: str) -> str:
        return quoted(column)

    def _comparison(self, kind: Kind, column: str, op: str, value: Bound) -> str:
        raise NotImplementedError

    def _untyped(self, column: str, op: str, literal: Literal) -> str:
        raise NotImplementedError

    def _param(self, value: object, kind: Kind) -> str:
        raise NotImplementedError

    def _place(self, value: object) -> str:
        self.params.append(value)
        return f"${self._first + len(self.params) - 1}"


class _Postgres(_Writer):
    def __init__(self, kinds: Mapping[str, Kind] | None, first: int) -> None:
        """A numeric compares with any number, whatever its scale, and may be NaN."""
        if kinds is not None:
            kinds = {name: NUMERIC if kind.postgres == "numeric" else kind for name, kind in kinds.items()}
        super().__init__(kinds, first)

    def _comparison(self, kind: Kind, column: str, op: str, value: Bound) -> str:
        order = ' COLLATE "C"' if kind is TEXT and op not in ("=", "<>") else ""
        return f"({quoted(column)}{order} {op} {self._param(value, kind)})"

    def _untyped(self, column: str, op: str, literal: Literal) -> str:
        return self._comparison(_natural(literal), column, op, literal)

    def _in(self, column: str, literals: tuple[Literal, ...]) -> str:
        """Few parameters, and one look-up in an index: the literals of each type are one array."""
        kind = None if self._kinds is None else self._kinds.get(column)
        found: dict[str, list[object]] = {}
        rest: dict[str, None] = {}
        for literal in literals:
            match fit(kind, "=", literal) if kind else Comparison("=", literal) if self._kinds is None else None:
                case Comparison(_, value):
                    own = kind or _natural(literal)
                    found.setdefault(own.postgres, []).append(_decimal(value) if own.postgres == "numeric" else value)
                case False:
                    rest[_constant(column, truth=False)] = None
                case _:
                    rest[_NULL] = None
        tests = [f"{quoted(column)} = ANY({self._place(values)}::{type_}[])" for type_, values in found.items()]
        return f"({' OR '.join([*tests, *rest])})"

    def _param(self, value: object, kind: Kind) -> str:
        return f"{self._place(_decimal(value) if kind.postgres == 'numeric' else value)}::{kind.postgres}"


class _DuckDB(_Writer):
    def _comparison(self, kind: Kind, column: str, op: str, value: Bound) -> str:
        name = quoted(column)
        if kind.family is Family.LOCAL:  # nanoseconds end in the year 2262, and literals do not
            name = f"{name}::{kind.duckdb}"
        return f"({name} {op} {self._param(value, kind)})"

    def _untyped(self, column: str, op: str, literal: Literal) -> str:
        """DuckDB knows the type before it runs the query, and removes the CASE."""
        name, kind = quoted(column), _natural(literal)
        if isinstance(literal, bool | str):
            own = kind.duckdb
            return f"(CASE WHEN typeof({name}) = '{own}' THEN {name}::{own} {op} {self._param(literal, kind)} END)"
        exact = f"typeof({name}) IN ({_DUCKDB_NUMBERS}) OR starts_with(typeof({name}), 'DECIMAL')"
        near = f"{name}::DOUBLE {op} {self._param(float(literal), FLOAT)}"
        return (
            f"(CASE WHEN typeof({name}) IN ('FLOAT', 'DOUBLE') THEN {near} "
            f"WHEN {exact} THEN {name} {op} {self._param(literal, NUMERIC)} END)"
        )

    def _text(self, column: str) -> str:
        name = quoted(column)
        return name if self._kinds is not None else f"CASE WHEN typeof({name}) = 'VARCHAR' THEN {name}::VARCHAR END"

    def _param(self, value: object, kind: Kind) -> str:
        type_ = kind.duckdb or _duckdb_number(value)
        return f"{self._place(_plain(value))}::{type_}"


def quoted(column: str) -> str:
    """A column as an identifier of SQL."""
    return '"' + column.replace('"', '""') + '"'


def _constant(column: str, truth: bool) -> str:
    """TRUE or FALSE for values that are not NULL."""
    name = quoted(column)
    return f"({name} IS NOT NULL OR {_NULL})" if truth else f"({name} IS NULL AND {_NULL})"


def _natural(literal: Literal) -> Kind:
    """The type of a literal whose column is not known."""
    match literal:
        case bool():
            return BOOL
        case str():
            return TEXT
        case int() if literal in INT64:
            return _BIGINT
        case _:
            return NUMERIC


_BIGINT = kind_of("bigint")


def _decimal(value: object) -> object:
    """asyncpg takes only Decimal for numeric."""
    return Decimal(value) if isinstance(value, int) else value


def _plain(value: object) -> object:
    match value:
        case int() | float() if not isinstance(value, int) or value in INT64:
            return value
        case Decimal():
            return format(value, "f")
        case datetime():
            return value.isoformat(sep=" ")
        case UUID() | date() | int():
            return str(value)
        case _:
            return value


def _duckdb_number(value: object) -> str:
    if not isinstance(value, Decimal):
        return "BIGINT" if value in INT64 else "HUGEINT"
    _, digits, exponent = value.as_tuple()
    scale = -int(exponent)
    return f"DECIMAL({max(len(digits), scale)}, {scale})"
