"""When cron expressions fire: held against another program where the two agree, and against the rule itself."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import example, given, settings
from hypothesis import strategies as st

from windlass.core.cron import Cron, month_days, parse_cron
from windlass.core.cron_times import fires_after, first_fires, last_fire, newest_fires, next_fire
from windlass.core.wall_time import SECOND
from windlass.errors import Invalid

ZONES = (
    "UTC", "America/New_York", "Europe/London", "Australia/Lord_Howe", "America/Havana", "Asia/Kathmandu",
    "Africa/Casablanca", "Pacific/Apia",
)  # fmt: skip
NEW_YORK = ZoneInfo("America/New_York")


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type,misc]


def local(fires: list[datetime], zone: tzinfo = NEW_YORK) -> list[str]:
    return [f"{fire.astimezone(zone):%m-%d %H:%M %Z}" for fire in fires]


# --------------------------------------------------------------------------------------------- where the clocks change


@pytest.mark.parametrize(
    ("text", "fires"),
    [
        ("30 2 * * *", ["03-07 02:30 EST", "03-08 03:00 EDT", "03-09 02:30 EDT"]),
        ("0 30 2 * * *", ["03-07 02:30 EST", "03-08 03:00 EDT", "03-09 02:30 EDT"]),
        ("*/15 2 * * *", ["03-07 02:45 EST", "03-08 03:00 EDT", "03-09 02:00 EDT"]),
        ("30 2,3 * * *", ["03-07 03:30 EST", "03-08 03:00 EDT", "03-08 03:30 EDT"]),
        ("0 2,3 * * *", ["03-07 03:00 EST", "03-08 03:00 EDT", "03-09 02:00 EDT"]),
        ("0 * * * *", ["03-08 01:00 EST", "03-08 03:00 EDT", "03-08 04:00 EDT"]),
        ("*/30 * * * *", ["03-08 01:30 EST", "03-08 03:00 EDT", "03-08 03:30 EDT"]),
    ],
)
def test_in_spring_a_fixed_time_that_is_left_out_fires_at_the_change(text: str, fires: list[str]) -> None:
    before = last_fire(parse_cron(text), NEW_YORK, utc(2026, 3, 8, 6, 59, 59))
    assert before is not None
    assert local([before, *first_fires(parse_cron(text), NEW_YORK, before, 2)]) == fires


@pytest.mark.parametrize(
    ("text", "fires"),
    [
        ("30 1 * * *", ["11-01 01:30 EDT", "11-02 01:30 EST"]),
        ("*/30 1 * * *", ["11-01 01:00 EDT", "11-01 01:30 EDT", "11-02 01:00 EST"]),
        ("30 1,2 * * *", ["11-01 01:30 EDT", "11-01 02:30 EST"]),
        ("30 * * * *", ["11-01 00:30 EDT", "11-01 01:30 EDT", "11-01 01:30 EST", "11-01 02:30 EST"]),
    ],
)
def test_in_autumn_a_fixed_time_that_is_there_twice_fires_the_first_time(text: str, fires: list[str]) -> None:
    assert local(first_fires(parse_cron(text), NEW_YORK, utc(2026, 11, 1, 4), len(fires))) == fires


@pytest.mark.parametrize("text", ["30 1 * * *", "*/5 1 * * *", "*/20 * * * *", "* 59 0-3 * * *"])
def test_looked_for_from_within_a_change_the_fires_are_the_same(text: str) -> None:
    cron = parse_cron(text)
    for begin in (utc(2026, 11, 1, 4), utc(2026, 3, 8, 5)):
        fires = first_fires(cron, NEW_YORK, begin - timedelta(days=3), 10_000, begin + timedelta(days=3))
        for minute in range(0, 240, 7):
            at = begin + timedelta(minutes=minute, microseconds=300_000)
            assert next_fire(cron, NEW_YORK, at) == min(fire for fire in fires if fire > at)
            assert last_fire(cron, NEW_YORK, at) == max(fire for fire in fires if fire <= at)


def test_a_day_that_a_zone_left_out_fires_when_it_was_left_out() -> None:
    apia = ZoneInfo("Pacific/Apia")  # went from 29 to 31 December 2011
    fires = first_fires(parse_cron("0 9 * * *"), apia, utc(2011, 12, 29, 12), 3)
    assert [f"{fire.astimezone(apia):%d %H:%M}" for fire in fires] == ["29 09:00", "31 00:00", "31 09:00"]


def test_a_day_that_ends_twice_is_gone_through_twice_by_what_goes_by_every_hour() -> None:
    sao_paulo = ZoneInfo("America/Sao_Paulo")  # at the end of 17 February 2018 it was 23:00 again
    cron = parse_cron("15 * 17 2 *")
    fires = first_fires(cron, sao_paulo, utc(2018, 2, 18, 1, 0), 2)
    assert [f"{fire.astimezone(sao_paulo):%Y-%m-%d %H:%M %z}" for fire in fires] == [
        "2018-02-17 23:15 -0200", "2018-02-17 23:15 -0300",
    ]  # fmt: skip


# --------------------------------------------------------------------------------------------- against another program

_number = {"minute": (0, 59), "hour": (0, 23), "day": (1, 31), "month": (1, 12), "weekday": (0, 6)}


def field(name: str) -> st.SearchStrategy[str]:
    least, most = _number[name]
    number = st.integers(least, most)
    span = st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}")
    step = st.integers(1, 20)
    one = st.one_of(
        st.just("*"), number.map(str), span, st.builds("{}/{}".format, st.just("*"), step),
        st.builds("{}/{}".format, span.filter(lambda s: len(set(s.split("-"))) == 2), step),
    )  # fmt: skip
    return st.lists(one, min_size=1, max_size=2).map(",".join)


crontab = st.builds(" ".join, st.tuples(*map(field, _number)))
moment = st.integers(0, 10 * 366 * 86400).map(lambda seconds: utc(2020, 1, 1) + timedelta(seconds=seconds))


@settings(max_examples=150, deadline=None)
@given(text=crontab, zone=st.sampled_from(ZONES), after=moment)
@example("30 1 * * *", "Europe/London", utc(2026, 10, 25, 0, 30))
def test_next_and_last_are_those_of_cronsim(text: str, zone: str, after: datetime) -> None:
    cron = parse_if(text)
    if cron is None:
        return
    minute, hour, *_ = text.split()
    if hour.startswith("*") is not cron.steady or (minute.startswith("*") and not cron.steady):
        zone = "UTC"  # cronsim goes by the minute too, and by the star alone, to tell what follows elapsed time
    place = ZoneInfo(zone)
    expected = [fire.astimezone(UTC) for fire in islice(CronSim(text, after.astimezone(place)), 5)]
    assert first_fires(cron, place, after, 5) == expected
    for earlier, later in pairwise(expected):
        assert last_fire(cron, place, later - SECOND) == earlier


def parse_if(text: str) -> Cron | None:
    try:
        return parse_cron(text)
    except Invalid:
        return None


# --------------------------------------------------------------------------------------------- against the rule itself

full = st.builds(
    "{} {} {} {} {} {} {}".format,
    st.sampled_from(("0", "30", "*/20", "7,41")), field("minute"), field("hour"),
    st.sampled_from(("*", "?", "1", "28-31", "*/3", "13")), st.sampled_from(("*", "2", "3,10", "11")),
    st.sampled_from(("*", "?", "1", "2-6", "FRI", "SUN,sat")), st.sampled_from(("*", "2026-2028", "2027", "*/2")),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(text=full, zone=st.sampled_from(ZONES), after=moment)
def test_there_and_back_gives_the_same_fires(text: str, zone: str, after: datetime) -> None:
    cron, place = parse_if(text), ZoneInfo(zone)
    if cron is None:
        return
    fires = first_fires(cron, place, after, 20)
    assert fires == sorted(set(fires))
    assert all(fire > after and fire.microsecond == 0 for fire in fires)
    if fires:
        assert newest_fires(cron, place, after, fires[-1], len(fires)) == fires
        assert newest_fires(cron, place, after, fires[-1], 3) == fires[-3:]
        assert next_fire(cron, place, fires[0] - timedelta(microseconds=1)) == fires[0]


def changes(place: tzinfo) -> list[datetime]:
    """Midnights (UTC) before the days of 2026 on which the clocks change; any day where they never do."""
    days = [utc(2026, 1, 1) + timedelta(days=day) for day in range(365)]
    found = [
        day
        for day in days
        if day.astimezone(place).utcoffset() != (day + timedelta(days=1)).astimezone(place).utcoffset()
    ]
    return found or days[100:101]


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize(
    "text",
    ["*/10 * * * *", "7 */3 * * *", "15 1-3 * * *", "0 0 * * *", "30 2 * * 0", "*/20 0-2 * * SUN", "0 59 0,1,2 * * ?"],
)
def test_around_each_change_the_fires_are_what_the_rule_says(text: str, zone: str) -> None:
    """Every minute is looked at, and compared with what the two sentences of the rule say."""
    cron, place = parse_cron(text), ZoneInfo(zone)
    for day in changes(place):
        begin, minutes = day - timedelta(days=1), 3 * 24 * 60
        expected, shown, before = [], set(), begin.astimezone(place).replace(tzinfo=None) - timedelta(minutes=1)
        for at in (begin + timedelta(minutes=minute) for minute in range(minutes)):
            wall = at.astimezone(place).replace(tzinfo=None)
            due = matches(cron, wall) and (cron.steady or wall not in shown)
            if due or (not cron.steady and left_out(cron, before, wall)):
                expected.append(at)
            shown.add(wall)
            before = wall
        assert first_fires(cron, place, begin - SECOND, minutes, begin + timedelta(minutes=minutes - 1)) == expected


def matches(cron: Cron, wall: datetime) -> bool:
    return (
        wall.hour in cron.hours and wall.minute in cron.minutes and wall.second in cron.seconds
        and wall.month in cron.months and wall.day in month_days(cron, wall.year, wall.month)
    )  # fmt: skip


def left_out(cron: Cron, before: datetime, wall: datetime) -> bool:
    """Whether the clocks went past a time that matches."""
    gap = (wall - before) // timedelta(minutes=1)
    return any(matches(cron, before + timedelta(minutes=minute)) for minute in range(1, gap))


# --------------------------------------------------------------------------------------------- ends, and how far


def test_an_expression_with_years_comes_to_an_end() -> None:
    cron = parse_cron("0 0 0 1 1 ? 2027,2029")
    assert list(fires_after(cron, UTC, utc(2026, 5, 1))) == [utc(2027, 1, 1), utc(2029, 1, 1)]
    assert next_fire(cron, UTC, utc(2029, 1, 1)) is None
    assert last_fire(cron, UTC, utc(2026, 12, 31)) is None


def test_a_leap_day_on_a_monday_is_found_a_generation_away() -> None:
    fires = first_fires(parse_cron("0 0 0 29 2 MON"), NEW_YORK, utc(2044, 3, 1), 2)
    assert [fire.year for fire in fires] == [2072, 2112]


def test_the_newest_of_very_many_are_found_without_looking_at_the_others() -> None:
    cron = parse_cron("* * * * * *")
    assert newest_fires(cron, NEW_YORK, utc(1990, 1, 1), utc(2026, 1, 1), 3) == [
        utc(2025, 12, 31, 23, 59, 58), utc(2025, 12, 31, 23, 59, 59), utc(2026, 1, 1),
    ]  # fmt: skip
    assert newest_fires(cron, UTC, utc(1990, 1, 1), utc(2026, 1, 1), 0) == []


def test_bounds_leave_out_the_beginning_and_take_in_the_end() -> None:
    cron = parse_cron("0 * * * *")
    begin, end = utc(2026, 1, 1, 0), utc(2026, 1, 1, 3)
    expected = [utc(2026, 1, 1, hour) for hour in (1, 2, 3)]
    assert first_fires(cron, UTC, begin, 10, end) == newest_fires(cron, UTC, begin, end, 10) == expected
