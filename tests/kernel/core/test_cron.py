"""Cron expressions: what each field allows, and what is refused with the field that is wrong."""

from __future__ import annotations

import pytest

from windlass.core.cron import parse_cron
from windlass.errors import Invalid


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
        ("0 9 * * tues,Thursday", "weekdays", (2, 4)),
        ("0 0 1 september *", "months", (9,)),
        ("0 9 * * MON", "seconds", (0,)),
        ("*/20 0 9 * * MON", "seconds", (0, 20, 40)),
        ("0 0 9 * * 1", "weekdays", (0,)),
        ("0 0 9 * * 2-6", "weekdays", (1, 2, 3, 4, 5)),
        ("0 0 9 * * 7", "weekdays", (6,)),
        ("0 0 9 * * MON-FRI", "weekdays", (1, 2, 3, 4, 5)),
        ("0 0 9 ? * MON", "days", tuple(range(1, 32))),
        ("0 0 9 1 * ?", "weekdays", (0, 1, 2, 3, 4, 5, 6)),
        ("0 0 9 1 * ? *", "years", None),
        ("0 0 9 1 * ? 2027-2029", "years", (2027, 2028, 2029)),
        ("0 0 9 1 * ?", "years", None),
        ("@Daily", "hours", (0,)),
        ("@yearly", "months", (1,)),
    ],
)
def test_a_field_allows_these_values(text: str, field: str, values: tuple[int, ...] | None) -> None:
    assert getattr(parse_cron(text), field) == values


def test_a_line_of_crontab_takes_either_day_where_both_are_given() -> None:
    given = ("0 0 1 * MON", "0 0 * * MON", "0 0 1 * *", "0 0 */2 * MON", "0 0 1 * */2")
    assert [parse_cron(text).either_day for text in given] == [True, False, False, False, False]


def test_with_seconds_both_days_must_match() -> None:
    given = ("0 0 0 1 * MON", "0 0 0 ? * MON", "0 0 0 1 * ? 2030")
    assert not any(parse_cron(text).either_day for text in given)


def test_an_hour_that_is_a_star_follows_elapsed_time() -> None:
    steady = ("* * * * *", "0 */2 * * *", "@hourly", "0 0-23 * * *", "0 0 * * * *")
    fixed = ("0 9 * * *", "*/5 9-17 * * *", "@daily", "0 0 2 * * *")
    assert [parse_cron(text).steady for text in (*steady, *fixed)] == [True] * 5 + [False] * 4


def test_which_form_it_is_in_is_known() -> None:
    assert [parse_cron(text).with_seconds for text in ("0 9 * * *", "0 0 9 * * *", "0 0 9 * * ? 2030", "@daily")] == [
        False, True, True, True,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "5 fields"),
        ("0 9 * *", "5 fields"),
        ("0 0 9 * * MON 2030 *", "5 fields"),
        ("0 0 9 * * 0", "day of the week"),
        ("0 0 9 * * 8", "day of the week"),
        ("60 0 9 * * 1", "second"),
        ("0 0 9 * * 1 1969", "year"),
        ("0 0 9 * * 1 2101", "year"),
        ("0 9 ? * *", "`[?]` alone"),
        ("0 0 9 ?/2 * *", "`[?]` alone"),
        ("0 0 ? * * *", "`[?]` alone"),
        ("0 0 L * *", "L, W and # are not supported"),
        ("0 0 15W * *", "L, W and # are not supported"),
        ("0 0 * * 5#2", "L, W and # are not supported"),
        ("0 0 0 30 2 ?", "never fires"),
        ("0 0 0 31 4 MON", "never fires"),
        ("0 0 0 29 2 ? 2027", "never fires"),
        ("0 0 0 29 2 MON 2028", "never fires"),
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
        ("0 0 30 2 *", "never fires"),
        ("0 0 31 4,6,9,11 *", "never fires"),
        ("@sometimes", "5 fields"),
        ("* " * 1000, "text such as"),
        (None, "text such as"),
        (7, "text such as"),
        ([], "text such as"),
    ],
)
def test_what_is_no_cron_expression_is_refused(text: object, says: str) -> None:
    with pytest.raises(Invalid, match=says) as refused:
        parse_cron(text)  # type: ignore[arg-type]
    assert refused.value.field == "cron"


def test_a_day_that_no_month_has_may_still_come_by_its_weekday() -> None:
    assert parse_cron("0 0 30 2 MON").weekdays == (1,)
