"""Computes when a cron expression fires in a time zone: the next times, the last ones, those between two instants.

Instants are UTC and whole seconds. Where the clocks of the zone change:

- An expression with fixed hours (`30 2 * * *`, `0 9-17 * * *`) fires once for each of its times. A time that the clocks
  skip fires at the moment of the change; a time that comes twice fires the first time.
- An expression for every hour, or every n hours (its hour begins with `*`), follows elapsed time: `*/15 * * * *` fires
  every fifteen minutes through any change, in both of two repeated hours and in no skipped one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, tzinfo
from itertools import islice, takewhile

from windlass.core.cron import Cron, month_days
from windlass.core.states import Instant
from windlass.core.wall_time import SECOND, instant_of, nearest_change, repeated, wall_of

YEAR_FIRST, YEAR_LAST = 1970, 8999


def next_fire(cron: Cron, zone: tzinfo, after: Instant) -> Instant | None:
    """The first fire after an instant; None if there is none."""
    return (_next_steady if cron.steady else _next_fixed)(cron, zone, after)


def last_fire(cron: Cron, zone: tzinfo, at: Instant) -> Instant | None:
    """The last fire up to and with an instant."""
    return (_last_steady if cron.steady else _last_fixed)(cron, zone, at)


def fires_after(cron: Cron, zone: tzinfo, after: Instant) -> Iterator[Instant]:
    """All fires after an instant, in order."""
    fire = next_fire(cron, zone, after)
    while fire is not None:
        yield fire
        fire = next_fire(cron, zone, fire)


def first_fires(cron: Cron, zone: tzinfo, after: Instant, count: int, until: Instant | None = None) -> list[Instant]:
    """The first `count` fires in (after, until]."""
    fires = fires_after(cron, zone, after)
    return list(islice(fires if until is None else takewhile(lambda fire: fire <= until, fires), count))


def newest_fires(cron: Cron, zone: tzinfo, after: Instant, until: Instant, count: int) -> list[Instant]:
    """The last `count` fires in (after, until], the oldest first. Does not compute the others, however many."""
    found: list[Instant] = []
    fire = last_fire(cron, zone, until) if count else None
    while fire is not None and fire > after:
        found.append(fire)
        fire = last_fire(cron, zone, fire - SECOND) if len(found) < count else None
    return found[::-1]


# --------------------------------------------------------------------------------------------- fixed hours
#
# Each wall time has one instant, and later wall times never have earlier ones, so it is enough to walk the wall times.


def _next_fixed(cron: Cron, zone: tzinfo, after: Instant) -> Instant | None:
    wall = next_wall(cron, wall_of(zone, after))
    while wall is not None and (fire := instant_of(zone, wall)) <= after:
        wall = next_wall(cron, wall)
    return None if wall is None else fire


def _last_fixed(cron: Cron, zone: tzinfo, at: Instant) -> Instant | None:
    wall = last_wall(cron, wall_of(zone, at) + repeated(zone, at))
    while wall is not None and (fire := instant_of(zone, wall)) > at:
        wall = last_wall(cron, wall - SECOND)
    return None if wall is None else fire


# --------------------------------------------------------------------------------------------- elapsed time
#
# An instant is a fire if its wall time matches. Between two changes, wall time advances as time does.


def _next_steady(cron: Cron, zone: tzinfo, after: Instant) -> Instant | None:
    begin = _whole(after) + SECOND
    while True:
        wall = wall_of(zone, begin)
        found = next_wall(cron, wall - SECOND)
        if found is None:
            return None
        fire = begin + (found - wall)
        change = nearest_change(zone, begin, fire)
        if change is None:
            return fire
        begin = change


def _last_steady(cron: Cron, zone: tzinfo, at: Instant) -> Instant | None:
    end = _whole(at)
    while True:
        wall = wall_of(zone, end)
        found = last_wall(cron, wall)
        if found is None:
            return None
        fire = end - (wall - found)
        change = nearest_change(zone, end, fire)
        if change is None:
            return fire
        end = change - SECOND


def _whole(at: Instant) -> Instant:
    return at.astimezone(UTC).replace(microsecond=0)


# --------------------------------------------------------------------------------------------- wall times


def next_wall(cron: Cron, after: datetime) -> datetime | None:
    """The first wall time after this one that matches."""
    days = month_days(cron, after.year, after.month) if _in_month(cron, after.year, after.month) else []
    if after.day in days and (found := _next_time(cron, after)) is not None:
        return datetime.combine(after, found)
    place = bisect_right(days, after.day)
    day = after.replace(day=days[place]).date() if place < len(days) else _first_day_after(cron, after)
    return None if day is None else datetime.combine(day, time(cron.hours[0], cron.minutes[0], cron.seconds[0]))


def last_wall(cron: Cron, at: datetime) -> datetime | None:
    """The last wall time up to and with this one that matches."""
    days = month_days(cron, at.year, at.month) if _in_month(cron, at.year, at.month) else []
    if at.day in days and (found := _last_time(cron, at)) is not None:
        return datetime.combine(at, found)
    place = bisect_left(days, at.day)
    day = at.replace(day=days[place - 1]).date() if place else _last_day_before(cron, at)
    return None if day is None else datetime.combine(day, time(cron.hours[-1], cron.minutes[-1], cron.seconds[-1]))


def _in_month(cron: Cron, year: int, month: int) -> bool:
    return month in cron.months and (cron.years is None or year in cron.years)


def _first_day_after(cron: Cron, at: datetime) -> date | None:
    """In a later month."""
    for year in cron.years or range(at.year, YEAR_LAST + 1):
        for month in cron.months:
            if (year, month) > (at.year, at.month) and (days := month_days(cron, year, month)):
                return date(year, month, days[0])
    return None


def _last_day_before(cron: Cron, at: datetime) -> date | None:
    """In an earlier month."""
    for year in reversed(cron.years or range(YEAR_FIRST, at.year + 1)):
        for month in reversed(cron.months):
            if (year, month) < (at.year, at.month) and (days := month_days(cron, year, month)):
                return date(year, month, days[-1])
    return None


def _next_time(cron: Cron, at: datetime) -> time | None:
    hours, minutes, seconds = cron.hours, cron.minutes, cron.seconds
    if at.hour in hours:
        place = bisect_right(seconds, at.second)
        if at.minute in minutes and place < len(seconds):
            return time(at.hour, at.minute, seconds[place])
        place = bisect_right(minutes, at.minute)
        if place < len(minutes):
            return time(at.hour, minutes[place], seconds[0])
    place = bisect_right(hours, at.hour)
    return time(hours[place], minutes[0], seconds[0]) if place < len(hours) else None


def _last_time(cron: Cron, at: datetime) -> time | None:
    hours, minutes, seconds = cron.hours, cron.minutes, cron.seconds
    if at.hour in hours:
        place = bisect_right(seconds, at.second)
        if at.minute in minutes and place:
            return time(at.hour, at.minute, seconds[place - 1])
        place = bisect_left(minutes, at.minute)
        if place:
            return time(at.hour, minutes[place - 1], seconds[-1])
    place = bisect_left(hours, at.hour)
    return time(hours[place - 1], minutes[-1], seconds[-1]) if place else None
