"""Every map from the states of a task to the words of a wire is total: a new state fails here, and has no default."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import get_args

import pytest
from tests.shape.source import ROOT

from windlass.cli import output, task
from windlass.contracts.callback.server import service as callback
from windlass.contracts.lease.server import forms as lease
from windlass.contracts.machine.server import forms as machine
from windlass.contracts.registry.rules import AttemptState
from windlass.contracts.registry.wire import messages as registry
from windlass.contracts.registry.wire import step as registry_step
from windlass.core.states import TERMINAL, State
from windlass.core.step import StepState

SCHEMA = (ROOT / "src/windlass/store/schema.sql").read_text()


def in_schema(constraint: str) -> list[str]:
    [values] = re.findall(rf"constraint {constraint} check \(state in \((.*?)\)\)", SCHEMA, re.DOTALL)
    return re.findall(r"'(\w+)'", values)


@pytest.mark.parametrize(
    ("words", "states"),
    [
        pytest.param(lease.STATUS, State, id="lease"),
        pytest.param(lease.NOT_CLAIMED, State, id="lease, not claimed"),
        pytest.param(lease.REPORTED, TERMINAL, id="lease, reported"),
        pytest.param(machine.STATUS, State, id="machine"),
        pytest.param(registry.STATUS, State, id="registry"),
        pytest.param(registry_step.STATUS, AttemptState, id="registry, tries"),
        pytest.param(registry_step.RECORDED, StepState, id="registry, steps"),
        pytest.param(callback._FINAL, TERMINAL, id="callback"),
        pytest.param(output.STATE_STYLES, State, id="colours of the CLI"),
        pytest.param(get_args(task.Name), State, id="filter of the CLI"),
        pytest.param(in_schema("task_state"), State, id="tasks in the schema"),
        pytest.param(in_schema("step_state"), StepState, id="steps in the schema"),
    ],
)
def test_every_state_has_a_word(words: Iterable[str], states: Iterable[str]) -> None:
    assert sorted(words) == sorted(states)


def test_every_wire_reads_its_word_from_its_map_without_a_default() -> None:
    defaulted = [
        f"{path.relative_to(ROOT)}: {found}"
        for path in sorted((ROOT / "src/windlass/contracts").rglob("*.py"))
        for found in re.findall(r"\w+\.get\(\w*\.?state, [^)]*\)", path.read_text())
    ]

    assert defaulted == []
