"""Landlock: a process gives up access to every file except those below some paths, for itself and all that it starts.

It also gives up TCP, and signals and abstract sockets to processes outside. This needs no privileges. Other layers
cover what Landlock does not: UDP, sockets in the file system, chmod.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Iterable

from .system import syscall

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # the same on every machine
VERSION, PATH_BENEATH = 1, 1

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
TRUNCATE, IOCTL_DEV = 1 << 14, 1 << 15
ALL_BY_VERSION = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
MAKE_DEVICES = 1 << 6 | 1 << 11
READ = EXECUTE | READ_FILE | READ_DIR
TCP, SCOPES = 0b11, 0b11
NETWORK_SINCE, SCOPES_SINCE = 4, 6


class _Ruleset(ctypes.Structure):
    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


def version() -> int:
    """The Landlock version of this kernel; 0 if it has none."""
    try:
        return syscall(CREATE_RULESET, None, 0, VERSION, name="landlock")
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM):
            return 0
        raise


def restrict(read: Iterable[str], write: Iterable[str], devices: Iterable[str] = ()) -> int:
    """Allow only these files to read and run, folders to write to, and devices. Returns the Landlock version."""
    known = version()
    if not known:
        raise OSError(errno.ENOSYS, "this kernel has no Landlock")
    every = max(mask for since, mask in ALL_BY_VERSION.items() if since <= known)
    attributes = _Ruleset(every, TCP if known >= NETWORK_SINCE else 0, SCOPES if known >= SCOPES_SINCE else 0)
    size = 8 if known < NETWORK_SINCE else 16 if known < SCOPES_SINCE else 24
    ruleset = syscall(CREATE_RULESET, ctypes.byref(attributes), size, 0, name="landlock_create_ruleset")
    try:
        for path in read:
            _allow(ruleset, path, READ & every)
        for path in devices:
            _allow(ruleset, path, (READ_FILE | WRITE_FILE | IOCTL_DEV) & every)
        for path in write:
            _allow(ruleset, path, every & ~MAKE_DEVICES)
        syscall(RESTRICT_SELF, ruleset, 0, name="landlock_restrict_self")
    finally:
        os.close(ruleset)
    return known


def _allow(ruleset: int, path: str, access: int) -> None:
    try:
        folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        return
    try:
        if not stat.S_ISDIR(os.fstat(folder).st_mode):
            access &= OF_FILES
        rule = _Beneath(access, folder)
        syscall(ADD_RULE, ruleset, PATH_BENEATH, ctypes.byref(rule), 0, name="landlock_add_rule")
    finally:
        os.close(folder)
