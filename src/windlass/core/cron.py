"""Cron expressions: read and checked here, so that a schedule that could never fire is refused where it is declared.

Five fields: minute, hour, day of the month, month, day of the week. Each is `*`, a number, a name (JAN, MON), a range,
a list, and any of these with a step (`*/15`, `1-5/2`). Sunday is 0 or 7. Where both days are given, either will do, as
cron has it.
"""

from __future__ import annotations

import re

import msgspec

from windlass.core.error import Invalid

_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_LONGEST = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_FIELDS: tuple[tuple[str, int, int, dict[str, int]], ...] = (
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day of the month", 1, 31, {}),
    ("month", 1, 12, {name: number for number, name in enumerate(_MONTHS, start=1)}),
    ("day of the week", 0, 7, {name: number for number, name in enumerate(_DAYS)}),
)
_SHORT = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * SUN",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}
_PART = re.compile(r"(?P<first>\*|\w+)(?:-(?P<last>\w+))?(?:/(?P<step>\d{1,4}))?")
LONGEST = 200


class Cron(msgspec.Struct, frozen=True):
    """When something is to happen: the values that each field allows, in order."""

    text: str
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...]
    months: tuple[int, ...]
    weekdays: tuple[int, ...]
    any_day: bool  # the day of the month does not matter
    any_weekday: bool


def parse_cron(text: str) -> Cron:
    """Raises Invalid, which says which field is wrong."""
    if not isinstance(text, str) or len(text) > LONGEST:
        raise Invalid('must be text such as "0 9 * * MON"', field="cron")
    fields = _SHORT.get(text.strip(), text).split()
    if len(fields) != len(_FIELDS):
        raise Invalid(f"must have {len(_FIELDS)} fields (minute hour day month weekday): {text!r}", field="cron")
    minutes, hours, days, months, weekdays = (
        _values(field, *known) for field, known in zip(fields, _FIELDS, strict=True)
    )
    cron = Cron(
        text, minutes, hours, days, months, tuple(sorted({day % 7 for day in weekdays})),
        fields[2].startswith("*"), fields[4].startswith("*"),
    )  # fmt: skip
    if cron.any_weekday and all(min(days) > _LONGEST[month - 1] for month in months):
        raise Invalid(f"never comes: no such month has a day {min(days)}", field="cron")
    return cron


def _values(field: str, name: str, least: int, most: int, names: dict[str, int]) -> tuple[int, ...]:
    found: set[int] = set()
    for part in field.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise Invalid(f"{part!r} is no {name}", field="cron")
        first, last, step = match["first"], match["last"], int(match["step"] or 1)
        if first == "*":
            if last is not None:
                raise Invalid(f"{part!r} is no {name}", field="cron")
            start, end = least, most if most != 7 else 6
        else:
            start = _number(first, name, least, most, names)
            end = start if last is None else _number(last, name, least, most, names)
            end = most if last is None and match["step"] else end
        if step < 1 or end < start:
            raise Invalid(f"{part!r} is an empty range for the {name}", field="cron")
        found.update(range(start, end + 1, step))
    return tuple(sorted(found))


def _number(word: str, name: str, least: int, most: int, names: dict[str, int]) -> int:
    value = names.get(word.upper(), int(word) if word.isascii() and word.isdigit() and len(word) < 4 else None)
    if value is None or not least <= value <= most:
        raise Invalid(f"{word!r} is no {name}: it must lie between {least} and {most}", field="cron")
    return value
