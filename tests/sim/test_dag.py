"""A fixed share of the simulation with a DAG, and bugs that it must find."""

from __future__ import annotations

import pytest
from tests.sim.dag import DagSimulation
from tests.sim.dag_bugs import BUGS
from tests.sim.runner import Simulator
from tests.sim.share import check_seeds, hunt, simulator_of

pytestmark = pytest.mark.slow

SEEDS, HUNT = 2, 12
REPLAYED = 3  # a short one
# Those that a seed or two show. `make sim-bugs` plants all of them.
QUICK_BUGS = ("an_event_makes_no_task", "consumption_is_not_written", "a_sink_commit_is_not_checked",
              "a_message_is_acknowledged_too_early", "an_event_is_reported_twice")  # fmt: skip


simulator = simulator_of(DagSimulation)


def test_a_share_of_the_seeds_holds(simulator: Simulator) -> None:
    check_seeds(simulator, SEEDS)


def test_a_seed_replays(simulator: Simulator) -> None:
    assert simulator.run(REPLAYED).digest == simulator.run(REPLAYED).digest


@pytest.mark.parametrize("name", QUICK_BUGS)
def test_a_planted_bug_is_found(simulator: Simulator, name: str) -> None:
    hunt(simulator, BUGS[name].plant, range(BUGS[name].first, BUGS[name].first + HUNT))
