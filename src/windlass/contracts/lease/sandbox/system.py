"""Linux system calls that Python has no function for."""

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
    """Call a function of the C library. Raises OSError."""
    return _checked(getattr(_libc, name)(*arguments), name)


def syscall(number: int, *arguments: object, name: str) -> int:
    """Make a system call that the C library has no function for. Integers are passed as machine words."""
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
    """Signal this process when the thread that started it ends. Changing the user id undoes this. Linux only."""
    if sys.platform == "linux":
        prctl(PR_SET_PDEATHSIG, number, name="pdeathsig")


def become_subreaper() -> None:
    """Make this process the parent of its descendants that lose their own parent."""
    prctl(PR_SET_CHILD_SUBREAPER, 1, name="child_subreaper")


def set_no_new_privs() -> None:
    """No program started from now on gets more rights than this process: setuid has no effect."""
    prctl(PR_SET_NO_NEW_PRIVS, 1, name="no_new_privs")


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Data(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def drop_capabilities() -> None:
    """Drop all capabilities permanently."""
    for capability in range(CAPABILITIES_MAX):
        try:
            prctl(PR_CAPBSET_DROP, capability, name="capbset")
        except OSError:
            break  # past the last capability of this kernel, or this process holds none that it could drop
    nothing = (_Data * 2)()
    call("capset", ctypes.byref(_Header(CAPABILITY_VERSION_3, 0)), ctypes.byref(nothing))
