"""Runs `windlass` as a person does: a process, its two streams, its exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

WINDLASS = Path(sys.executable).with_name("windlass")
SOON_S = 60.0
OURS = ("DATABASE_URL", "MAKEFLAGS", "MAKELEVEL", "FORCE_COLOR", "NO_COLOR", "COLUMNS")


def environment(**more: str) -> dict[str, str]:
    """Ours, without what would lead a command to another database or another look."""
    kept = {name: value for name, value in os.environ.items() if name not in OURS and not name.startswith("WINDLASS_")}
    return {**kept, **more}


def windlass(*arguments: str, cwd: Path | None = None, **more: str) -> subprocess.CompletedProcess[str]:
    """In a folder without settings, unless told otherwise."""
    return subprocess.run(
        [str(WINDLASS), *arguments],
        capture_output=True, text=True, timeout=SOON_S, env=environment(**more), cwd=cwd or "/", check=False,
    )  # fmt: skip
