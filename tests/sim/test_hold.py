"""A fixed share of the simulation through the lease contract, and bugs that it must find."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from msgspec.structs import replace
from tests.sim.bugs import patched, reworded
from tests.sim.hold import HoldSimulation
from tests.sim.runner import Simulator
from tests.sim.share import Plant, check_seeds, hunt, simulator_of
from tests.sim.stranger import computed_token

from windlass.contracts.lease import claim_by_id as engine_holder
from windlass.contracts.lease import rules, table
from windlass.core.ids import derived_id

pytestmark = pytest.mark.slow

SEEDS, HUNT = 3, 12


simulator = simulator_of(HoldSimulation)


def test_a_share_of_the_seeds_holds(simulator: Simulator) -> None:
    check_seeds(simulator, SEEDS)


def test_a_seed_replays(simulator: Simulator) -> None:
    assert simulator.run(1).digest == simulator.run(1).digest


@contextmanager
def leases_end_too_early() -> Iterator[None]:
    """A heartbeat is written down as if it lasted for a third of what was promised."""
    with reworded(extend_held_leases=("h.timeout_ms * interval", "(h.timeout_ms / 3) * interval")):
        yield


@contextmanager
def the_token_is_not_asked_for() -> Iterator[None]:
    """Whoever knows the number of an attempt may end it."""
    with reworded(finish_at_once=("and h.lease_id = u.lease_id", "")):
        yield


@contextmanager
def limits_are_not_counted() -> Iterator[None]:
    def admits(*_: Any) -> None:
        return None

    with patched(rules, "admits", admits):
        yield


@contextmanager
def a_claim_passes_limits_by() -> Iterator[None]:
    with reworded(claim_at_once=("and q.config = '{}'", "")):
        yield


@contextmanager
def a_token_can_be_guessed() -> Iterator[None]:
    """The token of an attempt is computed from the id of its task."""

    def claim_one(task_id: Any, _: Any, *rest: Any) -> Any:
        return rules.ClaimById(task_id, computed_token(derived_id("attempt", task_id), "wakeup"), *rest)

    with patched(engine_holder, "ClaimById", claim_one):
        yield


@contextmanager
def a_caller_of_another_namespace() -> Iterator[None]:
    """Who shows the token of an attempt may speak for it, whatever its certificate is bound to."""
    everywhere = patched(rules.Caller, "reaches", lambda *_: True)
    with everywhere, patched(table, "_reaches", lambda callers: [None] * len(callers)):
        yield


@contextmanager
def a_late_failure_counts_again() -> Iterator[None]:
    """An attempt that was lost, and says later that it failed, uses the budget twice."""
    real = rules._reportable

    def reportable(task: Any, reported: Any) -> Any:
        return replace(real(task, reported), failures=task.failures)

    with patched(rules, "_reportable", reportable):
        yield


BUGS = [
    leases_end_too_early, the_token_is_not_asked_for, limits_are_not_counted, a_claim_passes_limits_by,
    a_token_can_be_guessed, a_caller_of_another_namespace, a_late_failure_counts_again,
]  # fmt: skip


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(simulator: Simulator, bug: Plant) -> None:
    hunt(simulator, bug, range(HUNT))
