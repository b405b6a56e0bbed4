"""Wall time of a time zone: the instant at which clocks show a time, and the instants at which the clocks change.

Instants are UTC and whole seconds. A wall time is a `datetime` without a zone. Each wall time has one instant, and
later wall times never have earlier ones.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo

from windlass.core.states import Instant

SECOND, DAY = timedelta(seconds=1), timedelta(days=1)


def instant_of(zone: tzinfo, wall: datetime) -> Instant:
    """The first instant at which clocks show this time; if they skip it, the instant at which they do."""
    before = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if wall_of(zone, before) == wall:
        return before
    change = nearest_change(zone, wall.replace(tzinfo=zone, fold=1).astimezone(UTC), before)
    assert change is not None, (zone, wall)
    return change


def repeated(zone: tzinfo, at: Instant) -> timedelta:
    """How far the clocks went back, if the wall time of this instant comes for the second time: all wall times up to
    that much later had their instant before it."""
    local = at.astimezone(zone)
    if not local.fold:
        return timedelta()
    first = local.replace(fold=0).utcoffset()
    second = local.utcoffset()
    assert first is not None, local
    assert second is not None, local
    return first - second


def nearest_change(zone: tzinfo, start: Instant, end: Instant) -> Instant | None:
    """The change of the zone's offset that is nearest to `start` on the way to `end`, in either direction: the first
    instant with the later offset. Zones change less than once a day."""
    offset, near = _offset(zone, start), start
    while near != end:
        far = min(near + DAY, end) if near < end else max(near - DAY, end)
        if _offset(zone, far) != offset:
            return _bisect(zone, min(near, far), max(near, far))
        near = far
    return None


def _bisect(zone: tzinfo, near: Instant, far: Instant) -> Instant:
    """The instant of the one change between two with different offsets."""
    offset = _offset(zone, near)
    while far - near > SECOND:
        middle = near + (far - near) // SECOND // 2 * SECOND
        if _offset(zone, middle) == offset:
            near = middle
        else:
            far = middle
    return far


def _offset(zone: tzinfo, at: Instant) -> timedelta | None:
    return at.astimezone(zone).utcoffset()


def wall_of(zone: tzinfo, at: Instant) -> datetime:
    """The wall time, to the second."""
    return at.astimezone(zone).replace(tzinfo=None, microsecond=0, fold=0)
