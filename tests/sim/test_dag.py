"""A fixed share of the simulation with a DAG, and bugs that it must find."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from msgspec.structs import replace
from tests.sim.bugs import patched, reworded
from tests.sim.dag import DagSimulation
from tests.sim.runner import Simulator
from tests.sim.share import Plant, check_seeds, hunt, simulator_of

from windlass.datasets import router
from windlass.datasets.rules import events
from windlass.datasets.rules import route as route_rules
from windlass.datasets.tables.jobs import JobTable

pytestmark = pytest.mark.slow

SEEDS, HUNT = 3, 12


simulator = simulator_of(DagSimulation)


def test_a_share_of_the_seeds_holds(simulator: Simulator) -> None:
    check_seeds(simulator, SEEDS)


def test_a_seed_replays(simulator: Simulator) -> None:
    assert simulator.run(1).digest == simulator.run(1).digest


async def nothing(*_: Any) -> None:
    """Instead of something that was forgotten."""


@contextmanager
def a_cursor_moves_though_its_task_failed() -> Iterator[None]:
    with reworded(ended_windows=("and t.state = 'succeeded'", "")):
        yield


@contextmanager
def an_event_makes_no_task() -> Iterator[None]:
    """An event is marked as routed, and the tasks that it owes are left to a reconcile that does not know of them."""
    real = route_rules.route

    def route(*args: Any) -> Any:
        return replace(real(*args), owed=())

    with patched(router, "route", route):
        yield


@contextmanager
def consumption_is_not_written() -> Iterator[None]:
    with patched(JobTable, "insert_consumptions", nothing):
        yield


@contextmanager
def a_repeated_commit_is_the_same_revision() -> Iterator[None]:
    """Another task that commits a partition again does not count it."""
    real = events._commit

    def commit(event: Any, *args: Any) -> Any:
        event, made = real(event, *args)
        return (event if event.revision is None else replace(event, revision=1)), tuple(
            replace(one, revision=1) if isinstance(one, events.PartitionCommit) else one for one in made
        )

    with patched(events, "_commit", commit):
        yield


BUGS = [
    a_cursor_moves_though_its_task_failed, an_event_makes_no_task, consumption_is_not_written,
    a_repeated_commit_is_the_same_revision,
]  # fmt: skip


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(simulator: Simulator, bug: Plant) -> None:
    hunt(simulator, bug, range(HUNT))
