"""A short share of `make bench`: what is measured can be measured. What the figures are is not asked here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.command import environment
from tests.shape.source import ROOT

pytestmark = pytest.mark.slow

ROWS = ("P4", "P7", "P8", "L1", "P16", "D1", "D2", "D3", "D6", "D7")  # each goes another way through the engine
PATIENCE_S = 300.0


def test_rows_are_measured_without_an_error(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench", "--quick", "--no-peers", "--rows", ",".join(ROWS), "--out", str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )

    assert done.returncode == 0, done.stderr + done.stdout
    entries = json.loads((tmp_path / "results.json").read_text())
    assert [entry["id"] for entry in entries] == list(ROWS)
    assert all(entry["ours"] > 0 for entry in entries), entries
