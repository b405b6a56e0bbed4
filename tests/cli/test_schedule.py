"""Schedules through the commands, against a real server."""

from __future__ import annotations

from uuid import uuid4

import pytest
from tests.cli.conftest import Dev

pytestmark = pytest.mark.slow


def test_a_schedule_is_made_shown_changed_triggered_and_deleted(dev: Dev) -> None:
    name = f"s-{uuid4()}"
    made = dev(
        "schedules", "create", "greet", "0 9 * * MON", "--name", name, "--timezone", "Europe/Rome",
        "--payload", '{"name": "Ada"}', "--overlap", "skip", "--max-attempts", "2", "--timeout", "1m",
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    assert "fires next at" in made.stdout
    (row,) = [line for line in dev("schedules", "list").stdout.splitlines() if name in line]
    assert "0 9 * * MON" in row
    shown = dev("schedules", "show", name).stdout
    assert "Europe/Rome" in shown
    assert "09:00:00+0" in shown
    assert dev.json("schedules", "show", name)["retry"] == {"max_attempts": 2, "max_losses": 3, "timeout_s": 60.0}
    assert dev.json("schedules", "update", name, "--cron", "@hourly", "--payload", "null")["cron"] == "@hourly"
    assert dev("schedules", "update", name).returncode == 2
    assert dev("schedules", "pause", name).stdout == f"{name} is paused.\n"
    assert "Paused. " in dev("schedules", "show", name).stdout
    assert "fires next" in dev("schedules", "resume", name).stdout
    task_id = dev("schedules", "trigger", name).stdout.strip()
    assert dev.json("tasks", "get", task_id)["kind"] == "greet"
    assert dev("schedules", "delete", name).stdout == f"{name} is deleted.\n"
    assert dev("schedules", "show", name).returncode == 1


def test_a_preview_needs_no_schedule(dev: Dev) -> None:
    shown = dev(
        "schedules", "preview", "30 2 * * *", "--timezone", "America/New_York", "--count", "2",
        "--after", "2026-03-08T00:00:00Z",
    )  # fmt: skip
    assert shown.stdout.splitlines() == [
        "  2026-03-08 03:00:00-04:00  America/New_York",
        "  2026-03-09 02:30:00-04:00  America/New_York",
    ]
    assert dev("schedules", "preview", "30 2 * *").returncode == 1
