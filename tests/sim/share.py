"""What the tests of each world of the simulation share: its database, the seeds that must hold, the hunt for a bug."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
from tests.kit import database as databases
from tests.sim.runner import Simulator
from tests.sim.simulation import Simulation

Plant = Callable[[], AbstractContextManager[None]]


def simulator_of(world: type[Simulation]) -> Any:
    """A fixture `simulator` for the tests of one module."""

    @pytest.fixture(scope="module", name="simulator")
    def opened(postgres: databases.Server) -> Iterator[Simulator]:
        dsn = asyncio.run(databases.fresh_database(postgres))
        with Simulator(dsn, world) as simulator:
            yield simulator
        asyncio.run(databases.drop_database(postgres, dsn))

    return opened


def check_seeds(simulator: Simulator, seeds: int) -> None:
    for seed in range(seeds):
        result = simulator.run(seed)
        assert result.violation is None, f"seed {seed}: {result.violation}\n" + "\n".join(result.trace[-40:])


def hunt(simulator: Simulator, bug: Plant, seeds: range) -> None:
    """Fails unless one of the seeds finds the bug."""
    with bug():
        if not any(simulator.run(seed).violation is not None for seed in seeds):
            pytest.fail(f"not found in {len(seeds)} seeds")
