"""A process that locks itself in as it was told, and then becomes the program of a task.

What it is told is one JSON text in its arguments; `Orders` in the wrapper writes it. If it cannot lock itself in, it
says so on the descriptor `notes` and starts nothing. As the first process of a world of its own it stays, to pass on
signals and to tell how the program ended: when it goes, the kernel ends all that is left there.
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

REFUSED = 97
CANNOT_START = 98
LIMITS = {
    "cpu_s": resource.RLIMIT_CPU,
    "memory_bytes": resource.RLIMIT_AS,
    "file_bytes": resource.RLIMIT_FSIZE,
    "processes": resource.RLIMIT_NPROC,
    "files": resource.RLIMIT_NOFILE,
}

Orders = dict[str, Any]


class Refused(Exception):
    """It cannot be locked in."""


def main() -> None:
    orders: Orders = json.loads(sys.argv[1])
    try:
        system.die_with_parent()
        if os.getppid() != orders["parent"]:
            os._exit(REFUSED)  # nobody waits for it any more
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
    system.die_with_parent()
    watch = select.poll()
    watch.register(lifeline, select.POLLHUP)
    if watch.poll(0):  # the one outside was killed before we could ask to go with it
        os._exit(REFUSED)
    os.close(lifeline)


def _wait_outside(orders: Orders, child: int) -> NoReturn:
    """Lives as long as the world does, and ends as its first process did; killed, it takes all along."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # its group is signalled; those inside hear it themselves
    for descriptor in (0, 1, 2, orders["notes"]):
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _, status = os.waitpid(child, 0)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _change_user(orders: Orders) -> bool:
    """Whether it is another one than that of the wrapper: root can, if others reach this Python at all."""
    user = orders["user"]
    if os.geteuid() != 0 or user is None:
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


def _for_good(orders: Orders, write: list[str], *, alone: bool) -> None:
    """What is given up here cannot be had again, by nobody who is started from here on."""
    system.drop_capabilities()
    system.gain_nothing()
    if landlock.version():
        read = ["/"] if alone else orders["read"]
        landlock.restrict(read, write, orders["devices"])
    seccomp.refuse(among_others=not alone)


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
        note(orders, cannot_start=f"{orders['command'][0]}: {_words(error)}")
        os._exit(CANNOT_START)


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
