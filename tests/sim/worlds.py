"""The worlds that can be simulated by name, and the bugs that are planted in each."""

from __future__ import annotations

from tests.sim import bugs, dag_bugs
from tests.sim.dag import DagSimulation
from tests.sim.simulation import Simulation

WORLDS: dict[str, type[Simulation]] = {"kernel": Simulation, "dag": DagSimulation}
BUGS = {**bugs.BUGS, **dag_bugs.BUGS}
