"""Partitions: how a key names a part of a dataset, and which part that is.

A span is the first and the last number of a partition, both inclusive and in the range of bigint, so that spans of any
scheme are merged and compared alike. For `Range` they are the numbers themselves, for `Time` seconds since 1970 in UTC.

    Range(size=1000, start=0)                "0-999", "1000-1999": aligned to `start`, and none before it
    Time("1d", zone, start="2026-01-31")     "2026-01-31": from one midnight of the zone to the next: 23, 24 or 25 hours
    Time("1h", zone, start="2026-01-31")     "2026-01-31T05": an hour that clocks show twice is one partition of two
                                             hours, an hour or day that they skip is none
    Key()                                    any text; such partitions have no order and no span

Many partitions are a `Run` of a scheme, which is not expanded until its keys are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cached_property
from typing import NamedTuple, TypeAlias

import msgspec

from windlass.core.validation import check_text
from windlass.core.wall_time import instant_of, nearest_change, repeated, wall_of
from windlass.errors import Invalid

PARTITION_MAX = 500  # characters of a key
BIGINT_MIN, BIGINT_MAX = -(2**63), 2**63 - 1
YEAR_MIN, YEAR_MAX = 1000, 8999  # four digits, and every zone's clock can show them
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EARLIEST = datetime.fromisoformat(f"{YEAR_MIN}-01-01")
_LATEST = datetime.fromisoformat(f"{YEAR_MAX + 1}-01-01")
_EVERY = {"1h": timedelta(hours=1), "1d": timedelta(days=1)}
_RANGE_KEY = re.compile(r"(0|-?[1-9][0-9]{0,18})-(0|-?[1-9][0-9]{0,18})", re.ASCII)
_TIME_KEY = re.compile(r"\d{4}-\d\d-\d\d(?:T([01]\d|2[0-3]))?", re.ASCII)


class Span(NamedTuple):
    """A range of numbers, both ends inclusive."""

    first: int
    last: int


class Range(msgspec.Struct, frozen=True):
    """Partitions of `size` numbers, from `start` on."""

    size: int
    start: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.size <= BIGINT_MAX:
            raise Invalid(f"must be from 1 to {BIGINT_MAX}", field="partitions.size")
        if not BIGINT_MIN <= self.start <= BIGINT_MAX:
            raise Invalid(f"must be from {BIGINT_MIN} to {BIGINT_MAX}", field="partitions.start")

    def span(self, key: str) -> Span:
        """The span of a key. Raises Invalid if the scheme has no partition with this key."""
        span = range_span(key)
        if span is None or self.at(span.first) != span:
            raise _no_partition(key, f"{{start}}-{{end}} with {self.size} numbers, aligned to {self.start}")
        return span

    def key(self, span: Span) -> str:
        """The key of a partition, by its span."""
        return f"{span.first}-{span.last}"

    def at(self, number: int) -> Span | None:
        """The partition with this number in it; None outside of the scheme."""
        first = number - (number - self.start) % self.size
        found = Span(first, first + self.size - 1)
        return found if self.start <= first and found.last <= BIGINT_MAX else None

    def count(self, span: Span) -> int:
        """The number of partitions in a span that begins and ends with one."""
        return (span.last - span.first + 1) // self.size

    @property
    def limits(self) -> Span:
        """From the first number of the first partition to the last number of the last one."""
        whole = (BIGINT_MAX - self.start + 1) // self.size * self.size
        return Span(self.start, self.start + whole - 1)

    def bounds(self, start: int | str, end: int | str) -> Span:
        """The span from one bound to another, as a person gives them."""
        first, last = (_whole_number(name, value) for name, value in (("start", start), ("end", end)))
        return _ordered(Span(first, last))


class Time(msgspec.Struct, frozen=True, dict=True):
    """Hours or days of a time zone. Without `start` they begin in the year 1000."""

    every: str
    zone: tzinfo = UTC
    start: str | None = None

    def __post_init__(self) -> None:
        if self.every not in _EVERY:
            raise Invalid(f"must be 1h or 1d, not {self.every!r}", field="partitions.every")
        if self.start is None:
            return
        span = self._read(self.start)
        if span is None or self._boundary(self._label(span.first)) != span.first:
            raise Invalid(f"{self.start!r} is no {self._pattern()} of the time zone", field="partitions.start")

    def span(self, key: str) -> Span:
        """The span of a key. Raises Invalid if the scheme has no partition with this key."""
        span = self._read(key)
        if span is None or self.at(span.first) != span or self.key(span) != key:
            since = f", from {self.start} on" if self.start else ""
            raise _no_partition(key, f"a {self._pattern()} that exists in the time zone{since}")
        return span

    def key(self, span: Span) -> str:
        """The key of a partition, by its span."""
        label = self._label(span.first)
        return label.date().isoformat() if self.every == "1d" else label.isoformat(timespec="hours")

    def at(self, number: int) -> Span | None:
        """The partition with this second in it; None outside of the scheme."""
        limits = self.limits
        return self._span(self._label(number), self._step) if limits.first <= number <= limits.last else None

    def count(self, span: Span) -> int:
        """The number of partitions in a span that begins and ends with one. Asks the zone once a day of the span."""
        labels = (self._label(span.last) - self._label(span.first)) // self._step + 1
        return labels - sum(self._skipped(change) for change in self._changes(span))

    @cached_property
    def limits(self) -> Span:
        """From the first second of the first partition to the last second of the last one."""
        start = self._read(self.start) if self.start else None
        return Span(start.first if start else self._boundary(_EARLIEST), self._boundary(_LATEST) - 1)

    def bounds(self, start: int | str, end: int | str) -> Span:
        """The span from one day or hour to another, as a person gives them: whole days also for hours."""
        spans = []
        for name, value in (("start", start), ("end", end)):
            if (found := self._read(value) if isinstance(value, str) else None) is None:
                raise Invalid("must be a day or an hour of the time zone, such as 2026-01-31T05", field=name)
            spans.append(found)
        return _ordered(Span(spans[0].first, spans[1].last))

    @property
    def _step(self) -> timedelta:
        return _EVERY[self.every]

    def _pattern(self) -> str:
        return "day (2026-01-31)" if self.every == "1d" else "hour (2026-01-31T05)"

    def _read(self, text: str) -> Span | None:
        """The span of a day or an hour. None if it is none, or if clocks skip it."""
        found = _TIME_KEY.fullmatch(text)
        try:
            label = datetime.fromisoformat(text) if found else None
        except ValueError:
            return None
        if found is None or label is None or not YEAR_MIN <= label.year <= YEAR_MAX:
            return None
        span = self._span(label, _EVERY["1h"] if found[1] else _EVERY["1d"])
        return span if span.first <= span.last else None

    def _span(self, label: datetime, step: timedelta) -> Span:
        return Span(self._boundary(label), self._boundary(label + step) - 1)

    def _boundary(self, label: datetime) -> int:
        return (instant_of(self.zone, label) - _EPOCH) // timedelta(seconds=1)

    def _label(self, number: int) -> datetime:
        """The last wall time at which a partition begins, up to this second."""
        at = _EPOCH + timedelta(seconds=number)
        label = self._whole(wall_of(self.zone, at) + repeated(self.zone, at))
        while self._boundary(label) > number:
            label -= self._step
        return label

    def _whole(self, wall: datetime) -> datetime:
        return wall.replace(hour=0 if self.every == "1d" else wall.hour, minute=0, second=0)

    def _changes(self, span: Span) -> Iterator[datetime]:
        if self.zone is UTC:
            return
        at, end = (_EPOCH + timedelta(seconds=number) for number in span)
        while at < end and (change := nearest_change(self.zone, at, end)) is not None:
            yield change
            at = change

    def _skipped(self, change: datetime) -> int:
        """The number of days or hours that clocks skip when they change."""
        before, after = (
            wall_of(self.zone, change - timedelta(seconds=1)) + timedelta(seconds=1),
            wall_of(self.zone, change),
        )
        label = self._whole(before)
        first = label if label == before else label + self._step
        return max(0, (after - first) // self._step)


class Key(msgspec.Struct, frozen=True):
    """Partitions with any text as their key."""

    def span(self, key: str) -> Span | None:
        """None, since keys have no span. Raises Invalid if the text cannot be a key."""
        check_text("partition_key", key, PARTITION_MAX)
        return None


Scheme: TypeAlias = Range | Time | Key
Ordered: TypeAlias = Range | Time


class Run(msgspec.Struct, frozen=True):
    """Consecutive partitions of a scheme: one or more, with all of `span`."""

    scheme: Ordered
    span: Span

    @property
    def count(self) -> int:
        return self.scheme.count(self.span)

    def partitions(self) -> Iterator[tuple[str, Span]]:
        """Key and span of each, in order."""
        number = self.span.first
        while number <= self.span.last:
            span = self.scheme.at(number)
            assert span is not None, (self, number)
            yield self.scheme.key(span), span
            number = span.last + 1

    def keys(self) -> Iterator[str]:
        return (key for key, _ in self.partitions())


def build(
    kind: str,
    *,
    size: int | None = None,
    every: str | None = None,
    start: int | str | None = None,
    zone: tzinfo | None = None,
) -> Scheme:
    """The scheme that `partitions` of a job describe. Raises Invalid with the field that is wrong."""
    if kind == "key":
        return Key()
    if kind == "range":
        if size is None or isinstance(start, str):
            raise Invalid("must be a whole number", field="partitions.size" if size is None else "partitions.start")
        return Range(size, start or 0)
    if kind != "time":
        raise Invalid(f"must be range, time or key, not {kind!r}", field="partitions.kind")
    if isinstance(start, int):
        raise Invalid("must be a day or an hour, such as 2026-01-31", field="partitions.start")
    return Time(every or "", zone or UTC, start)


def inside(scheme: Ordered, span: Span) -> Run | None:
    """The partitions that lie completely in a span; None if there are none."""
    if (run := touched(scheme, span)) is None:
        return None
    head, tail = scheme.at(run.span.first), scheme.at(run.span.last)
    assert head is not None, (scheme, span)
    assert tail is not None, (scheme, span)
    first = head.first if span.first <= head.first else head.last + 1
    last = tail.last if tail.last <= span.last else tail.first - 1
    return Run(scheme, Span(first, last)) if first <= last else None


def touched(scheme: Ordered, span: Span) -> Run | None:
    """The partitions that share at least one number with a span; None if there are none."""
    first, last = max(span.first, scheme.limits.first), min(span.last, scheme.limits.last)
    if first > last:
        return None
    head, tail = scheme.at(first), scheme.at(last)
    assert head is not None, (scheme, span)
    assert tail is not None, (scheme, span)
    return Run(scheme, Span(head.first, tail.last))


def keys_between(scheme: Scheme, start: int | str, end: int | str) -> Run | None:
    """The partitions that lie completely between two bounds, as a person gives them: numbers of a range, or days and
    hours of a time, both inclusive. None if there are none. Raises Invalid with the bound that is wrong."""
    if isinstance(scheme, Key):
        raise Invalid("partitions of kind key have no order; name their keys", field="start")
    return inside(scheme, scheme.bounds(start, end))


def is_aligned(scheme: Ordered, span: Span) -> bool:
    """Whether a span is exactly one partition."""
    return scheme.at(span.first) == span


def comparable(one: Scheme, other: Scheme) -> bool:
    """Whether partitions of one scheme can be mapped to those of the other."""
    return type(one) is type(other)


def range_span(key: str) -> Span | None:
    """The span of a key `{start}-{end}` in its canonical spelling; None for any other key."""
    found = _RANGE_KEY.fullmatch(key)
    span = Span(int(found[1]), int(found[2])) if found else None
    return span if span and BIGINT_MIN <= span.first <= span.last <= BIGINT_MAX else None


def _no_partition(key: str, pattern: str) -> Invalid:
    return Invalid(f"{key[:100]!r} is no partition here; a key is {pattern}", field="partition_key")


def _whole_number(name: str, value: int | str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not BIGINT_MIN <= value <= BIGINT_MAX:
        raise Invalid(f"must be a whole number from {BIGINT_MIN} to {BIGINT_MAX}", field=name)
    return value


def _ordered(span: Span) -> Span:
    if span.first > span.last:
        raise Invalid("must not be before start", field="end")
    return span
