"""Linux namespaces for one program: no network, no other processes, and its own root file system.

The root holds only system programs, the paths that the program may read, and one folder in memory. Needs root or user
namespaces. Killing the first process of the PID namespace kills all processes in it.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from .system import call, syscall

NEW_MOUNTS, NEW_GROUPS, NEW_NAMES, NEW_IPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
NEW_USER, NEW_PROCESSES, NEW_NETWORK = 0x10000000, 0x20000000, 0x40000000
EVERYTHING = NEW_MOUNTS | NEW_GROUPS | NEW_NAMES | NEW_IPC | NEW_PROCESSES | NEW_NETWORK

NOSUID, NODEV, NOEXEC, BIND, RECURSIVE, PRIVATE = 0x2, 0x4, 0x8, 0x1000, 0x4000, 0x40000
MOUNT_SETATTR, AT_HERE, AT_RECURSIVE = 442, -100, 0x8000
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV, ATTR_NOEXEC = 0x1, 0x2, 0x4, 0x8
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
DETACH = 2
FOLDER = "/task"
THROUGH_ONLY = 0o111


class _Attributes(ctypes.Structure):
    _fields_ = (("set", ctypes.c_uint64), ("clear", ctypes.c_uint64), ("spread", ctypes.c_uint64),
                ("user", ctypes.c_uint64))  # fmt: skip


def unshare() -> None:
    """Enter new namespaces. The next child is the first process of the new PID namespace."""
    user, group = os.geteuid(), os.getegid()
    call("unshare", EVERYTHING if user == 0 else EVERYTHING | NEW_USER)
    if user != 0:
        Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="ascii")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="ascii")


def build_root(base: str, read: Iterable[str], devices: Iterable[str], *, user: int, group: int, size: int) -> None:
    """Build the new root at `base`, an empty folder, and move into it. The old root cannot be reached afterwards."""
    _mount(None, "/", None, RECURSIVE | PRIVATE)
    _mount("tmpfs", base, "tmpfs", NOSUID | NODEV, "size=4m,nr_inodes=20k,mode=755")
    outermost = _outermost(read)
    for path in outermost:
        _bind(base, path, ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV)
    for path in devices:
        _bind(base, path, ATTR_NOSUID | ATTR_NOEXEC)
    folder = base + FOLDER
    Path(folder).mkdir()
    _mount("tmpfs", folder, "tmpfs", NOSUID | NODEV, f"size={size},nr_inodes=100k,mode=700,uid={user},gid={group}")
    if not (temporary := Path(base, "tmp")).exists():  # a path to read may be below it
        temporary.symlink_to(FOLDER.lstrip("/"))
    for above in {above for path in outermost for above in Path(path).parents} - {Path("/")}:
        if (made := Path(f"{base}{above}")).is_dir():
            made.chmod(THROUGH_ONLY)  # hides the names in it, for example in a home
    Path(f"{base}/proc").mkdir(exist_ok=True)
    with suppress(OSError):  # a container that hides parts of its own /proc may not mount a new one: do without
        _mount("proc", f"{base}/proc", "proc", NOSUID | NODEV | NOEXEC, "subset=pid")
    os.chdir(base)
    syscall(PIVOT_ROOT[os.uname().machine], b".", b".", name="pivot_root")
    call("umount2", b".", DETACH)
    os.chdir("/")
    _attributes("/", ATTR_RDONLY, 0)
    os.chdir(FOLDER)


def _outermost(paths: Iterable[str]) -> list[str]:
    """The paths that are not below another one of them, sorted."""
    kept: list[str] = []
    for path in sorted(set(paths)):
        if not any(path.startswith(f"{above.rstrip('/')}/") for above in kept):
            kept.append(path)
    return kept


def _bind(base: str, path: str, attributes: int) -> None:
    """Make `path` available under the same name below `base`, if it exists."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    target = Path(base + path)
    target.parent.mkdir(parents=True, exist_ok=True)
    if stat.S_ISLNK(mode):
        target.symlink_to(Path(path).readlink())
        return
    if stat.S_ISDIR(mode):
        target.mkdir(exist_ok=True)
    else:
        target.touch()
    _mount(path, str(target), None, BIND | RECURSIVE)
    _attributes(str(target), attributes, AT_RECURSIVE)


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    names = [None if name is None else os.fsencode(name) for name in (source, target, kind, options)]
    try:
        call("mount", *names[:3], ctypes.c_ulong(flags), names[3])
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror} ({target})") from None


def _attributes(path: str, attributes: int, flags: int) -> None:
    wanted = _Attributes(attributes, 0, 0, 0)
    syscall(
        MOUNT_SETATTR, AT_HERE, os.fsencode(path), flags, ctypes.byref(wanted), ctypes.sizeof(wanted),
        name="mount_setattr",
    )  # fmt: skip
