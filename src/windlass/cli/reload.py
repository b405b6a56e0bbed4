"""`windlass worker --reload`: the same command in a child process, and a new child whenever a source file changes.

The old child is told to drain: what it runs is finished by the code that began it. The new one claims meanwhile.
Files are looked at twice a second, which needs no library and works in containers and on network disks.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from windlass.cli.output import console

LOOK_S = 0.5
PASSED_BY = {"node_modules", "__pycache__", "site-packages"}


def run_with_reload() -> None:
    """Until Ctrl-C or SIGTERM; every further one is passed on to the children, which then stop at once."""
    children: list[subprocess.Popen[bytes]] = [_child()]
    stopping = False

    def stop(number: int, _frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True
        for child in children:
            child.send_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    seen = dict(sources(Path.cwd()))
    while children:
        time.sleep(LOOK_S)
        children[:] = [child for child in children if child.poll() is None or (child is children[-1] and not stopping)]
        now = dict(sources(Path.cwd())) if not stopping else seen
        if now != seen:
            changed = sorted(path for path, _ in now.items() ^ seen.items())
            console.print(f"[bold]{os.path.relpath(changed[0])}[/bold] changed: starting again")
            seen = now
            for child in children:
                child.send_signal(signal.SIGTERM)
            children.append(_child())


def _child() -> subprocess.Popen[bytes]:
    """In a group of its own, so that Ctrl-C reaches it through us and once."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--reload"]
    command = [sys.executable, "-c", "from windlass.cli import main; main()", *arguments]
    return subprocess.Popen(command, process_group=0)


def sources(folder: Path) -> Iterator[tuple[str, int]]:
    """Every Python file below a folder with the moment of its last change; virtual environments are passed by."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                inside = Path(entry.path)
                passed_by = entry.name.startswith(".") or entry.name in PASSED_BY
                if not passed_by and not (inside / "pyvenv.cfg").exists():
                    yield from sources(inside)
            elif entry.name.endswith(".py"):
                yield entry.path, entry.stat().st_mtime_ns
