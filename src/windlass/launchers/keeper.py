"""Keeps one local machine: a program with its own folder, its limits, and nothing left of it in the end.

Run as a file, with nothing but the standard library: `python -I keeper.py`. What to run comes as JSON on stdin, so that
secrets are neither among the arguments nor in a file. It holds the lock on file descriptor 9 as long as it lives, says
`ok` or why not on stdout when the program has begun, and writes `exit.json` when it has ended. It outlives the server
that started it. SIGTERM asks the program to end, and ends it after its grace; SIGUSR1 ends it at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

OUTPUT_MAX = 16 * 1024
LOOK_S = 0.5
LEFT_S = 60.0  # longer than its time: the server ends it in time, if there is one
MARK = "WINDLASS_MACHINE"
OUT_OF_MEMORY, TIME_LIMIT, STOPPED = "out_of_memory", "time_limit", "stopped"
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
ENDING_S = 5.0
_KILLS = Path("/sys/fs/cgroup/memory.events")


class Keeper:
    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        self.folder = Path(order["folder"])
        self.work = self.folder / "work"
        self.memory_bytes = int(order["memory_mb"]) * 1024 * 1024
        self.reason = ""
        self.kill_at: float | None = None
        self.tail = bytearray()
        self.woken, self._wake = os.pipe()
        signal.signal(signal.SIGTERM, self._asked)
        signal.signal(signal.SIGUSR1, self._now)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        if sys.platform == "linux":  # who loses its parent becomes a child of ours: nobody can hide
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def _asked(self, *_: object) -> None:
        self.reason = self.reason or STOPPED
        self.kill_at = self.kill_at or time.monotonic() + float(self.order["grace_s"])
        os.write(self._wake, b"t")

    def _now(self, *_: object) -> None:
        self.reason = self.reason or STOPPED
        self.kill_at = time.monotonic()
        os.write(self._wake, b"k")

    # ----------------------------------------------------------------------------------------- from begin to end

    def run(self) -> None:
        (self.work / "tmp").mkdir(parents=True, exist_ok=True)
        killed_before = kernel_kills()
        (self.folder / "begun").write_text(str(os.getpid()))
        try:
            program = self._begin()
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            (self.folder / "begun").unlink()
            shutil.rmtree(self.work, ignore_errors=True)
            say(f"{self.order['command'][0]}: {why}")
            return
        say("ok")
        reader = threading.Thread(target=self._read, args=(program,), daemon=True)
        reader.start()
        self._watch(program)
        code = program.wait()
        self._end_all(program.pid)
        reader.join(2.0)
        if code == -signal.SIGKILL and not self.reason and kernel_kills() > killed_before:
            self.reason = OUT_OF_MEMORY
        shutil.rmtree(self.work, ignore_errors=True)
        self._record(code)

    def _begin(self) -> subprocess.Popen[bytes]:
        libc = ctypes.CDLL(None, use_errno=True)
        data = self.memory_bytes + self.memory_bytes // 2 + (64 << 20)

        def limits() -> None:
            if sys.platform == "linux":
                libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # it does not outlive its keeper
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_DATA, (data, data))

        return subprocess.Popen(
            self.order["command"], cwd=self.work, env=self.order["env"], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=limits,  # noqa: PLW1509
        )  # fmt: skip

    def _watch(self, program: subprocess.Popen[bytes]) -> None:
        """Until the program has ended, by itself or by us."""
        ends_at = time.monotonic() + float(self.order["run_s"]) + LEFT_S
        asked = False
        ended = os.pidfd_open(program.pid) if hasattr(os, "pidfd_open") else -1
        watched = [self.woken] + ([ended] if ended >= 0 else [])
        while program.poll() is None:
            ready, _, _ = select.select(watched, [], [], LOOK_S)
            if self.woken in ready:
                os.read(self.woken, 64)
            now = time.monotonic()
            if resident_bytes() > self.memory_bytes:
                self.reason, self.kill_at = OUT_OF_MEMORY, now
            elif now > ends_at:
                self.reason, self.kill_at = TIME_LIMIT, now
            if self.kill_at is not None and now >= self.kill_at:
                kill_group(program.pid, signal.SIGKILL)
            elif self.kill_at is not None and not asked:
                kill_group(program.pid, signal.SIGTERM)
                asked = True

    def _read(self, program: subprocess.Popen[bytes]) -> None:
        assert program.stdout is not None
        while piece := program.stdout.read1(65536):  # type: ignore[attr-defined]
            self.tail += piece
            del self.tail[:-OUTPUT_MAX]

    def _end_all(self, group: int) -> None:
        """Whatever the program started, also what made itself a session of its own and forgot where it comes from. Each
        round finds what the one before has made orphans, or was too late for."""
        kill_group(group, signal.SIGKILL)
        until_s = time.monotonic() + ENDING_S
        while (left := [*descendants(), *marked(self.order["env"].get(MARK, ""))]) and time.monotonic() < until_s:
            for pid in left:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            time.sleep(0.002)

    def _record(self, code: int) -> None:
        output = bytes(self.tail).decode("utf-8", "replace")
        for secret in self.order["secrets"]:
            output = output.replace(secret, "***")
        told = {"exit_code": code, "reason": self.reason, "output": output}
        draft = self.folder / "exit.json.new"
        draft.write_text(json.dumps(told), encoding="utf-8")
        draft.rename(self.folder / "exit.json")


def kill_group(group: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(group, number)


def descendants() -> list[int]:
    """Of this process; also those who lost their parents meanwhile."""
    found, pending = [], [os.getpid()]
    while pending:
        one = pending.pop()
        with contextlib.suppress(OSError, ValueError):
            for thread in Path(f"/proc/{one}/task").iterdir():
                pending += [int(child) for child in (thread / "children").read_text().split()]
        found.append(one)
    return found[1:]


def resident_bytes() -> int:
    """Of a program and all that it started."""
    total = 0
    for pid in descendants():
        with contextlib.suppress(OSError, ValueError, IndexError):
            pages = Path(f"/proc/{pid}/statm").read_text().split()
            total += (int(pages[1]) - int(pages[2])) * resource.getpagesize()
    return total


def marked(name: str) -> list[int]:
    """Processes of this user that carry the mark of a machine."""
    if not name:
        return []
    mark, found = f"{MARK}={name}".encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (folder / "environ").read_bytes().split(b"\0") and int(folder.name) != os.getpid():
                found.append(int(folder.name))
    return found


def kernel_kills() -> int:
    """How often the kernel has ended something of this container for want of memory."""
    with contextlib.suppress(OSError, ValueError):
        told = dict(line.split() for line in _KILLS.read_text().splitlines())
        return int(told.get("oom_kill", 0))
    return 0


def say(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(1, text.encode() + b"\n")
        os.close(1)


if __name__ == "__main__":
    Keeper(json.loads(sys.stdin.buffer.read())).run()
