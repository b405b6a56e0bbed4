"""How long somebody asks us to wait."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from windlass.net.retry_after import retry_after_s

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
DATE, LATER, EARLIER = (f"Mon, 16 Nov 2026 {time} GMT" for time in ("12:00:00", "12:00:40", "11:00:00"))


@pytest.mark.parametrize(
    ("asked", "now", "waits_s"),
    [
        ("7", None, 7.0),
        ("0", NOON, 0.0),
        ("9" * 400, NOON, 300.0),
        (LATER, NOON, 40.0),
        (LATER, DATE, 40.0),
        (EARLIER, DATE, 0.0),
        (LATER, None, 1.5),
        (LATER, "yesterday", 1.5),
        (LATER, datetime(2026, 11, 16, 12), 1.5),  # noqa: DTZ001
        ("soon", NOON, 1.5),
        ("-1", NOON, 1.5),
        ("٣", NOON, 1.5),
        ("", NOON, 1.5),
        (None, NOON, 1.5),
    ],
)
def test_a_wait_is_within_reason_whatever_is_asked_for(
    asked: str | None, now: datetime | str | None, waits_s: float
) -> None:
    assert retry_after_s(asked, now, most=300.0, otherwise=1.5) == waits_s
