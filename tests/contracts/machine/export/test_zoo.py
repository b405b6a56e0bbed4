"""Hostile programs in the frame of a machine: the failure is told, and the exit code says so."""

from __future__ import annotations

from typing import Any

import pytest
from tests.contracts.machine.export.machine import Machine
from tests.kit import zoo

from windlass.sdk.machine import Job

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")]


@pytest.mark.parametrize("name", [name for name, (_, fails) in zoo.BEASTS.items() if fails])
def test_whatever_a_program_does_its_failure_is_told(machine: Machine, name: str) -> None:
    def export(job: Job) -> Any:
        job.output("a.txt", content_type="text/plain").path.write_text("a")
        return zoo.BEASTS[name][0]()

    assert machine.run(export) == 1
    assert machine.callback["status"] == "error"
    assert machine.callback["error"]
    assert len(machine.callback["error"]) <= 4000
    assert machine.left == []
