"""A short share of `make soak-callback`: many tasks run at once with heartbeats, and none is taken for a zombie."""

from __future__ import annotations

import pytest
from bench.heartbeats import rate, soak

pytestmark = pytest.mark.slow


async def test_many_running_tasks_with_heartbeats_lose_nothing(database: str, pace: float) -> None:
    figures = await soak(database, tasks=200, interval_s=1.0 * pace, seconds=3.0 * pace)

    assert (figures["refused"], figures["zombies"]) == (0, 0)
    assert figures["heartbeats"] >= 500


async def test_what_the_benchmark_measures_is_answered(database: str) -> None:
    figures = await rate(database, tasks=50, seconds=0.5, database_pid=0)

    assert figures["rate"] > 0
    assert figures["echo_rate"] > 0
