"""Cron expressions: what each field allows, and what is refused with the field that is wrong."""

from __future__ import annotations

import pytest

from windlass.core.cron import parse_cron
from windlass.core.error import Invalid


@pytest.mark.parametrize(
    ("text", "field", "values"),
    [
        ("*/15 * * * *", "minutes", (0, 15, 30, 45)),
        ("5 * * * *", "minutes", (5,)),
        ("5/20 * * * *", "minutes", (5, 25, 45)),
        ("1,2,2 * * * *", "minutes", (1, 2)),
        ("0 9-17/4 * * *", "hours", (9, 13, 17)),
        ("0 0 1,15 * *", "days", (1, 15)),
        ("0 0 1 jan-Mar *", "months", (1, 2, 3)),
        ("0 9 * * MON-FRI", "weekdays", (1, 2, 3, 4, 5)),
        ("0 9 * * 0", "weekdays", (0,)),
        ("0 9 * * 7", "weekdays", (0,)),
        ("0 9 * * 5-7", "weekdays", (0, 5, 6)),
        ("0 9 * * *", "weekdays", (0, 1, 2, 3, 4, 5, 6)),
        ("0 9 * * */2", "weekdays", (0, 2, 4, 6)),
        ("@weekly", "weekdays", (0,)),
        ("0 0 29 2 *", "days", (29,)),
        ("0 0 31 2,3 *", "months", (2, 3)),
    ],
)
def test_a_field_allows_these_values(text: str, field: str, values: tuple[int, ...]) -> None:
    assert getattr(parse_cron(text), field) == values


def test_whether_a_day_matters_is_known_since_either_will_do() -> None:
    assert [(c.any_day, c.any_weekday) for c in map(parse_cron, ("0 0 1 * MON", "0 0 * * MON", "0 0 1 * *"))] == [
        (False, False), (True, False), (False, True),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "5 fields"),
        ("0 9 * *", "5 fields"),
        ("0 9 * * MON *", "5 fields"),
        ("60 * * * *", "minute"),
        ("0 24 * * *", "hour"),
        ("0 0 0 * *", "day of the month"),
        ("0 0 * 13 *", "month"),
        ("0 0 * * 8", "day of the week"),
        ("0 0 * * MOON", "day of the week"),
        ("-1 * * * *", "minute"),
        ("5-1 * * * *", "empty range"),
        ("*/0 * * * *", "empty range"),
        ("*-5 * * * *", "minute"),
        ("1,,2 * * * *", "minute"),
        ("² * * * *", "minute"),
        ("0 0 30 2 *", "never comes"),
        ("0 0 31 4,6,9,11 *", "never comes"),
        ("@sometimes", "5 fields"),
        ("* " * 1000, "text such as"),
        (None, "text such as"),
        (7, "text such as"),
    ],
)
def test_what_is_no_cron_expression_is_refused(text: object, says: str) -> None:
    with pytest.raises(Invalid, match=says) as refused:
        parse_cron(text)  # type: ignore[arg-type]
    assert refused.value.field == "cron"


def test_a_day_that_no_month_has_may_still_come_by_its_weekday() -> None:
    assert parse_cron("0 0 30 2 MON").weekdays == (1,)
