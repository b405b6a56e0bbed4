"""A program under test: a process in a separate session. The report quotes the end of its output."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from windlass.errors import Invalid
from windlass.testing.conformance.kit import Broken

OUTPUT_MAX = 400


class Program:
    """Starts the program at once. At the end of the `with` block, kills it and all processes that it started. Raises
    Invalid if it cannot be started."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=self._output, stderr=subprocess.STDOUT, env=dict(environment),
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            self._output.close()
            raise Invalid(f"cannot be started: {error}", field="command") from None

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._output.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def tell(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def wait(self, timeout_s: float) -> int:
        """Its exit code. Raises Broken if it does not end."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise Broken(f"it has not ended within {timeout_s:g} s{self.last_output()}") from None

    def output(self) -> str:
        """All that it has written so far, to stdout and stderr."""
        return os.pread(self._output.fileno(), 1 << 24, 0).decode(errors="replace")

    def last_output(self) -> str:
        """The end of its output, for a report."""
        words = self.output().strip()[-OUTPUT_MAX:]
        code = self._process.poll()
        ended = "" if code is None else f"; it has ended with code {code}"
        return f"{ended}; its last lines: {words}" if words else ended


def peak_bytes(session: int) -> int:
    """The peak memory of the largest process in this session so far. Linux only; 0 elsewhere."""
    peaks = [0]
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError):
            if os.getsid(int(folder.name)) == session:
                status = (folder / "status").read_text().splitlines()
                peaks += [int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:")]
    return max(peaks)
