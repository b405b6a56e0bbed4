"""Machines as local processes, each with its own folder, limits and process group. The default, for one host.

A machine is a folder with the machine's name. Its supervisor (`process_supervisor.py`) outlives this server and holds
the lock in the folder. The folder keeps the exit status until the machine is removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from windlass.contracts.machine.launchers import process_supervisor
from windlass.contracts.machine.launchers.port import LauncherUnavailable, LaunchRefused, Order
from windlass.contracts.machine.rules import KILLED, MachineStatus, Phase, read_machine_name
from windlass.core.environment import handed_on

LOCK_FD = 9


class ProcessLauncher:
    """Machines below one folder of this host."""

    name = "process"

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self.place = f"{socket.gethostname()}:{self._folder}"[:1000]
        self._wake: Callable[[], None] = lambda: None
        self._watched: dict[int, int] = {}

    def open(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def close(self) -> None:
        loop = asyncio.get_running_loop()
        for descriptor in self._watched.values():
            loop.remove_reader(descriptor)
            os.close(descriptor)
        self._watched.clear()

    # ----------------------------------------------------------------------------------------- the port

    async def start(self, order: Order) -> MachineStatus:
        if not order.command:
            raise LaunchRefused("a process needs a command: set it in the queue's delivery")
        folder = self._folder / order.installation / order.name
        started = await asyncio.to_thread(_start, folder, _instructions(folder, order))
        if started is None:
            existing = await asyncio.to_thread(_read_status, folder)
            # It may read as not started while another process tests its lock.
            if existing is None or existing.phase is Phase.STARTING:
                raise LauncherUnavailable(f"another process is starting or removing machine {order.name}")
            return existing
        pid, output = started
        self._watch(pid)
        line = await _read_line(output)
        if line != "ok":
            await self.stop(order.name, None, 0.0)
            raise LaunchRefused(line or "the supervisor of the process died")
        return MachineStatus(name=order.name, id=order.name, phase=Phase.RUNNING)

    async def stop(self, name: str, machine_id: str | None, grace_s: float) -> None:  # noqa: ARG002
        for folder in await asyncio.to_thread(self._folders, name):
            await _end(folder, grace_s)
            await asyncio.to_thread(_remove, folder)

    async def machines(self, installation: str) -> list[MachineStatus]:
        def read() -> list[MachineStatus]:
            folders = (self._folder / installation).glob("*")
            return _read_statuses(folder for folder in folders if read_machine_name(folder.name) is not None)

        return await asyncio.to_thread(read)

    async def status(self, name: str, machine_id: str | None) -> MachineStatus | None:  # noqa: ARG002
        statuses = await asyncio.to_thread(lambda: _read_statuses(self._folders(name)))
        return statuses[0] if statuses else None

    def _folders(self, name: str) -> list[Path]:
        """The folders of a machine. Only a valid name is neither a glob pattern nor a path."""
        assert read_machine_name(name) is not None, name
        return list(self._folder.glob(f"*/{name}"))

    # ----------------------------------------------------------------------------------------- the end of a machine

    def _watch(self, pid: int) -> None:
        """Wake the sweep when a supervisor ends. Without pidfd, the next periodic sweep notices it."""
        if not hasattr(os, "pidfd_open"):
            return
        with contextlib.suppress(OSError):
            descriptor = os.pidfd_open(pid)
            self._watched[pid] = descriptor
            asyncio.get_running_loop().add_reader(descriptor, self._reap, pid)

    def _reap(self, pid: int) -> None:
        descriptor = self._watched.pop(pid)
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
        self._wake()


def _instructions(folder: Path, order: Order) -> bytes:
    """The instructions of the supervisor. They contain secrets, so they go through a pipe and never to a file."""
    ordinary = handed_on(os.environ)
    own = {"HOME": str(folder / "work"), "TMPDIR": str(folder / "work" / "tmp"), "PYTHONUNBUFFERED": "1"}
    bin_ = str(Path(sys.executable).parent)
    path = {"PATH": f"{bin_}{os.pathsep}{ordinary.get('PATH', os.defpath)}"}
    env = {**ordinary, **own, **path, **order.env, process_supervisor.MARK: order.name}
    # The full path of the program: the PATH of the supervisor differs from that of the machine.
    program = shutil.which(order.command[0], path=env["PATH"]) or order.command[0]
    instructions: dict[str, Any] = {
        "folder": str(folder), "command": [program, *order.command[1:]], "env": env, "run_s": order.run_s,
        "memory_mb": order.memory_mb, "grace_s": order.grace_s,
        "secrets": sorted(order.secret_values, key=len, reverse=True),
    }  # fmt: skip
    return json.dumps(instructions).encode()


def _start(folder: Path, instructions: bytes) -> tuple[int, int] | None:
    """Start a supervisor. Returns its process id and a pipe with its first line, or None if the machine was started
    before."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return None
        if (folder / "begun").exists() or (folder / "exit.json").exists():
            return None
        return _spawn(folder, lock, instructions)
    finally:
        os.close(lock)


def _spawn(folder: Path, lock: int, instructions: bytes) -> tuple[int, int]:
    """The supervisor inherits the locked descriptor, so the lock is never free in between. Its stderr goes to a file: a
    process that reads our output to its end must not wait for machines."""
    log = str(folder / "supervisor.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
    child_stdin, stdin = os.pipe()
    stdout, child_stdout = os.pipe()
    try:
        environment = {**handed_on(os.environ), process_supervisor.MARK: folder.name}
        pid = os.posix_spawn(
            sys.executable, [sys.executable, "-I", process_supervisor.__file__], environment,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, child_stdin, 0), (os.POSIX_SPAWN_DUP2, child_stdout, 1),
                (os.POSIX_SPAWN_OPEN, 2, *log), (os.POSIX_SPAWN_DUP2, lock, LOCK_FD),
            ],
            setsid=True,
        )  # fmt: skip
        os.close(child_stdin)
        child_stdin = -1
        with contextlib.suppress(BrokenPipeError), os.fdopen(stdin, "wb") as pipe:
            stdin = -1
            pipe.write(instructions)
    except BaseException:
        os.close(stdout)
        raise
    finally:
        for descriptor in (child_stdin, stdin, child_stdout):
            if descriptor >= 0:
                os.close(descriptor)
    return pid, stdout


async def _read_line(descriptor: int) -> str:
    """Read the first line of the supervisor, or what it wrote before it died. Closes the pipe."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", 0)
    )
    try:
        return (await reader.readline()).decode("utf-8", "replace").strip()
    finally:
        transport.close()


def _read_statuses(folders: Iterable[Path]) -> list[MachineStatus]:
    return [status for folder in folders if (status := _read_status(folder)) is not None]


def _read_status(folder: Path) -> MachineStatus | None:
    if not folder.is_dir():
        return None
    name = folder.name
    if _locked(folder):
        return MachineStatus(name=name, id=name, phase=Phase.RUNNING)
    with contextlib.suppress(OSError, ValueError):
        ended = json.loads((folder / "exit.json").read_text(encoding="utf-8"))  # exit_code, reason and output
        return MachineStatus(name=name, id=name, phase=Phase.EXITED, **ended)
    if (folder / "begun").exists():  # the supervisor was killed, and the machine with it
        return MachineStatus(name=name, id=name, phase=Phase.EXITED, reason=KILLED)
    return MachineStatus(name=name, id=name, phase=Phase.STARTING)


def _locked(folder: Path) -> bool:
    """Whether a supervisor lives. A shared lock tests this, so that two processes that test do not mistake each other
    for a supervisor."""
    try:
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    else:
        return False
    finally:
        os.close(lock)


async def _end(folder: Path, grace_s: float) -> None:
    """Ask the program to end, then have the supervisor kill it, then kill the supervisor."""
    for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGUSR1, 5.0), (signal.SIGKILL, 5.0)):
        until_s = time.monotonic() + wait_s
        if wait_s and not _signal(folder, number):
            return
        while wait_s and time.monotonic() < until_s:
            if not await asyncio.to_thread(_locked, folder):
                return
            await asyncio.sleep(0.02)


def _signal(folder: Path, number: int) -> bool:
    """Send a signal to the supervisor. Returns whether it lives."""
    if not _locked(folder):
        return False
    with contextlib.suppress(OSError, ValueError):
        os.kill(int((folder / "begun").read_text()), number)
    return True


def _remove(folder: Path) -> None:
    for pid in process_supervisor.marked(folder.name):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()
