"""Three servers that are killed and started again: each fire of each schedule is made exactly once, none is lost."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from random import Random

import asyncpg
import pytest

from windlass import Engine
from windlass.core.schedule import Overlap, ScheduleSpec
from windlass.store.store import Store

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SCHEDULES, KILLS, SERVERS = 12, 8, 3


class Scheduler:
    """A server process; killed without a word, it is started again."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self.process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
        command = [sys.executable, "-m", "tests.e2e.scheduler", self._dsn]
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, env=environment)

    def ready(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def restart(self) -> None:
        self.kill()
        self.process = self._started()


async def fired(other_connection: asyncpg.Connection) -> int:
    count = await other_connection.fetchval("select count(*) from windlass.task where schedule_id is not null")
    assert isinstance(count, int)
    return count


async def test_three_servers_with_kills_fire_each_time_exactly_once(
    database: str, other_connection: asyncpg.Connection
) -> None:
    randomness = Random(11)
    engine = Engine(Store(database))  # its loops do not run
    servers = [Scheduler(database) for _ in range(SERVERS)]
    try:
        for server in servers:
            await asyncio.to_thread(server.ready)
        made = [
            await engine.schedules.create(
                ScheduleSpec(kind="job", cron="* * * * * *", overlap=randomness.choice([Overlap.ALLOW, Overlap.QUEUE]))
            )
            for _ in range(SCHEDULES)
        ]
        for _ in range(KILLS):
            wanted = await fired(other_connection) + randomness.randrange(
                1, SCHEDULES
            )  # in the middle of a second's fires
            async with asyncio.timeout(60):
                while True:
                    if await fired(other_connection) >= wanted:
                        break
                    await asyncio.sleep(0.002)
            await asyncio.to_thread(randomness.choice(servers).restart)
    finally:
        for server in servers:
            await asyncio.to_thread(server.kill)
    for schedule in made:
        await engine.schedules.pause(schedule.id)
        known_now = await engine.schedules.get(schedule.id)
        rows = await other_connection.fetch(
            "select idempotency_key from windlass.task where schedule_id = $1", schedule.id
        )
        fires = sorted(row[0].removeprefix(f"schedule:{schedule.id}:") for row in rows)
        assert known_now.last_fire_at is not None
        first = schedule.created_at.replace(microsecond=0) + timedelta(seconds=1)
        seconds = int((known_now.last_fire_at - first).total_seconds()) + 1
        assert fires == [(first + timedelta(seconds=n)).isoformat() for n in range(seconds)]
        assert known_now.fired == len(fires) == len(set(fires))
        assert datetime.fromisoformat(fires[-1]) == known_now.last_fire_at
    await engine.close()
