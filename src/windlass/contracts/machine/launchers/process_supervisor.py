"""Supervises one local machine: runs a program in its own folder, enforces its limits, and cleans up after it.

It runs as a file with the standard library only: `python -I process_supervisor.py`. It reads its instructions as JSON
from stdin, so that secrets are neither in its arguments nor in a file. It holds the lock on file descriptor 9 while it
lives, writes `ok` or an error to stdout once it has started the program, and `exit.json` when the program has ended. It
outlives the server that started it. SIGTERM asks the program to end and kills it after its grace period; SIGUSR1 kills
it at once.
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
POLL_S = 0.5
EXTRA_S = 60.0  # after the time limit: a running server ends the machine in time, so this is for when there is none
MARK = "WINDLASS_MACHINE"
OUT_OF_MEMORY, TIME_LIMIT, STOPPED = "out_of_memory", "time_limit", "stopped"
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
ENDING_S = 5.0
_KILLS = Path("/sys/fs/cgroup/memory.events")


class ProcessSupervisor:
    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        self.folder = Path(order["folder"])
        self.work = self.folder / "work"
        self.memory_bytes = int(order["memory_mb"]) * 1024 * 1024
        self.reason = ""
        self.kill_at: float | None = None
        self.tail = bytearray()
        self.woken, self._wake = os.pipe()
        signal.signal(signal.SIGTERM, lambda *_: self._stop(float(order["grace_s"])))
        signal.signal(signal.SIGUSR1, lambda *_: self._stop(0.0))
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        if sys.platform == "linux":  # orphans become our children, so that no process can hide
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def _stop(self, grace_s: float) -> None:
        """Kill the program after `grace_s`, or when an earlier signal says so."""
        kill_at = time.monotonic() + grace_s
        self.reason = self.reason or STOPPED
        self.kill_at = kill_at if self.kill_at is None else min(self.kill_at, kill_at)
        os.write(self._wake, b"s")

    def run(self) -> None:
        (self.work / "tmp").mkdir(parents=True, exist_ok=True)
        killed_before = kernel_kills()
        (self.folder / "begun").write_text(str(os.getpid()))
        try:
            program = self._start()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            (self.folder / "begun").unlink()
            shutil.rmtree(self.work, ignore_errors=True)
            report(f"{self.order['command'][0]}: {reason}")
            return
        report("ok")
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

    def _start(self) -> subprocess.Popen[bytes]:
        libc = ctypes.CDLL(None, use_errno=True)
        data = self.memory_bytes + self.memory_bytes // 2 + (64 << 20)

        def limits() -> None:
            if sys.platform == "linux":
                libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # the program does not outlive its supervisor
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_DATA, (data, data))

        return subprocess.Popen(
            self.order["command"], cwd=self.work, env=self.order["env"], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=limits,  # noqa: PLW1509
        )  # fmt: skip

    def _watch(self, program: subprocess.Popen[bytes]) -> None:
        """Enforce the limits until the program has ended."""
        ends_at = time.monotonic() + float(self.order["run_s"]) + EXTRA_S
        terminated = False
        ended = os.pidfd_open(program.pid) if hasattr(os, "pidfd_open") else -1
        watched = [self.woken] + ([ended] if ended >= 0 else [])
        while program.poll() is None:
            ready, _, _ = select.select(watched, [], [], POLL_S)
            if self.woken in ready:
                os.read(self.woken, 64)
            now = time.monotonic()
            if resident_bytes() > self.memory_bytes:
                self.reason, self.kill_at = OUT_OF_MEMORY, now
            elif now > ends_at:
                self.reason, self.kill_at = TIME_LIMIT, now
            if self.kill_at is not None and now >= self.kill_at:
                kill_group(program.pid, signal.SIGKILL)
            elif self.kill_at is not None and not terminated:
                kill_group(program.pid, signal.SIGTERM)
                terminated = True

    def _read(self, program: subprocess.Popen[bytes]) -> None:
        assert program.stdout is not None
        while piece := program.stdout.read1(65536):  # type: ignore[attr-defined]
            self.tail += piece
            del self.tail[:-OUTPUT_MAX]

    def _end_all(self, group: int) -> None:
        """Kill every process that the program started, also in a session of its own or without our mark. Each round
        kills the orphans and the new processes that the round before missed."""
        kill_group(group, signal.SIGKILL)
        until_s = time.monotonic() + ENDING_S
        while (pids := [*descendants(), *marked(self.order["env"].get(MARK, ""))]) and time.monotonic() < until_s:
            for pid in pids:
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
        draft = self.folder / "exit.json.new"
        draft.write_text(json.dumps({"exit_code": code, "reason": self.reason, "output": output}), encoding="utf-8")
        draft.rename(self.folder / "exit.json")


def kill_group(group: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(group, number)


def descendants() -> list[int]:
    """All descendants of this process, including orphans that it adopted."""
    found, pending = [], [os.getpid()]
    while pending:
        pid = pending.pop()
        with contextlib.suppress(OSError, ValueError):
            for thread in Path(f"/proc/{pid}/task").iterdir():
                pending += [int(child) for child in (thread / "children").read_text().split()]
        found.append(pid)
    return found[1:]


def resident_bytes() -> int:
    """Resident private memory of the program and all its descendants."""
    total = 0
    for pid in descendants():
        with contextlib.suppress(OSError, ValueError, IndexError):
            pages = Path(f"/proc/{pid}/statm").read_text().split()
            total += (int(pages[1]) - int(pages[2])) * resource.getpagesize()
    return total


def marked(name: str) -> list[int]:
    """Processes whose environment carries the mark of a machine."""
    if not name:
        return []
    mark, found = f"{MARK}={name}".encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (folder / "environ").read_bytes().split(b"\0") and int(folder.name) != os.getpid():
                found.append(int(folder.name))
    return found


def kernel_kills() -> int:
    """How many processes of this container the kernel has killed for lack of memory."""
    with contextlib.suppress(OSError, ValueError):
        events = dict(line.split() for line in _KILLS.read_text().splitlines())
        return int(events.get("oom_kill", 0))
    return 0


def report(text: str) -> None:
    """Write the line that the server waits for, and close stdout."""
    with contextlib.suppress(OSError):
        os.write(1, text.encode() + b"\n")
        os.close(1)


if __name__ == "__main__":
    ProcessSupervisor(json.loads(sys.stdin.buffer.read())).run()
