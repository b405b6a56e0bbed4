"""The grammar of `where`, its canonical spelling, and what it takes of a row in Python."""

from __future__ import annotations

import sys
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.datasets.rules.wheres import wheres

from windlass.datasets.rules.predicate import BYTES_MAX, DEPTH_MAX, LITERALS_MAX, Where, WhereInvalid, parse

ID = UUID("6f1c0ffe-0000-4000-8000-00000000beef")


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("topic = 'transfer' AND amount > 1000", "topic = 'transfer' AND amount > 1000"),
        ("a=1", "a = 1"),
        ("  a  =\n1\t", "a = 1"),
        ("a != 1", "a <> 1"),
        ("a <= -1.50 or a >= 2", "a <= -1.5 OR a >= 2"),
        ("a = 1.0", "a = 1"),
        ("a = -0", "a = 0"),
        ("a = 1e18", "a = 1000000000000000000"),
        ("a = 25E-2", "a = 0.25"),
        ("a = 0012", "a = 12"),
        ("a in (1,2 , 'x')", "a IN (1, 2, 'x')"),
        ("a Not In (TRUE)", "a NOT IN (TRUE)"),
        ("not a in (true)", "a NOT IN (TRUE)"),
        ("a is null", "a IS NULL"),
        ("NOT a IS NULL", "a IS NOT NULL"),
        ("a LIKE 'it''s %'", "a LIKE 'it''s %'"),
        ("a not like ''", "a NOT LIKE ''"),
        ("NOT a = 1", "NOT a = 1"),
        ("NOT (a = 1)", "NOT a = 1"),
        ("NOT (NOT a = 1)", "NOT (NOT a = 1)"),
        ("NOT a IS NOT NULL", "NOT a IS NOT NULL"),
        ("((a = 1))", "a = 1"),
        ("(a = 1 AND b = 2) AND c = 3", "a = 1 AND b = 2 AND c = 3"),
        ("a = 1 AND (b = 2 OR c = 3)", "a = 1 AND (b = 2 OR c = 3)"),
        ("(a = 1 AND b = 2) OR c = 3", "a = 1 AND b = 2 OR c = 3"),
        ("NOT (a = 1 OR b = 2)", "NOT (a = 1 OR b = 2)"),
        ('"a" = 1', "a = 1"),
        ('"in" = 1', '"in" = 1'),
        ('"two words" = 1 and "a""b" = 2', '"two words" = 1 AND "a""b" = 2'),
        ("Amount = 'ü😀'", "Amount = 'ü😀'"),
        ("index = 1 AND nullable = 2", "index = 1 AND nullable = 2"),
    ],
)
def test_a_where_has_one_canonical_spelling(text: str, canonical: str) -> None:
    assert parse(text).text == canonical
    assert parse(canonical) == parse(text)


@pytest.mark.parametrize(
    ("text", "offset", "says"),
    [
        ("", 0, "expected a column, found the end"),
        ("   ", 3, "expected a column, found the end"),
        ("a", 1, "expected a comparison after column a"),
        ("a =", 3, "expected a literal: 'string', number, TRUE or FALSE, found the end"),
        ("a = b", 4, "expected a literal: 'string', number, TRUE or FALSE, found b"),
        ("a = NULL", 4, "IS NULL"),
        ("1 = a", 0, "expected a column, found 1"),
        ("a = 1 b = 2", 6, "expected AND, OR or the end, found b"),
        ("a = 1 AND", 9, "expected a column"),
        ("a = 1;", 5, "';' is not allowed here"),
        ("a = 1 -- x", 6, "expected AND, OR or the end, found -"),
        ("a = 1 /* x */", 6, "'/' is not allowed here"),
        ("a = $1", 4, "'$' is not allowed here"),
        ("a = ?", 4, "'?' is not allowed here"),
        ("a = :x", 4, "':' is not allowed here"),
        ("lower(a) = 'x'", 0, "lower(…) is a function"),
        ("a = lower('x')", 4, "expected a literal"),
        ("a::text = 'x'", 1, "':' is not allowed here"),
        ("a.b = 1", 1, "'.' is not allowed here"),
        ("a = 'x", 4, "the string that begins here has no closing quote"),
        ('"a = 1', 0, "the name that begins here has no closing quote"),
        ('"" = 1', 0, "the name of a column has 1 to 63 bytes"),
        (f"a = 1 OR {'n' * 64} = 1", 9, "the name of a column has 1 to 63 bytes"),
        (f"{'é' * 32} = 1", 0, "'é' is not allowed here"),
        (f'"{"é" * 32}" = 1', 0, "the name of a column has 1 to 63 bytes"),
        ("a = 1x", 4, "this is not a number"),
        ("a = 1.2.3", 4, "this is not a number"),
        ("a = 1.", 4, "this is not a number"),
        ("a = .5", 4, "'.' is not allowed here"),
        ("a = +1", 4, "'+' is not allowed here"),
        ("a = - 'x'", 6, "expected a number after -"),
        ("a = 1e9999", 4, "this is not a number"),
        (f"a = {'1' * 39}", 4, "a number has at most 38 digits"),
        ("a = -1e38", 4, "a number has at most 38 digits"),
        ("a = 1e-19", 4, "18 of them behind the point"),
        ("a IN ()", 6, "expected a literal"),
        ("a IN (1", 7, "expected ), found the end"),
        ("a IN (1,)", 8, "expected a literal"),
        ("a IN 1", 5, "expected (, found 1"),
        ("a NOT = 1", 6, "expected IN or LIKE, found ="),
        ("a IS 1", 5, "expected NULL, found 1"),
        ("a IS TRUE", 5, "expected NULL, found TRUE"),
        ("a LIKE 1", 7, "expected a 'string' after LIKE"),
        ("a LIKE 'x' ESCAPE '!'", 11, "expected AND, OR or the end, found ESCAPE"),
        ("NOT NOT a = 1", 4, "expected a column, found NOT"),
        ("(a = 1", 6, "expected ), found the end"),
        ("a = 1)", 5, "expected AND, OR or the end, found )"),
        ("a BETWEEN 1 AND 2", 2, "expected a comparison"),
        ("a == 1", 3, "expected a literal"),
        ("a = '\0'", 5, "which no database stores"),
        ("a = '\ud800'", 5, "which no database stores"),
        ("ä = 1", 0, "'ä' is not allowed here"),
        ("a = ١", 4, "is not allowed here"),
    ],
)
def test_what_is_not_in_the_grammar_is_refused_at_its_character(text: str, offset: int, says: str) -> None:
    with pytest.raises(WhereInvalid) as refused:
        parse(text)

    assert says in refused.value.message
    assert refused.value.offset == offset


def test_the_depth_of_parentheses_is_limited() -> None:
    assert parse("(" * DEPTH_MAX + "a = 1" + ")" * DEPTH_MAX).text == "a = 1"
    for depth in (DEPTH_MAX + 1, 2000):
        with pytest.raises(WhereInvalid, match="deeper than 32") as refused:
            parse("(" * depth + "a = 1" + ")" * depth)
        assert refused.value.offset == DEPTH_MAX


def test_a_tree_of_the_greatest_depth_is_used_without_a_deep_stack() -> None:
    text = "NOT (a = 0 AND (b = 0 OR " * (DEPTH_MAX // 2) + "c = 0" + "))" * (DEPTH_MAX // 2)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(_stack()) + 250)
    try:
        where = parse(text)
        assert where.columns == ("a", "b", "c")
        assert not where.matches({"a": 0, "b": 0})
    finally:
        sys.setrecursionlimit(limit)


def _stack() -> list[object]:
    frame, frames = sys._getframe(), []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames


def test_the_number_of_literals_is_limited() -> None:
    assert len(parse(f"a IN ({', '.join('1' * LITERALS_MAX)})").text) > LITERALS_MAX
    with pytest.raises(WhereInvalid, match="more than 1000 literals") as refused:
        parse(f"a IN ({','.join('1' * (LITERALS_MAX + 1))})")
    assert refused.value.offset == len("a IN (") + 2 * LITERALS_MAX


def test_the_bytes_are_limited_and_not_the_characters() -> None:
    most = "é" * ((BYTES_MAX - len("a = ''")) // 2)
    assert parse(f"a = '{most}'").text == f"a = '{most}'"
    with pytest.raises(WhereInvalid, match="4097 bytes"):
        parse(f"a = '{most}x'")


def test_spaces_count_as_bytes_too() -> None:
    with pytest.raises(WhereInvalid, match="has 4206 bytes, at most 4096 are allowed; shorten it"):
        parse(f"a = '{'é' * 2000}'{' ' * 200}")


def test_parentheses_side_by_side_are_not_deep() -> None:
    assert parse(" OR ".join(["(a = 1)"] * 100)).columns == ("a",)


def test_the_canonical_spelling_is_limited_too_so_that_it_can_be_read_again() -> None:
    text = f"a IN({','.join(['1e37'] * 200)})"
    assert len(text) < BYTES_MAX
    with pytest.raises(WhereInvalid, match="canonical spelling"):
        parse(text)


def test_the_columns_are_each_once_in_order() -> None:
    where = parse("b = 1 AND (a IN (1) OR NOT \"x y\" LIKE '%') AND b IS NULL")

    assert where.columns == ("b", "a", "x y")
    assert Where.parse(where.text) == where


@given(where=wheres())
@settings(deadline=None)
def test_every_canonical_spelling_parses_to_the_same_tree(where: Where) -> None:
    assert parse(where.text) == where


@given(text=st.text(alphabet="ab'\" \n()=<>!-,.01e%NOTANDORILKUSFalsetrue$;", max_size=60) | st.text(max_size=20))
@settings(deadline=None)
def test_any_text_is_read_or_refused_within_itself(text: str) -> None:
    offset = len(text)
    try:
        parse(text)
    except WhereInvalid as refused:
        offset = refused.offset
    assert 0 <= offset <= len(text)


# ------------------------------------------------------------------------------------------ comparisons


NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
PARIS = timezone(timedelta(hours=1))


@pytest.mark.parametrize(
    ("value", "condition", "truth"),
    [
        (None, "= 1", None),
        (None, "IN (1)", None),
        (None, "LIKE '%'", None),
        (None, "IS NULL", True),
        (0, "IS NULL", False),
        ({}, "IS NULL", False),
        (1, "= 1", True),
        (1, "<> 1", False),
        (1, "= 1.5", False),
        (2**70, "> 1000000000000000000000", True),
        (1, "= '1'", None),
        ("1", "= 1", None),
        ("1", "< 2", None),
        (True, "= 1", None),
        (1, "= TRUE", None),
        ("true", "= TRUE", None),
        (True, "= TRUE", True),
        (False, "< TRUE", True),
        (False, ">= TRUE", False),
        (0.1, "= 0.1", True),
        (Decimal("0.1"), "= 0.1", True),
        (Decimal("0.10000000000000000001"), "= 0.1", False),
        (0.1 + 0.2, "= 0.3", False),
        (float(2**53), "= 9007199254740993", True),  # the float nearest to the literal
        (2**53, "= 9007199254740993", False),
        (float("nan"), "= 0", False),
        (float("nan"), "<> 0", True),
        (float("nan"), "> 1e37", True),
        (float("nan"), "< 0", False),
        (Decimal("NaN"), ">= 0", True),
        (Decimal("sNaN"), "= 0", False),
        (float("-inf"), "< -1e37", True),
        (-0.0, "= 0", True),
        ("b", "> 'a'", True),
        ("a", "> 'B'", True),  # by code point, not by a language
        ("é", "> 'z'", True),
        ("\uffff", "< '😀'", True),
        ("a", "= 'a '", False),
        (b"a", "= 'a'", None),
        ([1], "= 1", None),
        (ID, f"= '{ID}'", True),
        (ID, f"= '{str(ID).upper()}'", True),
        (ID, "> '00000000-0000-0000-0000-000000000000'", True),
        (ID, f"= '{ID.hex}'", None),
        (ID, "= 'x'", None),
        (ID, "LIKE '%'", None),
        (NOON, "= '2026-01-31T12:00:00Z'", True),
        (NOON, "= '2026-01-31 13:00+01:00'", True),
        (NOON, "= '2026-01-31T12:00'", True),
        (NOON, "> '2026-01-31'", True),
        (NOON, "= '2026-01-31T12:00:00.000001'", False),
        (NOON.astimezone(PARIS), "= '2026-01-31T12:00'", True),
        (NOON.replace(tzinfo=None), "= '2026-01-31T12:00Z'", True),
        (NOON, "= '2026-02-30'", None),
        (NOON, "> '0001-01-01T00:00+23:59'", None),
        (NOON, "= 'noon'", None),
        (NOON, "= '20260131'", None),
        (NOON, "= '2026-W05'", None),
        (NOON.date(), "= '2026-01-31'", True),
        (date(2026, 2, 1), "> '2026-01-31'", True),
        (NOON.date(), "= '2026-01-31T00:00'", None),
        (5, "IN (1, 5)", True),
        (5, "IN ('5', 5)", True),
        (5, "IN ('5', 6)", None),
        (5, "IN (6)", False),
        (5, "NOT IN (6)", True),
        (5, "NOT IN ('5', 6)", None),
        (5, "LIKE '5'", None),
        (5, "NOT LIKE '6'", None),
        ("abc", "LIKE 'abc'", True),
        ("abc", "LIKE 'a%'", True),
        ("abc", "LIKE '%c'", True),
        ("abc", "LIKE '%b%'", True),
        ("abc", "LIKE 'a_c'", True),
        ("abc", "LIKE '_'", False),
        ("abc", "LIKE '%'", True),
        ("", "LIKE '%'", True),
        ("", "LIKE ''", True),
        ("abc", "LIKE ''", False),
        ("abc", "LIKE 'ab'", False),
        ("abc", "LIKE 'ABC'", False),
        ("aXbXc", "LIKE 'a%X_'", True),
        ("abab", "LIKE '%ab'", True),
        ("ab", "LIKE 'ab%ab'", False),
        ("aba", "LIKE 'ab%ba'", False),
        ("a\nb", "LIKE 'a_b'", True),
        ("a\n", "LIKE 'a'", False),
        ("é😀", "LIKE '__'", True),
        ("50%", "LIKE '50\\%'", False),  # nothing escapes
        ("50\\%", "LIKE '50\\%'", True),
        ("a.c", "LIKE 'a.c'", True),
        ("abc", "LIKE 'a.c'", False),
    ],
)
def test_a_value_against_a_literal(value: object, condition: str, truth: bool | None) -> None:
    """The truth is seen from outside by the condition and its negation; NULL takes neither row."""
    row = {"c": value}

    assert parse(f"c {condition}").matches(row) is (truth is True)
    assert parse(f"NOT c {condition}").matches(row) is (truth is False)


def test_a_column_that_the_row_does_not_have_is_null() -> None:
    assert parse("c IS NULL").matches({})
    assert not parse("c = 1 OR c <> 1").matches({})


T, F, N = "t = 1", "t = 2", "n = 1"


@pytest.mark.parametrize(
    ("left", "right", "both", "either"),
    [
        (T, T, True, True), (T, F, False, True), (T, N, None, True),
        (F, T, False, True), (F, F, False, False), (F, N, False, None),
        (N, T, None, True), (N, F, False, None), (N, N, None, None),
    ],
)  # fmt: skip
def test_three_valued_logic(left: str, right: str, both: bool | None, either: bool | None) -> None:
    row = {"t": 1}
    for text, truth in ((f"{left} AND {right}", both), (f"{left} OR {right}", either)):
        assert parse(text).matches(row) is (truth is True)
        assert parse(f"NOT ({text})").matches(row) is (truth is False)


def test_a_pattern_with_many_wildcards_is_matched_in_linear_time() -> None:
    """A regular expression would not end here within the life of the machine."""
    where = parse(f"c LIKE '{'%a' * 500}b'")

    assert not where.matches({"c": "a" * 100_000})


@given(
    text=st.text(alphabet="ab\n", max_size=8),
    pattern=st.text(alphabet="ab%_\n", max_size=6),
)
@settings(deadline=None)
def test_like_agrees_with_its_definition(text: str, pattern: str) -> None:
    assert parse(f"c LIKE '{pattern}'").matches({"c": text}) is _like(text, pattern)


def _like(text: str, pattern: str) -> bool:
    if not pattern:
        return not text
    if pattern[0] == "%":
        return any(_like(text[skip:], pattern[1:]) for skip in range(len(text) + 1))
    return bool(text) and pattern[0] in ("_", text[0]) and _like(text[1:], pattern[1:])
