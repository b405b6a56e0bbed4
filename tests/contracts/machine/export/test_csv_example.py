"""The example of a user's own format: a program of a dozen lines, as a process, and as its author would try it out."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from tests.contracts.machine.export.archive import TS, Archive
from tests.contracts.machine.export.machine import ROOT_PI, TASK, Machine
from tests.contracts.machine.export.samples import CHILD_PI, simple

from windlass.sdk.machine import ExportError, Job
from windlass.testing.machine import rehearse

EXAMPLE = Path(__file__).parents[4] / "examples/csv_export.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("csv_export", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fill(archive: Archive) -> None:
    simple(archive, ROOT_PI, children=[CHILD_PI], description="d")
    simple(archive, CHILD_PI)


def test_the_example_exports_csv(machine: Machine) -> None:
    fill(machine.archive)
    machine.ask(delimiter=";")

    code, said = machine.finish(str(EXAMPLE))

    assert code == 0, said
    rows = machine.stored[f"exports/{TASK}/{ROOT_PI}.csv"].decode().splitlines()
    assert rows == ["pi;version;changed;files", f"{ROOT_PI};1;{TS};2", f"{CHILD_PI};1;{TS};1"]
    assert machine.callback["metrics"]["entities_exported"] == 2
    assert machine.left == []


def test_the_example_is_short() -> None:
    code = [line for line in EXAMPLE.read_text().split('"""')[2].splitlines() if line.strip()]

    assert len(code) <= 24


def test_its_author_can_try_it_out(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(archive)
    monkeypatch.setenv("WINDLASS_MODS_API_URL", archive.url)

    rehearsal = rehearse(load().export, pi=ROOT_PI)

    assert rehearsal.exit_code == 0
    assert rehearsal.file_name == f"{ROOT_PI}.csv"
    assert rehearsal.content_type == "text/csv"
    assert len(rehearsal.content.splitlines()) == 3
    assert rehearsal.callback["output_file_size"] == len(rehearsal.content)


def test_a_rehearsal_tells_what_went_wrong() -> None:
    def broken(job: Job) -> None:
        raise ExportError("not today")

    rehearsal = rehearse(broken, payload={"a": 1})

    assert (rehearsal.exit_code, rehearsal.content) == (1, b"")
    assert rehearsal.callback["error"] == "not today"
