"""`windlass worker --reload`: runs the worker in a child process and starts a new one when a source file changes.

The old child drains: the code that started a task also finishes it. The new child claims meanwhile. Files are polled
twice a second, which needs no library and works in containers and on network disks.
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

POLL_S = 0.5
SKIPPED = {"node_modules", "__pycache__", "site-packages"}


def run_with_reload() -> None:
    """Runs until Ctrl-C or SIGTERM. Every signal is forwarded to the children; a second one stops them at once."""
    children: list[subprocess.Popen[bytes]] = [_child()]
    stopping = False

    def stop(number: int, _frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True
        for child in children:
            child.send_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    known = dict(sources(Path.cwd()))
    while children:
        time.sleep(POLL_S)
        children[:] = [child for child in children if child.poll() is None or (child is children[-1] and not stopping)]
        current = dict(sources(Path.cwd())) if not stopping else known
        if current != known:
            changed = sorted(path for path, _ in current.items() ^ known.items())
            console.print(f"[bold]{os.path.relpath(changed[0])}[/bold] changed: restarting")
            known = current
            for child in children:
                child.send_signal(signal.SIGTERM)
            children.append(_child())


def _child() -> subprocess.Popen[bytes]:
    """Starts a child in its own process group, so that Ctrl-C reaches it only through us."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--reload"]
    command = [sys.executable, "-c", "from windlass.cli import main; main()", *arguments]
    return subprocess.Popen(command, process_group=0)


def sources(folder: Path) -> Iterator[tuple[str, int]]:
    """Every Python file below a folder, with its modification time. Skips virtual environments."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                inside = Path(entry.path)
                skipped = entry.name.startswith(".") or entry.name in SKIPPED
                if not skipped and not (inside / "pyvenv.cfg").exists():
                    yield from sources(inside)
            elif entry.name.endswith(".py"):
                yield entry.path, entry.stat().st_mtime_ns
