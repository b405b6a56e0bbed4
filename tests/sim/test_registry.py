"""A fixed share of the simulation through the registry contract, with schedules, and bugs that it must find."""

from __future__ import annotations

import pytest
from tests.sim.registry import RegistrySimulation
from tests.sim.registry_bugs import BUGS
from tests.sim.runner import Simulator
from tests.sim.share import Plant, check_seeds, hunt, simulator_of

pytestmark = pytest.mark.slow

SEEDS, HUNT = 3, 40
# Where the hunt for those begins that need a rare course of things.
FIRST = {"zombies_write": 2, "unread_answer_is_kept": 5, "heartbeat_revives_worker": 1, "fires_twice": 2,
         "drops_what_is_late": 2}  # fmt: skip


simulator = simulator_of(RegistrySimulation)


def test_a_share_of_the_seeds_holds(simulator: Simulator) -> None:
    check_seeds(simulator, SEEDS)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(simulator: Simulator, bug: Plant) -> None:
    first = FIRST.get(getattr(bug, "__name__", ""), 0)
    hunt(simulator, bug, range(first, first + HUNT))
