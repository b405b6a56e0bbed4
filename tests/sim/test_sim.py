"""A fixed share of the simulation: seeds that must pass, one that is run twice, and the planted bugs that show quickly.

Each test runs the simulation's own command in a process of its own, as `make sim` does: the order of sets is fixed
there, so that what fails here replays there.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.kit import database as databases
from tests.sim.bugs import BUGS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
ROOT = Path(__file__).parents[2]
SEEDS, SEEDS_SLOW = 12, 28
WITHIN_S = 120.0
QUICK_BUGS = [
    "no_fence",
    "terminal_overwritten",
    "claim_jumps_the_line",
    "batch_rerun_with_new_ids",
    "early_fan_in",
    "double_fan_in",
    "limit_without_lock",
    "rate_window_forgets",
    "ended_task_tells_nobody",
    "effect_removed_before_it_is_carried_out",
    "retry_wakes_nobody",
]

Simulate = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def simulate(postgres: databases.Server) -> Simulate:
    """Runs the command on this session's server and returns what it said."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"PYTHONHASHSEED": "0", "WINDLASS_TEST_DATABASE_URL": postgres.maintenance}
        command = [sys.executable, "-m", "tests.sim", *arguments]
        return subprocess.run(command, cwd=ROOT, env=environment, text=True, capture_output=True, check=False)

    return run


def test_all_seeds_pass(simulate: Simulate) -> None:
    said = simulate("run", "--seeds", str(SEEDS), "--from", "0", "--jobs", "2")
    assert said.returncode == 0, said.stdout + said.stderr


def test_more_seeds_pass(simulate: Simulate) -> None:
    said = simulate("run", "--seeds", str(SEEDS_SLOW), "--from", str(SEEDS), "--jobs", "2")
    assert said.returncode == 0, said.stdout + said.stderr


def test_a_seed_replays_exactly_whatever_ran_before(simulate: Simulate) -> None:
    after_others = simulate("run", "--seeds", "3", "--from", "7")
    alone = simulate("run", "--seeds", "1", "--from", "9", "--verbose")
    assert digest_of(9, after_others.stdout) == digest_of(9, alone.stdout), alone.stderr
    assert "insert_tasks" in alone.stdout


def test_a_failing_seed_prints_the_command_that_replays_it(simulate: Simulate) -> None:
    failed = simulate("run", "--seeds", "3", "--from", "0", "--bug", "claim_jumps_the_line")
    assert failed.returncode == 1, failed.stdout
    match = re.search(r"replay: python -m tests.sim (.+)", failed.stdout)
    assert match is not None, failed.stdout
    seed = int(match[1].split("--from ")[1].split()[0])
    again = simulate(*match[1].split())
    assert again.returncode == 1, again.stdout
    assert digest_of(seed, again.stdout) == digest_of(seed, failed.stdout)


def test_planted_bugs_that_show_quickly_are_found(simulate: Simulate) -> None:
    """Those that a seed or two show. `make sim-bugs` plants all of them."""
    said = simulate("bugs", *QUICK_BUGS, "--within", str(WITHIN_S), "--jobs", "2")
    assert said.returncode == 0, said.stdout + said.stderr


def test_all_other_planted_bugs_are_found(simulate: Simulate) -> None:
    others = [name for name in BUGS if name not in QUICK_BUGS]
    said = simulate("bugs", *others, "--within", str(WITHIN_S), "--jobs", "2")
    assert said.returncode == 0, said.stdout + said.stderr


def digest_of(seed: int, text: str) -> str:
    match = re.search(rf"^\S+ seed {seed}: .*, ([0-9a-f]+)\)$", text, re.MULTILINE)
    assert match is not None, text
    return match[1]
