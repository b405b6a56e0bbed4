"""`make demo`: what README shows is what a person sees, and no more is installed for it than it needs."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from rich.console import Console
from tests.e2e.test_commands import ROOT, SOON_S, WINDLASS, environment
from tests.kit.database import temporary_folder

from windlass.cli.demo import CheckFailed, Story, play

pytestmark = pytest.mark.slow

DEMO = [sys.executable, str(ROOT / "examples/demo.py")]
ROWS, COLUMNS = 24, 80


def plain(text: str) -> list[str]:
    """Lines without what differs from run to run: numbers, ids and the spaces that numbers leave."""
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID", text)
    lines = re.sub(r"\d[\d,.]*\d|\d", "0", text).splitlines()
    return [" ".join(line.split()) for line in lines if line.strip()]


def readme() -> list[str]:
    [shown] = re.findall(r"```text\n(Windlass: .*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert max(map(len, shown.splitlines())) <= COLUMNS
    return plain(shown)


def test_a_terminal_shows_the_screen_of_the_readme_and_nothing_else() -> None:
    import pyte

    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    bars = set()
    with temporary_folder() as folder:
        variables = environment(TMPDIR=str(folder), TERM="xterm")
        variables = {name: value for name, value in variables.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        demo = subprocess.Popen(DEMO, env=variables, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        while True:
            try:
                said = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if not said:
                break
            stream.feed(said)
            bars |= {line.split()[-1] for line in screen.display if "━" in line}
        os.close(ours)
        assert demo.wait(SOON_S) == 0, "\n".join(screen.display)

    assert plain("\n".join(screen.display)) == readme()  # all of it is in view, the kill too
    assert len(bars) > 5, "a bar was seen to move"


def test_a_log_of_it_reads_like_the_readme() -> None:
    with temporary_folder() as folder:
        done = subprocess.run(
            DEMO, env=environment(TMPDIR=str(folder), COLUMNS="80", NO_COLOR="1"), capture_output=True, text=True,
            timeout=200, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert [line for line in plain(done.stdout) if not line.endswith("of 0 tasks have ended.")] == readme()
    assert max(map(len, done.stdout.splitlines())) <= COLUMNS


def test_the_demo_cleans_up_when_it_is_interrupted() -> None:
    with temporary_folder() as folder:
        demo = subprocess.Popen(
            [sys.executable, str(ROOT / "examples/demo.py")],
            env=environment(TMPDIR=str(folder)), stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert demo.stdout is not None
        while "Submitted a run" not in (line := demo.stdout.readline()):
            assert line, "the demo ended before it submitted anything"
        demo.send_signal(signal.SIGINT)
        said, _ = demo.communicate(timeout=SOON_S)
        assert demo.returncode == 130
        assert "Everything was stopped and removed." in said
        assert list(folder.iterdir()) == []


# --------------------------------------------------------------------------------------------- datasets


def test_the_demo_of_datasets_counts_every_row_after_a_worker_and_a_sink_were_killed() -> None:
    with temporary_folder() as folder:
        done = subprocess.run(
            [str(WINDLASS), "demo", "--datasets"], env=environment(TMPDIR=str(folder), COLUMNS="80", NO_COLOR="1"),
            capture_output=True, text=True, timeout=250, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
        assert list(folder.iterdir()) == [], "it leaves nothing behind"
    assert max(map(len, done.stdout.splitlines())) <= COLUMNS
    assert re.findall(r"kill -9 (\S+)", done.stdout) == ["wrapper-1", "sink-1"]
    found = {what: int(number.replace(",", "")) for number, what in
             re.findall(r"^ +ok +([\d,]+)  (.*?) *$", done.stdout, re.MULTILINE)}  # fmt: skip
    assert len(found) == 10, "two lines have the same words"
    assert found["partitions of readings, each committed once"] == found["events of readings"] == 40
    assert found["rows are in their Parquet files"] == 4000
    assert found["rows are in the table of alerts"] == 396
    assert found["batches are in it"] == found["events of alerts, one for each batch"] >= 100
    assert found["tasks of wrapper-1 finished by wrapper-2"] >= 1


def test_a_count_that_is_wrong_fails_the_demo_with_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    async def miscount(console: Console, _folder: Path, _log: Path) -> None:
        story = Story(console, 0.0)
        assert story.show_checks([("rows", 7, 7), ("events", 5, 6)]) == ["events"]
        raise CheckFailed("failed checks: events")

    handler = signal.getsignal(signal.SIGTERM)
    try:
        assert play(miscount, as_json=False) == 1
    finally:
        signal.signal(signal.SIGTERM, handler)
    shown = capsys.readouterr().out
    assert re.search(r"ok +7 +rows", shown)
    assert re.search(r"NO, 6 +5 +events", shown)
    assert "The demo failed: failed checks: events" in shown


# --------------------------------------------------------------------------------------------- what is installed

PIP = """#!/bin/bash
echo "$@" >> "{log}"
case "$*" in
  "-m venv .venv") mkdir -p .venv/bin; cp "$0" .venv/bin/python; printf '#!/bin/bash\necho ran' > .venv/bin/windlass
                   chmod +x .venv/bin/windlass ;;
  *"pip"*) echo "Obtaining file:///somewhere"; echo "  Installing build dependencies: started"
           echo "Collecting msgspec>=0.19 (from windlass-engine==0.1.0)"; echo "  Downloading msgspec-0.19.whl"
           echo "Collecting rich[jupyter]>=13"; echo "Installing collected packages: msgspec, rich" ;;
esac
"""


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_demo_installs_no_tools_of_developers_and_shows_what_it_fetches(tmp_path: Path) -> None:
    tools, log = tmp_path / "tools", tmp_path / "log.txt"
    tools.mkdir()
    for name in ("bash", "sh", "make", "touch", "mkdir", "cp", "chmod"):  # no uv
        (tools / name).symlink_to(shutil.which(name) or name)
    python = tools / "python3"
    python.write_text(PIP.format(log=log))
    python.chmod(0o755)
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)

    def make(target: str) -> str:
        variables = {"PATH": str(tools), "HOME": str(tmp_path)}
        done = subprocess.run(["make", target, f"PYTHON={python}"], cwd=tmp_path, env=variables, capture_output=True,
                              text=True, check=False)  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    shown, asked = make("demo"), log.read_text()
    assert shown.splitlines()[1:] == [
        "  making an environment …", "  preparing …", "  1  msgspec", "  2  rich", "  installing 2 packages …", "ran",
    ]  # fmt: skip
    assert ".[server,embedded]" in asked
    assert "dev" not in asked
    assert make("demo") == "ran\n", "the second time nothing is installed"
    assert log.read_text() == asked
    assert make("demo-datasets").endswith("ran\n")
    assert ".[server,embedded,arrow]" in log.read_text().removeprefix(asked), "Parquet files need pyarrow"
    make("docs")
    assert "--group dev" in log.read_text()
    after = log.read_text()
    assert make("demo") == "ran\n"
    assert log.read_text() == after, "who has everything needs nothing more"
