"""The entry of the sandbox: a process that restricts itself and then becomes the program of a task.

Its spec is one JSON argument, made by `sandbox_spec` in the wrapper. If it cannot restrict itself, it reports that on
the descriptor `status_fd` and starts nothing. A supervisor stays outside the sandbox and kills all of it when it
exceeds a limit or the wrapper ends. In namespaces, a first process stays as well: it forwards signals and reports how
the program ended. When it ends, the kernel kills what is left in its PID namespace.
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
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from . import landlock, namespaces, seccomp, system
from .watch import Watch, can_see_children

REFUSED = 97
CANNOT_START = 98
LIMITS = {
    "cpu_s": resource.RLIMIT_CPU,
    "memory_bytes": resource.RLIMIT_AS,
    "file_bytes": resource.RLIMIT_FSIZE,
    "files": resource.RLIMIT_NOFILE,
}
COUNTED_TOGETHER = ("memory_bytes", "processes")  # over all processes of a program
CHECK_MS = 50
COUNTS_PER_NAMESPACE = (5, 14)  # since this Linux, RLIMIT_NPROC counts the processes of a user namespace

Spec = dict[str, Any]


class Refused(Exception):
    """This machine cannot isolate the program."""


def main() -> None:
    spec: Spec = json.loads(sys.argv[1])
    try:
        system.die_with_parent()
        if os.getppid() != spec["parent"]:
            os._exit(REFUSED)  # the wrapper has ended
        if spec["isolation"] != "none" or any(spec["limits"].get(name) for name in COUNTED_TOGETHER):
            _fork_under_supervisor(spec)
        _enter_sandbox(spec)
        if spec.get("trial"):
            _try_to_escape(spec["trial"])
    except (OSError, Refused) as error:
        report_status(spec, refused=f"{spec['isolation']}: {_message(error)}")
        os._exit(REFUSED)
    _exec_program(spec)


def _message(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


def report_status(spec: Spec, **status: object) -> None:
    with contextlib.suppress(OSError):
        os.write(spec["status_fd"], json.dumps(status).encode() + b"\n")


# ----------------------------------------------------------------------------------------------- the supervisor


def _fork_under_supervisor(spec: Spec) -> None:
    """Fork. Returns in the child; this process stays as its supervisor."""
    if not spec.get("group") and not can_see_children():
        raise Refused(
            "this kernel does not list the children of a process (CONFIG_PROC_CHILDREN), and there is no control "
            "group: what all processes of a program use together cannot be bounded"
        )
    system.become_subreaper()
    lifeline = _fork(spec, _supervise)
    if spec.get("group"):
        Path(spec["group"], "cgroup.procs").write_text("0", encoding="ascii")
    _die_with(lifeline)


def _fork(spec: Spec, stay: Callable[[Spec, int], NoReturn]) -> int:
    """Fork. Returns in the child, with a pipe whose other end this process holds while it runs `stay`."""
    lifeline, held = os.pipe()
    child = os.fork()
    if child:
        os.close(lifeline)
        stay(spec, child)
    os.close(held)
    return lifeline


def _die_with(lifeline: int) -> None:
    """Die with the parent from now on. The parent holds the other end of `lifeline`: a closed pipe shows that it was
    killed before the kernel knew of this."""
    system.die_with_parent()
    watch = select.poll()
    watch.register(lifeline, select.POLLHUP)
    if watch.poll(0):
        os._exit(REFUSED)
    os.close(lifeline)


def _supervise(spec: Spec, child: int) -> NoReturn:
    """Wait until the program ends, or kill all of it when it exceeds a limit."""
    signal.signal(signal.SIGHUP, lambda *_: os.killpg(0, signal.SIGKILL))
    system.die_with_parent(signal.SIGHUP)
    if os.getppid() != spec["parent"]:
        os.killpg(0, signal.SIGKILL)
    _detach(spec, signals=(signal.SIGTERM, signal.SIGINT), status_fd=False)
    watch, ended = _make_watch(spec), select.poll()
    ended.register(os.pidfd_open(child), select.POLLIN)
    while not ended.poll(CHECK_MS):
        if reason := watch.check():
            report_status(spec, killed=reason)
            watch.kill_all()
            os.killpg(0, signal.SIGKILL)
        _reap_all_but(child)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if spec["isolation"] != "namespaces":  # there the first process reports the exit code
        report_status(spec, ended=code)
    os._exit(code & 0xFF if code >= 0 else 128 - code)


def _make_watch(spec: Spec) -> Watch:
    """A watch for what the kernel does not count. The kernel counts memory and processes in a control group, files on a
    file system of the program's own, and processes of a user or user namespace of its own."""
    in_namespaces, in_landlock = (spec["isolation"] == way for way in ("namespaces", "landlock"))
    limits = dict(spec["limits"])
    if spec.get("group"):
        limits["memory_bytes"] = limits["processes"] = None
    elif _kernel_counts_processes(spec):
        limits["processes"] = None
    return Watch(os.getpid(), limits, own=2 if in_namespaces else 0, folder=spec["folder"] if in_landlock else None)


def _kernel_counts_processes(spec: Spec) -> bool:
    """Whether RLIMIT_NPROC counts the processes of this sandbox, and no others of the same user."""
    if spec["was_root"]:
        return bool(spec["isolation"] != "none")
    release = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2] if part.isdigit())
    return bool(spec["isolation"] == "namespaces" and release >= COUNTS_PER_NAMESPACE)


def _reap_all_but(child: int) -> None:
    """Reap adopted orphans. The program itself is waited for elsewhere."""
    with contextlib.suppress(ChildProcessError):
        while found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if found.si_pid == child:
                return
            os.waitpid(found.si_pid, 0)


def _detach(spec: Spec, *, signals: tuple[signal.Signals, ...], status_fd: bool = True) -> None:
    """Close the program's pipes, and ignore signals that are meant for the program."""
    for number in signals:
        signal.signal(number, signal.SIG_IGN)
    for descriptor in (0, 1, 2, *((spec["status_fd"],) if status_fd else ())):
        with contextlib.suppress(OSError):
            os.close(descriptor)


# ----------------------------------------------------------------------------------------------- isolation


def _enter_sandbox(spec: Spec) -> None:
    os.umask(0o022)  # files made here are for the program, which may run as another user
    match spec["isolation"]:
        case "none":
            os.chdir(spec["folder"])
            _limit(spec)
        case "namespaces":
            _enter_namespaces(spec)
            _limit(spec)
            _drop_privileges(spec, [namespaces.FOLDER], in_namespaces=True)
        case "landlock":
            own_user = _change_user(spec)
            os.chdir(spec["folder"])
            _limit(spec)
            if landlock.version() < landlock.SCOPES_SINCE and not own_user:
                raise Refused(
                    f"Landlock of this kernel (version {landlock.version()}) does not keep a process from signalling "
                    f"others of the same user; use version {landlock.SCOPES_SINCE}, or root to change the user id"
                )
            _drop_privileges(spec, [spec["folder"]], in_namespaces=False)
        case other:
            raise Refused(f"there is no isolation {other}")


def _enter_namespaces(spec: Spec) -> None:
    """Fork into new namespaces. Returns in their first process; this process stays outside and waits for it."""
    namespaces.unshare()
    lifeline = _fork(spec, _wait_outside)
    user, group = (spec["user"], spec["user"]) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    size = spec["limits"].get("folder_bytes") or 64 * 1024 * 1024
    namespaces.build_root(spec["root"], spec["read"], spec["devices"], user=user, group=group, size=size)
    _change_user(spec)
    _die_with(lifeline)


def _wait_outside(spec: Spec, child: int) -> NoReturn:
    """Wait for the first process, and end with its exit code. If this process is killed, all of them are."""
    _detach(spec, signals=(signal.SIGTERM,))  # the processes inside get it themselves
    _, status = os.waitpid(child, 0)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _change_user(spec: Spec) -> bool:
    """Root always becomes another user. Returns whether the user changed."""
    user = spec["user"]
    if os.geteuid() != 0:
        return False
    if spec["isolation"] == "landlock":
        os.chown(spec["folder"], user, user)
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    system.die_with_parent()
    return True


def _limit(spec: Spec) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    counted = {"processes": resource.RLIMIT_NPROC} if _kernel_counts_processes(spec) else {}
    for name, what in (LIMITS | counted).items():
        if (wanted := spec["limits"].get(name)) is not None:
            _, most = resource.getrlimit(what)
            least = int(wanted) if most == resource.RLIM_INFINITY else min(int(wanted), most)
            # A program that has used up its CPU time gets SIGXCPU, and a second later SIGKILL.
            resource.setrlimit(what, (least, least + 1 if what == resource.RLIMIT_CPU and most < 0 else least))


def _drop_privileges(spec: Spec, write: list[str], *, in_namespaces: bool) -> None:
    """Give up rights that no process started from here on can get back."""
    system.drop_capabilities()
    system.set_no_new_privs()
    if landlock.version():
        read = ["/"] if in_namespaces else spec["read"]
        landlock.restrict(read, write, spec["devices"])
    seccomp.restrict(in_namespaces=in_namespaces)


# ------------------------------------------------------------------------------------------------- the program


def _try_to_escape(trial: dict[str, Any]) -> None:
    """Try what an untrusted program might try first. Raises Refused if the sandbox lets one of these through."""
    for path in trial["unreadable"]:
        with contextlib.suppress(OSError):
            Path(path).read_bytes()
            raise Refused(f"{path} can be read")
        with contextlib.suppress(OSError), Path(path).open("ab"):
            raise Refused(f"{path} can be written")
    with contextlib.suppress(OSError):
        if os.getpid() != 1:  # in a PID namespace, that id is free or belongs to a process inside
            os.kill(trial["pid"], 0)
            raise Refused("the wrapper can be signalled")
    for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX):
        with contextlib.suppress(OSError):
            socket.socket(family, socket.SOCK_STREAM).close()
            raise Refused("sockets can be made")


def _exec_program(spec: Spec) -> NoReturn:
    in_namespaces = spec["isolation"] == "namespaces"
    if in_namespaces:
        child = os.fork()
        if child:
            _run_as_init(spec, child)
        system.die_with_parent()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores some of them, and a program inherits that
    folder = namespaces.FOLDER if in_namespaces else spec["folder"]
    environment = {**os.environ, **({} if spec["isolation"] == "none" else {"HOME": folder, "TMPDIR": folder})}
    os.set_inheritable(spec["status_fd"], False)
    os.umask(0o077)
    try:
        os.execvpe(spec["command"][0], spec["command"], environment)  # noqa: S606
    except OSError as error:
        wrong_place = spec["was_root"] and isinstance(error, PermissionError)
        hint = " (root runs it as another user: it must lie where every user can run it)" if wrong_place else ""
        report_status(spec, cannot_start=f"{spec['command'][0]}: {_message(error)}{hint}")
        os._exit(CANNOT_START)


def _run_as_init(spec: Spec, child: int) -> NoReturn:
    """Forward the wrapper's signals, reap orphans, and report how the program ended."""

    def forward(number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, number)

    signal.signal(signal.SIGTERM, forward)
    _detach(spec, signals=(), status_fd=False)
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            report_status(spec, ended=code)
            os._exit(code & 0xFF if code >= 0 else 128 - code)
