"""The tutorial, followed word by word: its files are written, its commands are typed into a shell, and what it says
that they print is compared. Servers and workers run beside, as in a terminal of their own."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.cli.command import environment
from tests.kit.database import temporary_folder
from tests.kit.ports import free_port

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGE, DATASETS_PAGE = ROOT / "docs/tutorial.md", ROOT / "docs/tutorial-datasets.md"
BESIDE = ("windlass dev", "windlass worker ")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SOON_S = 120.0
END = "the end of a command"


@dataclass
class Reader:
    """Somebody who follows the page, with as many terminals as it asks for."""

    folder: Path
    stack: ExitStack
    beside: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        ports = {f"WINDLASS_{name}": f"127.0.0.1:{free_port()}" for name in ("HTTP", "GRPC")}
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = environment(PATH=programs, **ports)
        self.shell = self.stack.enter_context(
            subprocess.Popen(
                ["bash"],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        self.stack.callback(self.shell.kill)

    def type(self, command: str) -> str:
        """What it prints."""
        assert self.shell.stdin is not None
        assert self.shell.stdout is not None
        self.shell.stdin.write(f"{command}\necho '{END}'\n")
        self.shell.stdin.flush()
        lines = []
        while (line := self.shell.stdout.readline()).rstrip("\n") != END:
            assert line, "the shell has ended"
            lines.append(line)
        return "".join(lines)

    def start(self, command: str) -> None:
        """In a terminal of its own, until it says that it is ready."""
        log = self.folder / f"terminal-{len(self.beside)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command.split(), cwd=self.folder, env=self.environment, stdout=output, stderr=subprocess.STDOUT
            )
        self.beside.append(process)
        deadline = time.monotonic() + SOON_S
        while "Stop with Ctrl-C." not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)

    def stop_worker(self) -> None:
        worker = self.beside[-1]
        worker.send_signal(signal.SIGINT)
        assert worker.wait(SOON_S) == 0

    def end(self) -> None:
        for process in reversed(self.beside):
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                process.wait(SOON_S)


@pytest.fixture
def reader() -> Iterator[Reader]:
    with temporary_folder() as folder, ExitStack() as stack:
        made = Reader(folder, stack)
        try:
            yield made
        finally:
            made.end()


def until_in_file(file: Path, text: str) -> None:
    deadline = time.monotonic() + SOON_S
    while not file.exists() or text not in file.read_text():
        assert time.monotonic() < deadline, text
        time.sleep(0.02)


def matches(said: str, printed: str) -> bool:
    """`…` stands for anything."""
    lines = [".*".join(re.escape(part) for part in line.split("…")) for line in said.strip().splitlines()]
    return re.fullmatch(r"\s*\n".join(lines), printed.strip(), re.DOTALL) is not None


def test_the_tutorial_works_word_by_word_and_the_killed_workers_workflow_goes_on(reader: Reader) -> None:
    program = reader.folder / "shop.py"
    printed = ""
    for language, code in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if language == "python":
            if program.exists():
                reader.stop_worker()  # as the page says
            program.write_text((program.read_text() if program.exists() else "") + "\n\n" + code)
        elif language == "text":
            assert matches(code, printed), f"the page says\n{code}\nand it printed\n{printed}"
        elif code.startswith(BESIDE):
            reader.start(code.strip())
        elif "kill -9 PID" in code:
            until_in_file(reader.folder / "effects.txt", "began to pack")  # "before they are over"
            worker = reader.beside[-1]
            shown = reader.type(code.replace("PID", str(worker.pid)))
            assert str(worker.pid) in shown, "the page says that the command shows it"
            assert worker.wait(SOON_S) == -signal.SIGKILL
        else:
            printed = reader.type(code)
    assert (reader.folder / "effects.txt").read_text().count("charged for A-17") == 1


def test_the_tutorial_of_datasets_works_word_by_word(reader: Reader) -> None:
    typed: dict[str, str] = {}
    compared = 0
    for language, code in BLOCK.findall(DATASETS_PAGE.read_text(encoding="utf-8")):
        if language in ("yaml", "python"):
            assert code in (ROOT / f"examples/clocks.{'py' if language == 'python' else 'yaml'}").read_text()
        elif language == "text":
            repeat_until_printed(reader, typed, of_any_release(code))
            compared += 1
        elif code.startswith(BESIDE):
            reader.start(code.strip())
        else:
            typed = {line: reader.type(line) for line in code.replace("CLONE", str(ROOT)).splitlines()}
    assert compared == 10


def repeat_until_printed(reader: Reader, typed: dict[str, str], expected: str) -> None:
    """Data may come a moment later: the last command is repeated, if it only shows something."""
    deadline = time.monotonic() + SOON_S
    while not matches(expected, printed := "".join(typed.values())):
        last = list(typed)[-1]
        shows = last.startswith(("windlass datasets partitions", "windlass psql"))
        assert shows, f"the page says\n{expected}\nand it printed\n{printed}"
        assert time.monotonic() < deadline, f"the page says\n{expected}\nand it printed\n{printed}"
        typed[last] = reader.type(last)


def of_any_release(shown: str) -> str:
    """The time zone database is corrected now and then: how many rows a decade has may differ."""
    return re.sub(r"^((?:\d{4}-\d{4} +committed +)?\d +)\d{2,3} .*$", r"\1…", shown, flags=re.MULTILINE)


def test_the_commands_of_the_readme_work_word_by_word(reader: Reader) -> None:
    shutil.copytree(ROOT / "examples", reader.folder / "examples")
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Run it")[2].partition("\n## ")[0]
    start, look = (code.replace(".venv/bin/", "") for language, code in BLOCK.findall(section) if language == "sh")
    reader.start(start.strip())
    result, header, task = reader.type(look).splitlines()
    assert result == '"Hello, Ada!"'
    assert header.split()[:2] == ["id", "state"]
    assert task.split()[1] == "succeeded"


def test_what_the_page_leaves_open_matches_anything_and_nothing_else_does() -> None:
    assert matches("a…c\nd", "a b c  \nd\n")
    assert not matches("a…c", "a b d")
