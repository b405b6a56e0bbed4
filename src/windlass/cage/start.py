"""A process that locks itself in as it was told, and then becomes the program of a task.

What it is told is one JSON text in its arguments; `Orders` in the wrapper writes it. If it cannot lock itself in, it
says so on the descriptor `notes` and starts nothing. Above it stays a keeper, outside the cage, which ends all of it
when it uses more than it may, and when the wrapper goes. As the first process of a world of its own another one stays,
to pass on signals and to tell how the program ended: when it goes, the kernel ends all that is left there.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import socket
import sys
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from . import landlock, namespaces, seccomp, system
from .watch import Watch, can_look

REFUSED = 97
CANNOT_START = 98
LIMITS = {
    "cpu_s": resource.RLIMIT_CPU,
    "memory_bytes": resource.RLIMIT_AS,
    "file_bytes": resource.RLIMIT_FSIZE,
    "files": resource.RLIMIT_NOFILE,
}
TOGETHER = ("memory_bytes", "processes")  # counted over all processes of a program
LOOK_MS = 50
COUNTS_PER_NAMESPACE = (5, 14)  # the Linux from which on RLIMIT_NPROC of a user namespace counts what is in it

Orders = dict[str, Any]


class Refused(Exception):
    """It cannot be locked in."""


def main() -> None:
    orders: Orders = json.loads(sys.argv[1])
    try:
        system.die_with_parent()
        if os.getppid() != orders["parent"]:
            os._exit(REFUSED)  # nobody waits for it any more
        if orders["isolation"] != "none" or any(orders["limits"].get(name) for name in TOGETHER):
            _under_a_keeper(orders)
        _lock_in(orders)
        if orders.get("trial"):
            _try_to_get_out(orders["trial"])
    except (OSError, Refused) as error:
        note(orders, refused=f"{orders['isolation']}: {_words(error)}")
        os._exit(REFUSED)
    _become(orders)


def _words(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


def note(orders: Orders, **said: object) -> None:
    with contextlib.suppress(OSError):
        os.write(orders["notes"], json.dumps(said).encode() + b"\n")


# ----------------------------------------------------------------------------------------------- the keeper


def _under_a_keeper(orders: Orders) -> None:
    """Returns in a new process; the one that was started stays above it and keeps watch."""
    if not orders.get("group") and not can_look():
        raise Refused(
            "this kernel does not tell which processes a program has started (CONFIG_PROC_CHILDREN), and there is no "
            "control group: what all of them use together cannot be bounded"
        )
    system.take_orphans()
    lifeline, held = os.pipe()
    child = os.fork()
    if child:
        os.close(lifeline)
        _keep(orders, child)
    os.close(held)
    if orders.get("group"):
        Path(orders["group"], "cgroup.procs").write_text("0", encoding="ascii")
    _die_with(lifeline)


def _die_with(lifeline: int) -> None:
    """From now on with its parent, which holds the other end: it may have been killed before we could ask for that."""
    system.die_with_parent()
    watch = select.poll()
    watch.register(lifeline, select.POLLHUP)
    if watch.poll(0):
        os._exit(REFUSED)
    os.close(lifeline)


def _keep(orders: Orders, child: int) -> NoReturn:
    """Until the program has ended, or uses more than all of it may: then it goes with all that it has started."""
    signal.signal(signal.SIGHUP, lambda *_: os.killpg(0, signal.SIGKILL))
    system.die_with_parent(signal.SIGHUP)
    if os.getppid() != orders["parent"]:
        os.killpg(0, signal.SIGKILL)
    _step_aside(orders, signals=(signal.SIGTERM, signal.SIGINT), notes=False)
    watch, ended = _watch_of(orders), select.poll()
    ended.register(os.pidfd_open(child), select.POLLIN)
    while not ended.poll(LOOK_MS):
        if why := watch.look():
            note(orders, killed=why)
            watch.kill_all()
            os.killpg(0, signal.SIGKILL)
        _bury_all_but(child)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if orders["isolation"] != "namespaces":  # in a world of its own, its first process tells
        note(orders, ended=code)
    os._exit(code & 0xFF if code >= 0 else 128 - code)


def _watch_of(orders: Orders) -> Watch:
    """For what the kernel does not count. In a control group it counts memory and processes; on a file system of its
    own, files; and processes where the user, or the user namespace, is the program's alone."""
    alone, among_others = (orders["isolation"] == way for way in ("namespaces", "landlock"))
    limits = dict(orders["limits"])
    if orders.get("group"):
        limits["memory_bytes"] = limits["processes"] = None
    elif _counted_apart(orders):
        limits["processes"] = None
    return Watch(os.getpid(), limits, own=2 if alone else 0, folder=orders["folder"] if among_others else None)


def _counted_apart(orders: Orders) -> bool:
    """Whether RLIMIT_NPROC counts what the cage has started, and nothing else that the user runs."""
    if orders["was_root"]:
        return bool(orders["isolation"] != "none")
    release = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2] if part.isdigit())
    return bool(orders["isolation"] == "namespaces" and release >= COUNTS_PER_NAMESPACE)


def _bury_all_but(child: int) -> None:
    """Who lost its parent is ours to bury. The program itself is waited for elsewhere."""
    with contextlib.suppress(ChildProcessError):
        while found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if found.si_pid == child:
                return
            os.waitpid(found.si_pid, 0)


def _step_aside(orders: Orders, *, signals: tuple[signal.Signals, ...], notes: bool = True) -> None:
    """Hold none of the program's pipes, and leave to it what its group is signalled."""
    for number in signals:
        signal.signal(number, signal.SIG_IGN)
    for descriptor in (0, 1, 2, *((orders["notes"],) if notes else ())):
        with contextlib.suppress(OSError):
            os.close(descriptor)


# ----------------------------------------------------------------------------------------------- the ways to lock in


def _lock_in(orders: Orders) -> None:
    os.umask(0o022)  # what is made here is for the program, which may be another user
    match orders["isolation"]:
        case "none":
            os.chdir(orders["folder"])
            _limit(orders)
        case "namespaces":
            _into_a_world_of_its_own(orders)
            _limit(orders)
            _for_good(orders, [namespaces.FOLDER], alone=True)
        case "landlock":
            own_user = _change_user(orders)
            os.chdir(orders["folder"])
            _limit(orders)
            if landlock.version() < landlock.SCOPES_SINCE and not own_user:
                raise Refused(
                    f"Landlock of this kernel (version {landlock.version()}) does not keep a process of the same user "
                    f"from signalling others; it takes version {landlock.SCOPES_SINCE}, or root to change the user id"
                )
            _for_good(orders, [orders["folder"]], alone=False)
        case other:
            raise Refused(f"no such isolation: {other}")


def _into_a_world_of_its_own(orders: Orders) -> None:
    """Returns in the first process of that world; the one that was started stays outside and waits for it."""
    namespaces.leave()
    lifeline, held = os.pipe()
    child = os.fork()
    if child:
        os.close(lifeline)
        _wait_outside(orders, child)
    os.close(held)
    user, group = (orders["user"], orders["user"]) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    size = orders["limits"].get("folder_bytes") or 64 * 1024 * 1024
    namespaces.furnish(orders["root"], orders["read"], orders["devices"], user=user, group=group, size=size)
    _change_user(orders)
    _die_with(lifeline)


def _wait_outside(orders: Orders, child: int) -> NoReturn:
    """Lives as long as the world does, and ends as its first process did; killed, it takes all along."""
    _step_aside(orders, signals=(signal.SIGTERM,))  # those inside hear it themselves
    _, status = os.waitpid(child, 0)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _change_user(orders: Orders) -> bool:
    """Whether it is another one than that of the wrapper: root always becomes somebody else."""
    user = orders["user"]
    if os.geteuid() != 0:
        return False
    if orders["isolation"] == "landlock":
        os.chown(orders["folder"], user, user)
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    system.die_with_parent()
    return True


def _limit(orders: Orders) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name, what in LIMITS.items():
        if (wanted := orders["limits"].get(name)) is not None:
            _, most = resource.getrlimit(what)
            least = int(wanted) if most == resource.RLIM_INFINITY else min(int(wanted), most)
            # A program that has used up its time is told, and a second later killed.
            resource.setrlimit(what, (least, least + 1 if what == resource.RLIMIT_CPU and most < 0 else least))
    if (processes := orders["limits"].get("processes")) is not None and _counted_apart(orders):
        _, most = resource.getrlimit(resource.RLIMIT_NPROC)
        least = int(processes) if most == resource.RLIM_INFINITY else min(int(processes), most)
        resource.setrlimit(resource.RLIMIT_NPROC, (least, least))


def _for_good(orders: Orders, write: list[str], *, alone: bool) -> None:
    """What is given up here cannot be had again, by nobody who is started from here on."""
    system.drop_capabilities()
    system.gain_nothing()
    if landlock.version():
        read = ["/"] if alone else orders["read"]
        landlock.restrict(read, write, orders["devices"])
    seccomp.restrict(alone=alone)


# ------------------------------------------------------------------------------------------------- what comes then


def _try_to_get_out(trial: dict[str, Any]) -> None:
    """What an untrusted program might try first. The cage that lets one of these happen is none."""
    for path in trial["unreadable"]:
        with contextlib.suppress(OSError):
            Path(path).read_bytes()
            raise Refused(f"{path} can be read")
        with contextlib.suppress(OSError), Path(path).open("ab"):
            raise Refused(f"{path} can be written")
    with contextlib.suppress(OSError):
        if os.getpid() != 1:  # in a world of its own, that number is nobody or one of its own
            os.kill(trial["pid"], 0)
            raise Refused("the wrapper can be signalled")
    for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX):
        with contextlib.suppress(OSError):
            socket.socket(family, socket.SOCK_STREAM).close()
            raise Refused("sockets can be made")


def _become(orders: Orders) -> NoReturn:
    alone = orders["isolation"] == "namespaces"
    if alone:
        child = os.fork()
        if child:
            _be_first(orders, child)
        system.die_with_parent()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores some, which its child would inherit
    folder = namespaces.FOLDER if alone else orders["folder"]
    environment = {**os.environ, **({} if orders["isolation"] == "none" else {"HOME": folder, "TMPDIR": folder})}
    os.set_inheritable(orders["notes"], False)
    os.umask(0o077)
    try:
        os.execvpe(orders["command"][0], orders["command"], environment)  # noqa: S606
    except OSError as error:
        note(orders, cannot_start=f"{orders['command'][0]}: {_words(error)}{_why_not(orders, error)}")
        os._exit(CANNOT_START)


def _why_not(orders: Orders, error: OSError) -> str:
    if orders["was_root"] and isinstance(error, PermissionError):
        return " (root runs it as another user: it must lie where every user can run it)"
    return ""


def _be_first(orders: Orders, child: int) -> NoReturn:
    """Pass on what the wrapper signals, bury who dies, and tell how the program ended."""

    def pass_on(number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, number)

    signal.signal(signal.SIGTERM, pass_on)
    for descriptor in (0, 1, 2):
        with contextlib.suppress(OSError):
            os.close(descriptor)
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            note(orders, ended=code)
            os._exit(code & 0xFF if code >= 0 else 128 - code)
