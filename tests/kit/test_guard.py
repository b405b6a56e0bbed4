"""No process of the tests outlives `make test`, however the tests end."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.kit.guard import descendants
from tests.kit.processes import alive
from tests.shape.source import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux has subreapers"),
]

SOON_S = 120.0
SESSION = ["-p", "no:cacheprovider", "-q", "tests/kit/every_helper.py"]
KINDS = (
    "bin/postgres",
    "nats-server",
    "moto.server",
    "rclone",
    "windlass dev",
    "process_supervisor",
    "machine/program.py",
    "stubborn",
)


def until(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.05)


@pytest.mark.parametrize("options", [[], ["-n", "2"]], ids=["one process", "xdist"])
@pytest.mark.parametrize("how", ["ctrl-c", "kill"])
def test_nothing_is_left_of_tests_that_are_interrupted(how: str, options: list[str], tmp_path: Path) -> None:
    runs, output = tmp_path / "runs", tmp_path / "output"
    controller, terminal = pty.openpty()
    with output.open("wb") as log:
        guard = subprocess.Popen(
            [sys.executable, "-m", "tests.kit.guard", sys.executable, "-m", "pytest", *options, *SESSION],
            cwd=ROOT, env={**os.environ, "EVERY_HELPER_RUNS": str(runs)}, stdin=terminal, stdout=log, stderr=log,
            start_new_session=True, preexec_fn=lambda: fcntl.ioctl(terminal, termios.TIOCSCTTY, 0),  # noqa: PLW1509
        )  # fmt: skip
    try:
        until(lambda: runs.exists() or guard.poll() is not None)
        started = descendants(guard.pid)
        commands = {pid: Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ") for pid in started}
        assert [kind for kind in KINDS if not any(kind in command for command in commands.values())] == [], (
            output.read_text()
        )
        if how == "ctrl-c":
            os.write(controller, b"\x03")
        else:
            os.kill(next(pid for pid, command in commands.items() if "-m pytest" in command), signal.SIGKILL)
        guard.wait(SOON_S)
        assert {pid: command for pid, command in commands.items() if alive(pid)} == {}
        assert guard.returncode == (2 if how == "ctrl-c" else 128 + signal.SIGKILL)
        assert "a stubborn process" in output.read_text().rpartition("were left at the end")[2]
    finally:
        guard.terminate()
        guard.wait(SOON_S)
        os.close(controller)
        os.close(terminal)
