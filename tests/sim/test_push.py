"""A fixed share of the simulation through the callback contract, and bugs that it must find."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from msgspec.structs import replace
from tests.sim.bugs import patched, reworded
from tests.sim.push import PushWorld
from tests.sim.runner import Simulator
from tests.sim.share import Plant, check_seeds, hunt, simulator_of

from windlass.contracts.session import reach
from windlass.core import callback, holder, sent
from windlass.core.delivery import DELIVERIES, type_of
from windlass.core.transition import Transition

SEEDS, HUNT = 4, 12


simulator = simulator_of(PushWorld)


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
    original = sent.send

    def send(task: Any, effect: str, token: Any) -> Transition:
        made = original(task, effect, token)
        return made if task.attempt == 1 else type(made)(made.verb, made.before, made.after)

    with patched(sent, "send", send):
        yield


@contextmanager
def no_attempt_guard() -> Iterator[None]:
    """What a worker says is believed whichever attempt it is about."""
    original = callback.Scope.check

    def check(self: Any, task: Any, attempt: int, now: Any) -> None:
        original(replace(self, attempt=task.attempt), task, task.attempt, now)

    judged = callback.Finish._judged

    def believed(self: Any, task: Any, now: Any) -> Transition:
        return judged(replace(self, attempt=task.attempt), task, now)

    with patched(callback.Scope, "check", check), patched(callback.Finish, "_judged", believed):
        yield


@contextmanager
def pushed_attempts_report_on_every_wire() -> Iterator[None]:
    """Whoever has the token of an attempt may show it anywhere."""
    everywhere = frozenset(type_of(kind) for kind in DELIVERIES)
    with patched(reach, "DELIVERIES", everywhere), patched(holder, "HELD", everywhere):
        yield


BUGS = [zombies_too_early, dispatched_without_an_effect, no_attempt_guard, pushed_attempts_report_on_every_wire]


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(simulator: Simulator, bug: Plant) -> None:
    hunt(simulator, bug, range(HUNT))
