"""What a person at a terminal sees: bars while something is waited for, tables that redraw themselves, colours."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

import pytest
from tests.cli.command import WINDLASS, environment
from tests.cli.conftest import Dev
from tests.shape.source import ROOT

pytestmark = pytest.mark.slow

SOON_S = 120.0


@dataclass
class Terminal:
    """A command on a terminal of 100 columns, and all that it wrote to it."""

    process: subprocess.Popen[bytes]
    master: int
    seen: str = ""

    def read_until(self, what: str) -> None:
        deadline = time.monotonic() + SOON_S
        while what not in self.plain:
            assert time.monotonic() < deadline, self.seen
            if not self._read():
                break
        assert what in self.plain, self.seen

    def end(self) -> int:
        deadline = time.monotonic() + SOON_S
        while self._read():
            assert time.monotonic() < deadline, self.seen
        os.close(self.master)
        return self.process.wait(SOON_S)

    def _read(self) -> bool:
        if not select.select([self.master], [], [], SOON_S)[0]:
            return False
        try:
            found = os.read(self.master, 65536)
        except OSError:  # the other side has closed it
            return False
        self.seen += found.decode(errors="replace")
        return bool(found)

    @property
    def plain(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.seen)


def at_terminal(dev: Dev, *arguments: str, **more: str) -> Terminal:
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [str(WINDLASS), *arguments],
        stdin=slave, stdout=slave, stderr=slave, cwd=dev.folder, start_new_session=True,
        env=environment(**{"WINDLASS_URL": dev.url, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40", **more}),
    )  # fmt: skip
    os.close(slave)
    return Terminal(process, master)


def test_waiting_shows_a_bar_on_a_terminal_and_the_result_at_the_end(dev: Dev) -> None:
    terminal = at_terminal(dev, "submit", "slow", "-p", "{}", "--wait")
    terminal.read_until("running sorting")
    (dev.folder / "seen").touch()

    assert terminal.end() == 0
    assert re.search(r"slow .* 1/4 .*running sorting", terminal.plain)
    assert terminal.plain.rstrip().endswith('"sorted"')
    piped = dev("submit", "slow", "-p", "{}", "--wait")
    assert piped.stdout == '"sorted"\n'
    assert "\x1b" not in piped.stderr


def test_a_watched_table_redraws_itself_until_ctrl_c(dev: Dev) -> None:
    dev.submit("later", None, "--queue", "watched")
    terminal = at_terminal(dev, "queues", "list", "--watch")
    terminal.read_until("watched")
    drawn = terminal.plain.count("running")
    dev.submit("later", None, "--queue", "watched-too")
    terminal.read_until("watched-too")

    assert terminal.plain.count("running") > drawn
    os.killpg(terminal.process.pid, signal.SIGINT)
    assert terminal.end() == 0
    assert "Traceback" not in terminal.plain


def test_states_are_coloured_on_a_terminal_and_not_when_no_color_is_set(dev: Dev) -> None:
    dev("submit", "break", "-p", '{"what": "it"}', "--max-attempts", "1", "--wait")
    coloured = at_terminal(dev, "tasks", "list", "--state", "failed")
    assert coloured.end() == 0
    assert "\x1b[31mfailed" in coloured.seen
    plain = at_terminal(dev, "tasks", "list", "--state", "failed", NO_COLOR="1")
    assert plain.end() == 0
    assert "\x1b[31m" not in plain.seen


def test_what_does_not_fit_is_left_out_from_the_right_and_times_are_short(dev: Dev) -> None:
    dev.submit("later", None, "--queue", "narrow")
    headers = []
    for columns in ("80", "200"):
        terminal = at_terminal(dev, "tasks", "list", "--queue", "narrow", COLUMNS=columns)
        assert terminal.end() == 0
        header, row = terminal.plain.splitlines()[:2]
        headers.append(header.split())
        assert re.search(r" queued +later +narrow +\d\d:\d\d:\d\d\b", row)
        assert max(map(len, terminal.plain.splitlines())) <= int(columns)
    assert headers[0] == ["id", "state", "kind", "queue", "created", "attempt"]
    assert headers[1] == ["id", "state", "kind", "queue", "created", "attempt", "reason"]


def test_the_id_of_a_task_is_never_cut(dev: Dev) -> None:
    """A person copies it from the table."""
    task_id = dev.submit("a-kind-with-a-very-long-name-" * 5, None, "--queue", "a-queue-with-a-long-name" * 4)
    terminal = at_terminal(dev, "tasks", "list", "--limit", "1")
    assert terminal.end() == 0
    assert task_id in terminal.plain


def test_a_failed_conformance_case_is_told_in_lines_of_the_terminal(dev: Dev) -> None:
    worker = [sys.executable, str(ROOT / "tests/contracts/lease/faulty.py"), "gives garbage back"]
    terminal = at_terminal(dev, "conformance", "lease", "--only", "22", "--", *worker, COLUMNS="80")

    assert terminal.end() == 1
    assert [line for line in terminal.plain.splitlines() if len(line) > 80] == []
    assert "\n                   continue. No worker can ever process it." in terminal.plain.replace("\r", "")
