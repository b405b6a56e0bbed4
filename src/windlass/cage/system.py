"""Calls to the Linux kernel that Python has no name for. What they are for is not known here."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import sys

PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, PR_CAPBSET_DROP = 1, 38, 22, 24
PR_SET_CHILD_SUBREAPER = 36
CAPABILITY_VERSION_3 = 0x20080522
CAPABILITIES_MAX = 64
MACHINE = platform.machine()

_libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: object) -> int:
    """A function of the C library. Raises OSError."""
    return _checked(getattr(_libc, name)(*arguments), name)


def syscall(number: int, *arguments: object, name: str) -> int:
    """One that the C library has no function for. Numbers are passed as words of the machine."""
    words = [ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments]
    return _checked(_libc.syscall(ctypes.c_long(number), *words), name)


def prctl(option: int, *arguments: int, name: str) -> int:
    words = [ctypes.c_ulong(argument) for argument in (*arguments, 0, 0, 0, 0)[:4]]
    return _checked(_libc.prctl(ctypes.c_int(option), *words), name)


def _checked(answer: int, name: str) -> int:
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return int(answer)


def die_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Of the thread that started this process, to be exact. A change of the user id undoes it. Only Linux can."""
    if sys.platform != "linux":
        return
    prctl(PR_SET_PDEATHSIG, number, name="pdeathsig")


def take_orphans() -> None:
    """Whoever loses its parent among those that are started from here on becomes a child of this process."""
    prctl(PR_SET_CHILD_SUBREAPER, 1, name="child_subreaper")


def gain_nothing() -> None:
    """No program that is started from here on has more rights than this process: setuid does nothing."""
    prctl(PR_SET_NO_NEW_PRIVS, 1, name="no_new_privs")


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Data(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def drop_capabilities() -> None:
    """All of them, for good."""
    for capability in range(CAPABILITIES_MAX):
        try:
            prctl(PR_CAPBSET_DROP, capability, name="capbset")
        except OSError:
            break  # past the last one that this kernel has, or none may be dropped since none is held
    nothing = (_Data * 2)()
    call("capset", ctypes.byref(_Header(CAPABILITY_VERSION_3, 0)), ctypes.byref(nothing))
