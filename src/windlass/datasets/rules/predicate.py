"""The `where` of an edge: a condition on the rows of an input.

    or   := and {OR and}        and := not {AND not}        not := [NOT] pred
    pred := '(' or ')' | col cmp lit | col [NOT] IN '(' lit {',' lit} ')' | col IS [NOT] NULL | col [NOT] LIKE string
    cmp  := = <> != < <= > >=
    lit  := 'string' | [-]number | TRUE | FALSE              col := name | "quoted"

Keywords are in any case. Names are taken as they are written, also without quotes. A quote inside quotes is doubled.
Logic is SQL's: a row is taken only if the condition is TRUE, not if it is NULL. `predicate_tree` says what comparisons
of values of different types mean; the Python, PostgreSQL, DuckDB and Arrow forms agree on it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import msgspec

from windlass.datasets.rules.predicate_arrow import expression
from windlass.datasets.rules.predicate_sql import Dialect, render
from windlass.datasets.rules.predicate_tree import (
    And,
    Compare,
    In,
    IsNull,
    Like,
    Literal,
    Node,
    Not,
    Or,
    Truth,
    compare,
    like,
)
from windlass.datasets.rules.predicate_type import TEXT, Kind, fit, kind_of
from windlass.errors import Invalid

if TYPE_CHECKING:
    import pyarrow

BYTES_MAX = 4096
DEPTH_MAX = 32  # of parentheses
LITERALS_MAX = 1000
NAME_BYTES_MAX = 63  # PostgreSQL cuts longer names off, and the rest could be another column
DIGITS_MAX, FRACTION_MAX = 38, 18  # what DECIMAL of DuckDB and Arrow holds, beside any bigint

KEYWORDS = frozenset({"AND", "OR", "NOT", "IN", "IS", "NULL", "LIKE", "TRUE", "FALSE"})
_TOKEN = re.compile(
    r"""(?P<space>\s+)
      | (?P<string>'(?:[^']|'')*')
      | (?P<quoted>"(?:[^"]|"")*")
      | (?P<number>[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?(?![\w.]))
      | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<symbol><>|!=|<=|>=|[=<>(),-])""",
    re.VERBOSE | re.ASCII,
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_OPERATORS = ("=", "<>", "!=", "<", "<=", ">", ">=")


class WhereInvalid(Invalid):
    """The condition is not in the grammar of `where`."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message, offset=offset)
        self.offset = offset


class Where(msgspec.Struct, frozen=True):
    """A condition on rows. Two conditions that differ only in spaces, case of keywords, needless parentheses or the
    spelling of numbers are equal."""

    tree: Node
    text: str  # the condition in its canonical spelling, which parses to the same tree

    @classmethod
    def parse(cls, text: str) -> Where:
        return parse(text)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it names, each once, in order."""
        return tuple(dict.fromkeys(_columns(self.tree)))

    def matches(self, row: Mapping[str, object]) -> bool:
        """Whether it takes this row."""
        return _truth(self.tree, row) is True

    def sql(
        self, dialect: Dialect, types: Mapping[str, str] | None = None, *, first: int = 1
    ) -> tuple[str, list[object]]:
        """The condition as SQL with parameters `${first}` and so on. `types` are the types of the columns, as our
        schemas or the database names them; without them the columns have to be comparable with their literals."""
        return render(self.tree, dialect, types, first)

    def arrow(self, schema: pyarrow.Schema | None = None) -> pyarrow.compute.Expression:
        """The condition as a filter of pyarrow. `schema` is that of the table, as `types` are for `sql`."""
        return expression(self.tree, schema)

    def misfits(self, types: Mapping[str, str]) -> list[tuple[str, str]]:
        """Columns and literals that can never be compared, since their types differ: a mistake in the condition."""
        return list(_misfits(self.tree, {name: kind_of(type_) for name, type_ in types.items()}))


def column_offset(text: str, column: str) -> int:
    """Where a condition that was parsed names a column first."""
    for token in _tokens(text):
        if token.kind in ("name", "quoted") and _name_of(token) == column:
            return token.offset
    return 0


def parse(text: str) -> Where:
    """Read a condition. Raises WhereInvalid with the offset of the first wrong character."""
    _check_text(text)
    tree = _Parser(text).whole()
    canonical = _text(tree)
    if (length := len(canonical.encode())) > BYTES_MAX:
        raise WhereInvalid(f"has {length} bytes in its canonical spelling, at most {BYTES_MAX} are allowed", 0)
    return Where(tree, canonical)


def _check_text(text: str) -> None:
    if (bad := re.search("[\x00\ud800-\udfff]", text)) is not None:
        raise WhereInvalid(f"contains the character {bad[0]!r}, which no database stores", bad.start())
    if (length := len(text.encode())) > BYTES_MAX:
        raise WhereInvalid(f"has {length} bytes, at most {BYTES_MAX} are allowed; shorten it", 0)


class _Token(NamedTuple):
    kind: str  # string quoted number name keyword symbol end
    text: str  # of a keyword in capitals
    offset: int


def _tokens(text: str) -> Iterator[_Token]:
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise WhereInvalid(_unreadable(text, at), at)
        kind, word = str(found.lastgroup), found[0]
        if kind == "name" and word.upper() in KEYWORDS:
            yield _Token("keyword", word.upper(), at)
        elif kind != "space":
            yield _Token(kind, word, at)
        at = found.end()
    yield _Token("end", "the end", at)


def _name_of(token: _Token) -> str:
    return token.text[1:-1].replace('""', '"') if token.kind == "quoted" else token.text


def _unreadable(text: str, at: int) -> str:
    match text[at]:
        case "'":
            return "the string that begins here has no closing quote"
        case '"':
            return "the name that begins here has no closing quote"
        case digit if digit in "0123456789":
            return "this is not a number; write digits such as 1000, 1.5 or 1e18"
        case character:
            return f"{character!r} is not allowed here"


class _Parser:
    """One frame per rule and level of parentheses; their depth is limited, so the stack is too."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._next = next(self._tokens)
        self._depth = 0
        self._literals = 0

    def whole(self) -> Node:
        tree = self._or()
        if self._next.kind != "end":
            self._expected("AND, OR or the end")
        return tree

    def _or(self) -> Node:
        items = [self._and()]
        while self._takes("OR"):
            items.append(self._and())
        return _joined(Or, items)

    def _and(self) -> Node:
        items = [self._not()]
        while self._takes("AND"):
            items.append(self._not())
        return _joined(And, items)

    def _not(self) -> Node:
        return Not(self._pred()) if self._takes("NOT") else self._pred()

    def _pred(self) -> Node:
        start = self._next
        if not self._takes("("):
            return self._comparison(self._column())
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise WhereInvalid(f"parentheses are nested deeper than {DEPTH_MAX}", start.offset)
        inner = self._or()
        self._needs(")")
        self._depth -= 1
        return inner

    def _comparison(self, column: str) -> Node:
        if self._takes("IS"):
            negated = self._takes("NOT")
            self._needs("NULL")
            return Not(IsNull(column)) if negated else IsNull(column)
        if self._takes("NOT"):
            return Not(self._in_or_like(column, "IN or LIKE"))
        if self._next.text in ("IN", "LIKE"):
            return self._in_or_like(column, "")
        if self._next.kind != "symbol" or self._next.text not in _OPERATORS:
            self._expected(f"a comparison after column {column}: = <> < <= > >= IN, LIKE or IS NULL")
        op = self._take().text
        return Compare(column, "<>" if op == "!=" else op, self._literal())

    def _in_or_like(self, column: str, wanted: str) -> Node:
        if self._takes("LIKE"):
            if self._next.kind != "string":
                self._expected("a 'string' after LIKE")
            return Like(column, str(self._literal()))
        if not self._takes("IN"):
            self._expected(wanted)
        self._needs("(")
        literals = [self._literal()]
        while self._takes(","):
            literals.append(self._literal())
        self._needs(")")
        return In(column, tuple(literals))

    def _column(self) -> str:
        token = self._next
        if token.kind not in ("name", "quoted"):
            self._expected("a column")
        self._take()
        if self._next.text == "(":
            raise WhereInvalid(f"{token.text}(…) is a function; a where compares columns with literals", token.offset)
        name = _name_of(token)
        if not name or len(name.encode()) > NAME_BYTES_MAX:
            raise WhereInvalid(f"the name of a column has 1 to {NAME_BYTES_MAX} bytes", token.offset)
        return name

    def _literal(self) -> Literal:
        start = self._next
        self._literals += 1
        if self._literals > LITERALS_MAX:
            raise WhereInvalid(f"has more than {LITERALS_MAX} literals", start.offset)
        negative = self._takes("-")
        token = self._next
        if token.kind == "number":
            return _number(self._take().text, negative, start.offset)
        if negative:
            self._expected("a number after -")
        if token.kind == "string":
            return self._take().text[1:-1].replace("''", "'")
        if token.kind == "keyword" and token.text in ("TRUE", "FALSE"):
            return self._take().text == "TRUE"
        return self._expected("a literal: 'string', number, TRUE or FALSE")

    def _takes(self, text: str) -> bool:
        if self._next.kind not in ("keyword", "symbol") or self._next.text != text:
            return False
        self._take()
        return True

    def _needs(self, text: str) -> None:
        if not self._takes(text):
            self._expected(text)

    def _take(self) -> _Token:
        token = self._next
        self._next = next(self._tokens)
        return token

    def _expected(self, wanted: str) -> NoReturn:
        hint = "; compare a column with NULL by IS NULL" if self._next.text == "NULL" else ""
        raise WhereInvalid(f"expected {wanted}, found {self._next.text[:40]}{hint}", self._next.offset)


def _joined(kind: type[And] | type[Or], items: list[Node]) -> Node:
    if len(items) == 1:
        return items[0]
    flat: list[Node] = []
    for item in items:
        flat += item.items if isinstance(item, kind) else (item,)
    return kind(tuple(flat))


def _number(text: str, negative: bool, offset: int) -> int | Decimal:
    value = Decimal(f"-{text}" if negative else text)
    plain = _plain(value).lstrip("-")
    whole, _, fraction = plain.partition(".")
    if len(whole) + len(fraction) > DIGITS_MAX or len(fraction) > FRACTION_MAX:
        raise WhereInvalid(f"a number has at most {DIGITS_MAX} digits, {FRACTION_MAX} of them behind the point", offset)
    return value if fraction else int(value)


def _plain(value: Decimal) -> str:
    """Without an exponent, and without zeros at the end. (`normalize` would round to 28 digits.)"""
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _columns(node: Node) -> Iterator[str]:
    match node:
        case And(items) | Or(items):
            for item in items:
                yield from _columns(item)
        case Not(item):
            yield from _columns(item)
        case _:
            yield node.column


def _misfits(node: Node, kinds: Mapping[str, Kind]) -> Iterator[tuple[str, str]]:
    match node:
        case And(items) | Or(items):
            for item in items:
                yield from _misfits(item, kinds)
        case Not(item):
            yield from _misfits(item, kinds)
        case Compare(column, _, literal):
            yield from _misfits(In(column, (literal,)), kinds)
        case In(column, literals):
            kind = kinds.get(column)
            yield from ((column, literal_text(each)) for each in literals if kind and fit(kind, "=", each) is None)
        case Like(column, pattern):
            if kinds.get(column, TEXT) is not TEXT:
                yield column, literal_text(pattern)


def _truth(node: Node, row: Mapping[str, object]) -> Truth:
    match node:
        case Compare(column, op, literal):
            return compare(row.get(column), op, literal)
        case In(column, literals):
            value = row.get(column)
            return _any(compare(value, "=", literal) for literal in literals)
        case Like(column, pattern):
            return like(row.get(column), pattern)
        case IsNull(column):
            return row.get(column) is None
        case Not(item):
            return _negation(_truth(item, row))
        case And(items):
            return _negation(_any(_negation(_truth(item, row)) for item in items))
        case Or(items):
            return _any(_truth(item, row) for item in items)


def _any(truths: Iterable[Truth]) -> Truth:
    """TRUE if one is, else NULL if one is, else FALSE."""
    result: Truth = False
    for truth in truths:
        if truth:
            return True
        if truth is None:
            result = None
    return result


def _negation(truth: Truth) -> Truth:
    return None if truth is None else not truth


def _text(node: Node) -> str:
    match node:
        case Compare(column, op, literal):
            return f"{name_text(column)} {op} {literal_text(literal)}"
        case In(column, literals) | Not(In(column, literals)):
            listed = ", ".join(map(literal_text, literals))
            return f"{name_text(column)} {'NOT ' if isinstance(node, Not) else ''}IN ({listed})"
        case Like(column, pattern) | Not(Like(column, pattern)):
            return f"{name_text(column)} {'NOT ' if isinstance(node, Not) else ''}LIKE {literal_text(pattern)}"
        case IsNull(column):
            return f"{name_text(column)} IS NULL"
        case Not(IsNull(column)):
            return f"{name_text(column)} IS NOT NULL"
        case Not(item):
            inner = _text(item)
            bare = isinstance(item, Compare) or (isinstance(item, Not) and isinstance(item.item, In | Like | IsNull))
            return f"NOT {inner}" if bare else f"NOT ({inner})"
        case And(items):
            return " AND ".join(f"({_text(item)})" if isinstance(item, Or) else _text(item) for item in items)
        case Or(items):
            return " OR ".join(map(_text, items))


def name_text(column: str) -> str:
    """A column as it is written in a where."""
    plain = _NAME.fullmatch(column) and column.upper() not in KEYWORDS
    return column if plain else '"' + column.replace('"', '""') + '"'


def literal_text(literal: Literal) -> str:
    """A literal as it is written in a where."""
    match literal:
        case bool():
            return "TRUE" if literal else "FALSE"
        case str():
            return "'" + literal.replace("'", "''") + "'"
        case Decimal():
            return _plain(literal)
        case int():
            return str(literal)
