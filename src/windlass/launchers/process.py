"""Machines as local processes: each with its own folder, limits and process group. The default, and for one host.

A machine is a folder with the machine's name. Who holds the lock in it is its keeper (`keeper.py`), which outlives this
server; the folder tells how it ended until the machine is removed, and then nothing is left.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

from windlass.core.environment import handed_on
from windlass.core.machine import KILLED, Phase, Sighting, read_machine_name
from windlass.engine.launcher import LauncherAway, LaunchRefused, Order
from windlass.launchers import keeper

LOCK_FD = 9
SECRET_LEAST = 6  # shorter ones would be found everywhere


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

    async def start(self, order: Order) -> Sighting:
        if not order.command:
            raise LaunchRefused("a process needs a command: set it in the queue's delivery")
        folder = self._folder / order.installation / order.name
        begun = await asyncio.to_thread(_begin, folder, _told(folder, order))
        if begun is None:
            return await _known_machine(folder)
        pid, said = begun
        self._watch(pid)
        try:
            line = await _line(said)
        finally:
            os.close(said)
        if line != "ok":
            await self.stop(order.name, None, 0.0)
            raise LaunchRefused(line or "its keeper died")
        return Sighting(name=order.name, id=order.name, phase=Phase.RUNNING)

    async def stop(self, name: str, machine_id: str | None, grace_s: float) -> None:  # noqa: ARG002
        for folder in await asyncio.to_thread(lambda: list(self._folder.glob(f"*/{_known(name)}"))):
            await _ended(folder, grace_s)
            await asyncio.to_thread(_removed, folder)

    async def machines(self, installation: str) -> list[Sighting]:
        return await asyncio.to_thread(_all, self._folder / installation)

    async def look(self, name: str, machine_id: str | None) -> Sighting | None:  # noqa: ARG002
        def looked() -> Sighting | None:
            found = [_sighting(folder) for folder in self._folder.glob(f"*/{_known(name)}")]
            return next((one for one in found if one is not None), None)

        return await asyncio.to_thread(looked)

    # ----------------------------------------------------------------------------------------- its end

    def _watch(self, pid: int) -> None:
        """Be told when a keeper has ended. Where there is no way to be, the next sweep sees it."""
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


async def _known_machine(folder: Path) -> Sighting:
    """One that was begun before. It may look as if it had not for as long as somebody else looks at its lock."""
    found = await asyncio.to_thread(_sighting, folder)
    if found is None or found.phase is Phase.STARTING:
        raise LauncherAway("the machine is just being started or removed by somebody else")
    return found


def _known(name: str) -> str:
    """A name that is ours, and so cannot be a pattern or lead elsewhere."""
    assert read_machine_name(name) is not None, name
    return name


def _told(folder: Path, order: Order) -> bytes:
    """What the keeper is told, secrets included: by a pipe, never by a file."""
    ordinary = handed_on(os.environ)
    own = {"HOME": str(folder / "work"), "TMPDIR": str(folder / "work" / "tmp"), "PYTHONUNBUFFERED": "1"}
    bin_ = str(Path(sys.executable).parent)
    path = {"PATH": f"{bin_}{os.pathsep}{ordinary.get('PATH', os.defpath)}"}
    env = {**ordinary, **own, **path, **order.env, keeper.MARK: order.name}
    told: dict[str, Any] = {
        "folder": str(folder), "command": _found(order.command, env["PATH"]), "env": env, "run_s": order.run_s,
        "memory_mb": order.memory_mb, "grace_s": order.grace_s,
        "secrets": sorted({v for v in order.secret_values if len(v) >= SECRET_LEAST}, key=len, reverse=True),
    }  # fmt: skip
    return json.dumps(told).encode()


def _found(command: tuple[str, ...], path: str) -> list[str]:
    """The program by its full path: the keeper's own PATH is another than the machine's."""
    return [shutil.which(command[0], path=path) or command[0], *command[1:]]


def _begin(folder: Path, told: bytes) -> tuple[int, int] | None:
    """The keeper's process and where it says how it went; None if this machine was begun before."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return None
        if (folder / "begun").exists() or (folder / "exit.json").exists():
            return None
        return _spawn(folder, lock, told)
    finally:
        os.close(lock)


def _spawn(folder: Path, lock: int, told: bytes) -> tuple[int, int]:
    """The lock goes to the keeper as it is: there is no moment at which nobody holds it. What it complains of goes to a
    file: whoever waits for the end of our own output must not wait for machines."""
    log = str(folder / "keeper.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
    orders, give = os.pipe()
    said, tell = os.pipe()
    try:
        environment = {**handed_on(os.environ), keeper.MARK: folder.name}
        pid = os.posix_spawn(
            sys.executable, [sys.executable, "-I", keeper.__file__], environment,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, orders, 0), (os.POSIX_SPAWN_DUP2, tell, 1), (os.POSIX_SPAWN_OPEN, 2, *log),
                (os.POSIX_SPAWN_DUP2, lock, LOCK_FD),
            ],
            setsid=True,
        )  # fmt: skip
        os.close(orders)
        orders = -1
        with contextlib.suppress(BrokenPipeError), os.fdopen(give, "wb") as pipe:
            give = -1
            pipe.write(told)
    except BaseException:
        os.close(said)
        raise
    finally:
        for descriptor in (orders, give, tell):
            if descriptor >= 0:
                os.close(descriptor)
    return pid, said


async def _line(descriptor: int) -> str:
    """What the keeper says; it closes its end then, or dies."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    os.set_blocking(descriptor, False)
    said = b""

    def read() -> None:
        nonlocal said
        with contextlib.suppress(BlockingIOError):
            piece = os.read(descriptor, 4096)
            said += piece
            if not piece or b"\n" in said:
                loop.remove_reader(descriptor)
                done.set()

    loop.add_reader(descriptor, read)
    try:
        await done.wait()
    finally:
        loop.remove_reader(descriptor)
    return said.decode("utf-8", "replace").strip()


def _all(folder: Path) -> list[Sighting]:
    if not folder.is_dir():
        return []
    found = [_sighting(one) for one in folder.iterdir() if read_machine_name(one.name) is not None]
    return [one for one in found if one is not None]


def _sighting(folder: Path) -> Sighting | None:
    if not folder.is_dir():
        return None
    name = folder.name
    if _locked(folder):
        return Sighting(name=name, id=name, phase=Phase.RUNNING)
    told = _exit(folder)
    if told is not None:
        return Sighting(
            name=name, id=name, phase=Phase.EXITED, exit_code=told["exit_code"], reason=told["reason"],
            output=told["output"],
        )  # fmt: skip
    if (folder / "begun").exists():  # its keeper was killed, and it with it
        return Sighting(name=name, id=name, phase=Phase.EXITED, reason=KILLED)
    return Sighting(name=name, id=name, phase=Phase.STARTING)


def _exit(folder: Path) -> dict[str, Any] | None:
    try:
        told: dict[str, Any] = json.loads((folder / "exit.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return told


def _locked(folder: Path) -> bool:
    """Whether a keeper lives. Looked at without a moment in which we hold the lock ourselves for others to see."""
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


async def _ended(folder: Path, grace_s: float) -> None:
    """Ask, then insist, then see to it ourselves."""
    for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGUSR1, 5.0), (signal.SIGKILL, 5.0)):
        until_s = time.monotonic() + wait_s
        if wait_s and not _signalled(folder, number):
            return
        while wait_s and time.monotonic() < until_s:
            if not await asyncio.to_thread(_locked, folder):
                return
            await asyncio.sleep(0.02)


def _signalled(folder: Path, number: int) -> bool:
    """Whether its keeper lives and was told."""
    if not _locked(folder):
        return False
    with contextlib.suppress(OSError, ValueError):
        os.kill(int((folder / "begun").read_text()), number)
    return True


def _removed(folder: Path) -> None:
    for pid in keeper.marked(folder.name):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()
