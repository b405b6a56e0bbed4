"""Strategies that draw conditions and rows, so that each renders, and values and literals often meet."""

from __future__ import annotations

import string
from decimal import Decimal

from hypothesis import strategies as st

from windlass.datasets.rules.predicate import Where, parse
from windlass.datasets.rules.predicate_tree import And, Compare, In, IsNull, Like, Literal, Node, Not, Or

TEXTS = st.text(alphabet="aAbB%_\\'\" é\n😀\uffff", max_size=4)
NAMES = st.sampled_from(["a", "B", "in", "two words", 'quo"te', "_1"]) | st.text(
    string.ascii_letters, min_size=1, max_size=3
)
INTEGERS = (
    st.integers(-3, 3) | st.integers(-(10**38) + 1, 10**38 - 1) | st.sampled_from([2**53 + 1, 2**63, -(2**63) - 1])
)
FRACTIONS = st.decimals(-(10**19), 10**19, places=18).filter(lambda d: d % 1 != 0) | st.sampled_from(
    [Decimal("0.1"), Decimal("-2.5"), Decimal("1.000000000000000001")]
)
NUMBERS: st.SearchStrategy[Literal] = INTEGERS | FRACTIONS
LITERALS: st.SearchStrategy[Literal] = TEXTS | NUMBERS | st.booleans()
OPERATORS = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])


def wheres(
    names: st.SearchStrategy[str] = NAMES, literals: st.SearchStrategy[Literal] = LITERALS, like: bool = True
) -> st.SearchStrategy[Where]:
    """Conditions as `parse` makes them."""
    leaves: st.SearchStrategy[Node] = st.one_of(
        st.builds(Compare, names, OPERATORS, literals),
        st.builds(In, names, st.lists(literals, min_size=1, max_size=4).map(tuple)),
        st.builds(Like, names, TEXTS) if like else st.builds(IsNull, names),
        st.builds(IsNull, names),
    )
    trees = st.recursive(leaves, _larger, max_leaves=8)
    return trees.map(spelled).map(parse)


def _larger(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    items = st.lists(inner, min_size=2, max_size=3).map(tuple)
    return st.one_of(st.builds(Not, inner), st.builds(And, items), st.builds(Or, items))


def spelled(node: Node) -> str:
    """A text for a tree, with all parentheses that it can have."""
    match node:
        case And(items):
            return " AND ".join(f"({spelled(item)})" for item in items)
        case Or(items):
            return " OR ".join(f"({spelled(item)})" for item in items)
        case Not(item):
            return f"NOT ({spelled(item)})"
        case IsNull(column):
            return f"{_name(column)} IS NULL"
        case Like(column, pattern):
            return f"{_name(column)} LIKE {_literal(pattern)}"
        case In(column, literals):
            return f"{_name(column)} IN ({','.join(map(_literal, literals))})"
        case Compare(column, op, literal):
            return f"{_name(column)}{op}{_literal(literal)}"


def _name(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'


def _literal(literal: Literal) -> str:
    match literal:
        case bool():
            return str(literal)
        case str():
            return "'" + literal.replace("'", "''") + "'"
        case _:
            return format(literal, "f") if isinstance(literal, Decimal) else str(literal)
