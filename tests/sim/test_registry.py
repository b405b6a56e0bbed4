"""A fixed share of the simulation through the registry contract, with schedules, and bugs that it must find."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from tests.sim.registry import RegistryWorld
from tests.sim.registry_bugs import BUGS, Plant
from tests.sim.runner import Simulator
from tests.support import database as databases

SEEDS, HUNT = 3, 40
# Where the hunt for those begins that need a rare course of things.
FIRST = {"zombies_write": 2, "unread_answer_is_kept": 5, "unread_answer_is_not_counted": 9, "counted_runs_are_taken": 6,
         "heartbeat_revives_worker": 1, "fires_twice": 2, "drops_what_is_late": 2}  # fmt: skip


@pytest.fixture(scope="module")
def simulator(postgres: databases.Server) -> Iterator[Simulator]:
    dsn = asyncio.run(databases.fresh_database(postgres))
    with Simulator(dsn, RegistryWorld) as simulator:
        yield simulator
    asyncio.run(databases.drop_database(postgres, dsn))


def test_a_share_of_the_seeds_holds(simulator: Simulator) -> None:
    for seed in range(SEEDS):
        result = simulator.run(seed)
        assert result.violation is None, f"seed {seed}: {result.violation}\n" + "\n".join(result.trace[-40:])


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(simulator: Simulator, bug: Plant) -> None:
    first = FIRST.get(getattr(bug, "__name__", ""), 0)
    with bug():
        for seed in range(first, first + HUNT):
            if simulator.run(seed).violation is not None:
                return
    pytest.fail(f"not found in {HUNT} seeds")
