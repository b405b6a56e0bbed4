"""How much memory a program has used at most, with what it started. Linux only; 0 elsewhere."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def peak_bytes(session: int) -> int:
    """The most that one process of this session has had in memory so far."""
    peaks = [0]
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError):
            if os.getsid(int(folder.name)) == session:
                status = (folder / "status").read_text().splitlines()
                peaks += [int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:")]
    return max(peaks)
