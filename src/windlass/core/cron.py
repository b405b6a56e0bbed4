"""Parses and checks cron expressions, so that a schedule that could never fire is refused when it is declared.

There are two forms, which differ in the number of fields:

    5 fields   minute hour day month weekday                   a line of crontab: Sunday is 0 or 7; if both days are
                                                               given, either may match
    6, 7       second minute hour day month weekday [year]     the registry contract: Sunday is 1, Saturday 7; both days
                                                               must match; `?` is `*` for a day

A field is `*`, a number, a name (JAN, MON), a range, a list, and any of these with a step (`*/15`, `1-5/2`, `5/20`).
`core.cron_times` computes when an expression fires in a time zone.
"""

from __future__ import annotations

import re
from datetime import date
from functools import lru_cache
from typing import NamedTuple

import msgspec

from windlass.errors import Invalid

YEAR_MIN, YEAR_MAX = 1970, 2100
LONGEST = 200
_MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
)  # fmt: skip
_DAYS = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
_OTHER_DAYS = {"tues": "tue", "wednes": "wed", "thur": "thu", "thurs": "thu"}
_LENGTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_SHORT = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * SUN",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_PART = re.compile(r"(?P<first>\*|\?|\w+)(?:-(?P<last>\w+))?(?:/(?P<step>\d{1,4}))?")


class _Field(NamedTuple):
    name: str
    least: int
    most: int
    names: dict[str, int] = {}  # noqa: RUF012  # never written
    star_most: int | None = None  # the last value that `*` stands for
    question: bool = False


def _named(words: tuple[str, ...], first: int) -> dict[str, int]:
    found = {word: number for number, word in enumerate(words, start=first)}
    return found | {word[:3]: number for word, number in found.items()}


def _day_names(first: int) -> dict[str, int]:
    names = _named(_DAYS, first)
    return names | {word: names[short] for word, short in _OTHER_DAYS.items()}


_TIME = (_Field("minute", 0, 59), _Field("hour", 0, 23))
_MONTH = _Field("month", 1, 12, _named(_MONTHS, 1))
_CRONTAB = (*_TIME, _Field("day of the month", 1, 31), _MONTH, _Field("day of the week", 0, 7, _day_names(0), 6))
_FULL = (
    _Field("second", 0, 59), *_TIME, _Field("day of the month", 1, 31, question=True), _MONTH,
    _Field("day of the week", 1, 7, _day_names(1), question=True), _Field("year", YEAR_MIN, YEAR_MAX),
)  # fmt: skip


class Cron(msgspec.Struct, frozen=True):
    """A parsed expression: the values that each field allows, in order. Sunday is 0."""

    text: str
    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...]
    months: tuple[int, ...]
    weekdays: tuple[int, ...]
    years: tuple[int, ...] | None  # None: every year
    either_day: bool  # the day of the month or that of the week may match
    steady: bool  # every hour, or every n hours: follows elapsed time when the clocks change

    @property
    def with_seconds(self) -> bool:
        """Whether it is in the form of the registry contract."""
        return self.text.startswith("@") or len(self.text.split()) > len(_CRONTAB)


def parse_cron(text: str) -> Cron:
    """Raises Invalid, with a message that names the wrong field."""
    if not isinstance(text, str) or len(text) > LONGEST:
        raise Invalid('must be text such as "0 9 * * MON"', field="cron")
    return _parsed(text)


@lru_cache(maxsize=1024)
def _parsed(text: str) -> Cron:
    fields = _SHORT.get(text.strip().lower(), text).split()
    crontab = len(fields) == len(_CRONTAB)
    if not crontab and len(fields) not in (len(_FULL) - 1, len(_FULL)):
        shape = "5 fields (minute hour day month weekday), or 6 or 7 (second first, optionally a year last)"
        raise Invalid(f"must have {shape}: {text!r}", field="cron")
    known = _CRONTAB if crontab else _FULL
    values = [_values(text_, field) for text_, field in zip(fields, known, strict=False)]
    if crontab:
        fields, values = ["0", *fields], [(0,), *values]
    seconds, minutes, hours, days, months, weekdays, *years = values
    cron = Cron(
        text, seconds, minutes, hours, days, months,
        tuple(sorted({day % 7 if crontab else day - 1 for day in weekdays})),
        None if not years or fields[6] == "*" else years[0],
        either_day=crontab and not fields[3].startswith("*") and not fields[5].startswith("*"),
        steady=fields[2].startswith("*") or len(hours) == 24,
    )  # fmt: skip
    if not any(month_days(cron, year, month) for year in cron.years or range(2000, 2400) for month in months):
        raise Invalid(f"never fires: no month that it names has such a day: {text!r}", field="cron")
    return cron


def month_days(cron: Cron, year: int, month: int) -> list[int]:
    """The days of this month on which it may fire. Ignores the months and years of the expression."""
    length = _LENGTHS[month - 1] + (month == 2 and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0))
    first = date(year, month, 1).isoweekday() - 1  # so that (first + day) % 7 is 0 on a Sunday
    days, weekdays = cron.days, cron.weekdays
    if cron.either_day:
        return [day for day in range(1, length + 1) if day in days or (first + day) % 7 in weekdays]
    if len(weekdays) == 7:
        return [day for day in days if day <= length]
    return [day for day in days if day <= length and (first + day) % 7 in weekdays]


def _values(text: str, field: _Field) -> tuple[int, ...]:
    found: set[int] = set()
    for part in text.split(","):
        match = _PART.fullmatch(part)
        if match is None or (match["first"] in ("*", "?") and match["last"] is not None):
            raise Invalid(f"{part!r} is not a {field.name}{_unknown(part)}", field="cron")
        found.update(_range(part, match, field))
    return tuple(sorted(found))


def _range(part: str, match: re.Match[str], field: _Field) -> range:
    first, last, step = match["first"], match["last"], int(match["step"] or 1)
    if first == "?" and (not field.question or match["step"]):
        raise Invalid(f"{part!r} is not a {field.name}: `?` alone stands for a day in 6 or 7 fields", field="cron")
    if first in ("*", "?"):
        start, end = field.least, field.most if field.star_most is None else field.star_most
    else:
        start = _number(first, field)
        end = start if last is None else _number(last, field)
        end = field.most if last is None and match["step"] else end
    if step < 1 or end < start:
        raise Invalid(f"{part!r} is an empty range for the {field.name}", field="cron")
    return range(start, end + 1, step)


def _number(word: str, field: _Field) -> int:
    value = field.names.get(word.lower(), int(word) if word.isascii() and word.isdigit() and len(word) < 5 else None)
    if value is None or not field.least <= value <= field.most:
        between = f"it must lie between {field.least} and {field.most}"
        raise Invalid(f"{word!r} is not a {field.name}: {between}{_unknown(word)}", field="cron")
    return value


def _unknown(part: str) -> str:
    """A hint for the extensions of other cron programs."""
    return "; L, W and # are not supported" if part[-1:].upper() in ("L", "W") or "#" in part else ""
