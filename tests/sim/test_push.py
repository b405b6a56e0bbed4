"""A fixed share of the simulation through the callback contract, and bugs that it must find."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from msgspec.structs import replace
from tests.sim.bugs import patched, reworded
from tests.sim.push import PushSimulation
from tests.sim.runner import Simulator
from tests.sim.share import Plant, check_seeds, hunt, simulator_of

from windlass.contracts.callback import rules as callback_rules
from windlass.contracts.lease import rules as lease_rules
from windlass.contracts.session.server import namespaces
from windlass.core import outgoing
from windlass.core.delivery import DELIVERIES
from windlass.core.states import Transition
from windlass.engine.send import dispatcher

pytestmark = pytest.mark.slow

SEEDS, HUNT = 4, 12


simulator = simulator_of(PushSimulation)


def test_a_share_of_the_seeds_holds(simulator: Simulator) -> None:
    check_seeds(simulator, SEEDS)


@contextmanager
def zombies_too_early() -> Iterator[None]:
    """A heartbeat is written down as if it lasted for half of what was promised."""
    with reworded(keep_alive=("(h.timeout_ms + h.slack_ms)", "(h.timeout_ms / 3)")):
        yield


@contextmanager
def dispatched_without_an_effect() -> Iterator[None]:
    """An attempt begins, and nobody carries it to a worker."""
    original = outgoing.dispatch

    def dispatch(task: Any, effect: str, token: Any, now: Any) -> Transition:
        made = original(task, effect, token, now)
        return made if made.after.attempt == 1 else type(made)(made.verb, made.before, made.after)

    with patched(dispatcher, "dispatch", dispatch):
        yield


@contextmanager
def no_attempt_guard() -> Iterator[None]:
    """What a worker says is believed whichever attempt it is about."""
    original = callback_rules.Scope.check

    def check(self: Any, task: Any, now: Any) -> None:
        original(replace(self, attempt=task.attempt, body_attempt=None), task, now)

    with patched(callback_rules.Scope, "check", check):
        yield


@contextmanager
def pushed_attempts_report_on_every_wire() -> Iterator[None]:
    """Whoever has the token of an attempt may show it anywhere."""
    everywhere = frozenset(DELIVERIES)
    with patched(namespaces, "DELIVERIES", everywhere), patched(lease_rules.LeaseCredential, "deliveries", everywhere):
        yield


BUGS = [zombies_too_early, dispatched_without_an_effect, no_attempt_guard, pushed_attempts_report_on_every_wire]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(simulator: Simulator, bug: Plant) -> None:
    hunt(simulator, bug, range(HUNT))
