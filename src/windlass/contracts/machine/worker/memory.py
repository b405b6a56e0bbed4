"""The peak memory of this process."""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path


def peak_mb() -> int:
    """Peak resident memory in MB, rounded up.

    `getrusage` includes the memory of the parent at the fork, so on Linux the value comes from /proc.
    """
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        status = ""
    found = re.search(r"^VmHWM:\s*(\d+) kB$", status, re.MULTILINE)
    unit = 1 if sys.platform == "darwin" else 1024
    peak = int(found[1]) * 1024 if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return -(-peak // 1_000_000)
