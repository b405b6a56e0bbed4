"""Type checkers understand handlers: what is right passes, what is wrong is found where it is written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.shape.source import ROOT

pytestmark = pytest.mark.slow

FILE = Path(__file__).parent / "types/handlers.py"
EXPECTED = re.compile(r"# E: ([\w-]+)$")
FOUND = re.compile(r":(\d+): error: .*\[([\w-]+)\]$")


def test_every_expected_error_is_found_and_no_other() -> None:
    lines = FILE.read_text(encoding="utf-8").splitlines()
    expected = {(number, match[1]) for number, line in enumerate(lines, 1) if (match := EXPECTED.search(line))}
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file=", "--strict", "--no-error-summary", str(FILE)],
        cwd=ROOT, env=os.environ | {"MYPYPATH": "src"}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip

    found = {(int(match[1]), match[2]) for line in done.stdout.splitlines() if (match := FOUND.search(line))}

    assert len(expected) > 10
    assert found == expected, done.stdout + done.stderr
