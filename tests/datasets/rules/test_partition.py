"""Keys of partitions and their spans: ranges, days and hours of a time zone with its changes of clocks, plain keys."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.datasets.rules.partition import (
    BIGINT_MAX,
    BIGINT_MIN,
    Key,
    Ordered,
    Range,
    Run,
    Span,
    Time,
    build,
    comparable,
    inside,
    is_aligned,
    keys_between,
    range_span,
    touched,
)  # fmt: skip
from windlass.errors import Invalid

BERLIN, LORD_HOWE, APIA = ZoneInfo("Europe/Berlin"), ZoneInfo("Australia/Lord_Howe"), ZoneInfo("Pacific/Apia")
ST_JOHNS, KOLKATA = ZoneInfo("America/St_Johns"), ZoneInfo("Asia/Kolkata")
HOUR = 3600


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


# ------------------------------------------------------------------------------------------ ranges


@pytest.mark.parametrize(
    ("size", "start", "key", "span"),
    [
        (1000, 0, "0-999", (0, 999)),
        (1000, 0, "1000-1999", (1000, 1999)),
        (1000, 500, "1500-2499", (1500, 2499)),
        (1, 0, "7-7", (7, 7)),
        (10, -20, "-20--11", (-20, -11)),
        (10, -5, "-5-4", (-5, 4)),
        (1, 0, f"{BIGINT_MAX}-{BIGINT_MAX}", (BIGINT_MAX, BIGINT_MAX)),
        (BIGINT_MAX, BIGINT_MIN, f"{BIGINT_MIN}--2", (BIGINT_MIN, -2)),
    ],
)
def test_the_key_of_a_range_is_its_first_and_last_number(size: int, start: int, key: str, span: Span) -> None:
    scheme = Range(size, start)

    assert scheme.span(key) == span
    assert scheme.key(Span(*span)) == key
    assert is_aligned(scheme, Span(*span))


@pytest.mark.parametrize(
    "key",
    [
        "500-1499", "0-998", "0-1000", "0-1999", "999-0", "-1000--1", "00-999", "0-0999", "+0-999", "0 - 999", "0-999 ",
        "-0-999", "0", "", "a-b", "٠-999", "0-999\n", f"{BIGINT_MAX}-{BIGINT_MAX + 999}", f"{10**30}-{10**30 + 999}",
        "9223372036854775000-9223372036854775999",
    ],
)  # fmt: skip
def test_a_key_that_is_no_partition_of_a_range_is_refused(key: str) -> None:
    with pytest.raises(Invalid, match=r"a key is .*with 1000 numbers, aligned to 0") as refused:
        Range(1000).span(key)
    assert refused.value.field == "partition_key"


@pytest.mark.parametrize(("size", "start"), [(0, 0), (-1, 0), (2**63, 0), (1, 2**63), (1, -(2**63) - 1)])
def test_a_range_outside_of_bigint_is_refused(size: int, start: int) -> None:
    with pytest.raises(Invalid, match="must be from"):
        Range(size, start)


def test_a_range_that_does_not_fit_before_the_end_of_bigint_has_no_partitions() -> None:
    scheme = Range(10, BIGINT_MAX - 5)

    assert scheme.at(BIGINT_MAX) is None
    assert inside(scheme, Span(BIGINT_MIN, BIGINT_MAX)) is None
    assert touched(scheme, Span(BIGINT_MIN, BIGINT_MAX)) is None


@pytest.mark.parametrize(
    ("key", "span"),
    [("0-9", (0, 9)), ("-9--1", (-9, -1)), ("9-0", None), ("x", None), ("01-2", None), (f"0-{2**63}", None)],
)
def test_a_key_tells_its_span_without_a_scheme(key: str, span: Span | None) -> None:
    assert range_span(key) == span


# ------------------------------------------------------------------------------------------ time


@pytest.mark.parametrize(
    ("scheme", "key", "first", "hours"),
    [
        (Time("1d"), "2026-01-31", "2026-01-31T00:00", 24),
        (Time("1h"), "2026-01-31T05", "2026-01-31T05:00", 1),
        (Time("1d", BERLIN), "2026-01-31", "2026-01-30T23:00", 24),
        (Time("1d", BERLIN), "2026-03-29", "2026-03-28T23:00", 23),
        (Time("1d", BERLIN), "2026-10-25", "2026-10-24T22:00", 25),
        (Time("1h", BERLIN), "2026-03-29T01", "2026-03-29T00:00", 1),
        (Time("1h", BERLIN), "2026-03-29T03", "2026-03-29T01:00", 1),
        (Time("1h", BERLIN), "2026-10-25T02", "2026-10-25T00:00", 2),
        (Time("1h", BERLIN), "2026-10-25T03", "2026-10-25T02:00", 1),
        (Time("1h", KOLKATA), "2026-01-31T05", "2026-01-30T23:30", 1),
        (Time("1h", LORD_HOWE), "2026-10-04T02", "2026-10-03T15:30", 0.5),
        (Time("1h", LORD_HOWE), "2026-04-05T01", "2026-04-04T14:00", 1.5),
        (Time("1d", APIA), "2011-12-29", "2011-12-29T10:00", 24),
        (Time("1d", APIA), "2011-12-31", "2011-12-30T10:00", 24),
        (Time("1d", ST_JOHNS), "2008-11-01", "2008-11-01T02:30", 24),
        (
            Time("1d", ST_JOHNS),
            "2008-11-02",
            "2008-11-02T02:30",
            25,
        ),  # its clocks went back at one minute past midnight
        (Time("1h", ST_JOHNS), "2008-11-01T23", "2008-11-02T01:30", 1),
        (Time("1h", ST_JOHNS), "2008-11-02T00", "2008-11-02T02:30", 2),
        (Time("1d"), "1000-01-01", "1000-01-01T00:00", 24),
        (Time("1d"), "8999-12-31", "8999-12-31T00:00", 24),
    ],
    ids=lambda value: getattr(getattr(value, "zone", ""), "key", None),
)
def test_a_day_or_hour_is_as_long_as_the_clocks_make_it(scheme: Time, key: str, first: str, hours: float) -> None:
    span = scheme.span(key)

    assert span == (at(first), at(first) + hours * HOUR - 1)
    assert scheme.key(span) == key
    assert {scheme.at(number) for number in (span.first, span.last, sum(span) // 2)} == {span}


@pytest.mark.parametrize(
    ("scheme", "key"),
    [
        (Time("1d"), "2026-02-30"),
        (Time("1d"), "2026-1-31"),
        (Time("1d"), "2026-01-31T05"),
        (Time("1d"), "2026-01-31T00"),
        (Time("1d"), "20260131"),
        (Time("1d"), "2026-W05-1"),
        (Time("1d"), "0999-12-31"),
        (Time("1d"), "9000-01-01"),
        (Time("1d"), "2026-01-31 "),
        (Time("1d"), "٢٠٢٦-01-31"),
        (Time("1d"), ""),
        (Time("1h"), "2026-01-31"),
        (Time("1h"), "2026-01-31T24"),
        (Time("1h"), "2026-01-31T5"),
        (Time("1h"), "2026-01-31 05"),
        (Time("1h"), "2026-01-31T05:00"),
        (Time("1h", BERLIN), "2026-03-29T02"),  # clocks skip it
        (Time("1d", APIA), "2011-12-30"),
        (Time("1h", APIA), "2011-12-30T05"),
        (Time("1d", UTC, "2026-01-31"), "2026-01-30"),
    ],
)
def test_a_key_that_is_no_day_or_hour_is_refused(scheme: Time, key: str) -> None:
    with pytest.raises(Invalid, match="a key is a ") as refused:
        scheme.span(key)
    assert refused.value.field == "partition_key"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"every": "2h"}, "partitions.every"),
        ({"every": "1d", "start": "2026-01-31T05"}, "partitions.start"),
        ({"every": "1d", "start": "soon"}, "partitions.start"),
        ({"every": "1h", "zone": BERLIN, "start": "2026-03-29T02"}, "partitions.start"),
    ],
)
def test_a_time_that_cannot_be_is_refused(fields: dict[str, object], field: str) -> None:
    with pytest.raises(Invalid) as refused:
        Time(**fields)  # type: ignore[arg-type]
    assert refused.value.field == field


def test_hours_may_start_with_a_day() -> None:
    scheme = Time("1h", BERLIN, "2026-03-29")

    assert scheme.limits.first == at("2026-03-28T23:00")
    assert scheme.at(scheme.limits.first - 1) is None


# ------------------------------------------------------------------------------------------ runs


def keys(run: Run | None) -> list[str]:
    found = [] if run is None else list(run.keys())
    assert len(found) == (0 if run is None else run.count)
    return found


@pytest.mark.parametrize(
    ("scheme", "start", "end", "expected"),
    [
        (Range(10), 0, 29, ["0-9", "10-19", "20-29"]),
        (Range(10), 1, 29, ["10-19", "20-29"]),
        (Range(10), 0, 28, ["0-9", "10-19"]),
        (Range(10), 1, 18, []),
        (Range(10), 5, 5, []),
        (Range(10), -100, 9, ["0-9"]),
        (Range(10), -100, -1, []),
        (Time("1d"), "2026-01-30", "2026-02-01", ["2026-01-30", "2026-01-31", "2026-02-01"]),
        (Time("1d"), "2026-01-30T05", "2026-02-01T22", ["2026-01-31"]),
        (Time("1d", APIA), "2011-12-29", "2011-12-31", ["2011-12-29", "2011-12-31"]),
        (Time("1h", BERLIN), "2026-03-29T01", "2026-03-29T03", ["2026-03-29T01", "2026-03-29T03"]),
        (Time("1h", BERLIN), "2026-10-25T01", "2026-10-25T03", ["2026-10-25T01", "2026-10-25T02", "2026-10-25T03"]),
        (
            Time("1h", ST_JOHNS),
            "2008-03-09T00",
            "2008-03-09T02",
            [f"2008-03-09T0{h}" for h in range(3)],
        ),  # 1 minute, 59
        (Time("1h", BERLIN), "2026-03-29", "2026-03-29", [f"2026-03-29T{h:02}" for h in range(24) if h != 2]),
    ],
)
def test_the_keys_between_two_bounds_lie_completely_between_them(
    scheme: Ordered, start: int | str, end: int | str, expected: list[str]
) -> None:
    assert keys(keys_between(scheme, start, end)) == expected


@pytest.mark.parametrize(
    ("scheme", "start", "end", "field"),
    [
        (Range(10), "0", 9, "start"),
        (Range(10), 0, 2**63, "end"),
        (Range(10), True, 9, "start"),
        (Range(10), 9, 0, "end"),
        (Time("1d"), 0, "2026-01-31", "start"),
        (Time("1d"), "2026-01-31", "2026-02-30", "end"),
        (Time("1d"), "2026-01-31", "2026-01-30", "end"),
        (Key(), "a", "b", "start"),
    ],
)
def test_a_bound_that_is_wrong_is_named(scheme: Ordered, start: int | str, end: int | str, field: str) -> None:
    with pytest.raises(Invalid) as refused:
        keys_between(scheme, start, end)
    assert refused.value.field == field


def test_a_run_of_many_partitions_is_counted_without_expanding_it() -> None:
    everything = inside(Range(1), Span(0, BIGINT_MAX))
    assert everything is not None
    assert everything.count == 2**63

    ages = inside(Time("1h"), Time("1h").bounds("1000-01-01", "8999-12-31"))
    assert ages is not None
    assert ages.count == 8000 * 365.2425 * 24


@pytest.mark.parametrize(
    ("span", "expected"),
    [
        ((5, 5), ["0-9"]),
        ((9, 10), ["0-9", "10-19"]),
        ((-5, 3), ["0-9"]),
        ((-5, -1), []),
        ((0, 9), ["0-9"]),
    ],
)
def test_the_partitions_that_a_span_touches(span: Span, expected: list[str]) -> None:
    assert keys(touched(Range(10), Span(*span))) == expected


# ------------------------------------------------------------------------------------------ schemes


def test_any_text_is_a_key_of_the_kind_key() -> None:
    for key in ("a", "eu/west 1", "0-9", "ü" * 500):
        assert Key().span(key) is None
    for key in ("", "a\0", "a" * 501):
        with pytest.raises(Invalid) as refused:
            Key().span(key)
        assert refused.value.field == "partition_key"


@pytest.mark.parametrize(
    ("fields", "scheme"),
    [
        ({"kind": "range", "size": 10, "start": 5}, Range(10, 5)),
        ({"kind": "range", "size": 10}, Range(10, 0)),
        ({"kind": "time", "every": "1h", "start": "2026-01-31"}, Time("1h", UTC, "2026-01-31")),
        ({"kind": "time", "every": "1d", "zone": BERLIN}, Time("1d", BERLIN)),
        ({"kind": "key"}, Key()),
    ],
)
def test_a_scheme_is_built_from_its_description(fields: dict[str, object], scheme: object) -> None:
    assert build(**fields) == scheme  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"kind": "week"}, "partitions.kind"),
        ({"kind": "range"}, "partitions.size"),
        ({"kind": "range", "size": 1, "start": "a"}, "partitions.start"),
        ({"kind": "time"}, "partitions.every"),
        ({"kind": "time", "every": "1d", "start": 5}, "partitions.start"),
    ],
)
def test_a_description_that_is_wrong_is_refused_with_its_field(fields: dict[str, object], field: str) -> None:
    with pytest.raises(Invalid) as refused:
        build(**fields)  # type: ignore[arg-type]
    assert refused.value.field == field


def test_only_partitions_of_one_kind_are_comparable() -> None:
    assert comparable(Range(10), Range(7, 3))
    assert comparable(Time("1h"), Time("1d", BERLIN))
    assert not comparable(Range(10), Time("1d"))
    assert not comparable(Key(), Range(10))


# ------------------------------------------------------------------------------------------ properties

ZONES = st.sampled_from([UTC, BERLIN, LORD_HOWE, APIA, ST_JOHNS, KOLKATA, ZoneInfo("America/Sao_Paulo")])
CHANGES = ("2008-03-08", "2008-11-02", "2011-12-30", "2026-03-29", "2026-10-25", "2026-04-04", "2026-10-03")
SECONDS = st.integers(at("1985-01-01"), at("2040-01-01")) | st.sampled_from(
    [at(day) + shift for day in CHANGES for shift in range(0, 40 * HOUR, HOUR // 2)]
)


@st.composite
def places(draw: st.DrawFn) -> tuple[Ordered, Span]:
    """A scheme, and a span near its partitions."""
    if draw(st.booleans()):
        first = draw(SECONDS)
        return Time(draw(st.sampled_from(["1h", "1d"])), draw(ZONES)), Span(
            first, first + draw(st.integers(0, 9 * 24 * HOUR))
        )
    near = draw(st.sampled_from([BIGINT_MIN, 0, BIGINT_MAX]))
    first, start = (min(max(near + draw(st.integers(-60, 60)), BIGINT_MIN), BIGINT_MAX) for _ in range(2))
    last = min(first + draw(st.integers(0, 200)), BIGINT_MAX)
    return Range(draw(st.integers(1, 20)), start), Span(first, last)


@given(place=places())
@settings(max_examples=200, deadline=None)
def test_partitions_are_disjoint_gapless_and_read_back_by_their_keys(place: tuple[Ordered, Span]) -> None:
    scheme, span = place
    run = touched(scheme, span)
    found = [] if run is None else list(run.partitions())

    assert run is None or run.count == len(found)
    assert [scheme.span(key) for key, _ in found] == [each for _, each in found]
    assert len({key for key, _ in found}) == len(found)
    assert all(one[1].last + 1 == other[1].first for one, other in itertools.pairwise(found))
    for _, each in found:
        assert scheme.at(each.first) == scheme.at(each.last) == each
        assert each.first <= span.last
        assert span.first <= each.last
    lost = [
        n
        for n in (span.first, span.last, sum(span) // 2)
        if scheme.at(n) and not any(s[0] <= n <= s[1] for _, s in found)
    ]
    assert lost == []


@given(place=places())
@settings(max_examples=200, deadline=None)
def test_what_lies_inside_are_those_of_the_touched_that_stick_out_nowhere(place: tuple[Ordered, Span]) -> None:
    scheme, span = place
    near, within = touched(scheme, span), inside(scheme, span)
    fitting = (
        [key for key, each in near.partitions() if span.first <= each.first and each.last <= span.last] if near else []
    )

    assert keys(within) == fitting
