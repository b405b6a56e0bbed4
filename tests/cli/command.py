"""Runs `windlass` as a person does: a process, its two streams, its exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.cli.warm import warm

WINDLASS = Path(sys.executable).with_name("windlass")
SOON_S = 120.0
OURS = ("DATABASE_URL", "MAKEFLAGS", "MAKELEVEL", "FORCE_COLOR", "NO_COLOR", "COLUMNS")


def environment(**more: str) -> dict[str, str]:
    """Ours, without what would lead a command to another database or another look."""
    kept = {name: value for name, value in os.environ.items() if name not in OURS and not name.startswith("WINDLASS_")}
    return {**kept, **more}


def windlass(*arguments: str, cwd: Path | None = None, **more: str) -> subprocess.CompletedProcess[str]:
    """In a folder without settings, unless told otherwise."""
    return warm().run(WINDLASS, list(arguments), str(cwd or "/"), environment(**more), SOON_S)
