"""What all processes of a sandbox use together: memory, their number, the files in their folder. Read from /proc.

It checks the limits that the kernel counts only per process or per user. The watching process is outside the sandbox
and an ancestor of all of it, so processes that lose their parent become its children.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
from collections.abc import Iterator
from itertools import chain
from typing import Any

PAGE = os.sysconf("SC_PAGE_SIZE")
DENIED_MAX = 10  # in a row: between fork and exec a process may be unreadable for a moment
FILES_MAX = 100_000
OPEN_FILES_EVERY = 5  # checks: open files cost more than the rest
SHARED = ("/dev/zero", "/SYSV", "/memfd:")  # mappings whose memory stays when their pages are unmapped
DELETED = " (deleted)"


def can_see_children() -> bool:
    """Whether /proc lists the children of a process."""
    return os.path.exists(f"/proc/self/task/{os.getpid()}/children")  # noqa: PTH110


class Hidden(Exception):
    """A process of the sandbox cannot be inspected."""


class Watch:
    """The limits of one sandbox. `own` is the number of our processes above the program, which do not count."""

    def __init__(self, top: int, limits: dict[str, Any], *, own: int, folder: str | None) -> None:
        self._top, self._own, self._folder = top, own, folder
        self._memory, self._processes = limits.get("memory_bytes"), limits.get("processes")
        self._files = limits.get("folder_bytes") if folder is not None else None
        self._checks = self._denied = self._unlinked = 0

    def check(self) -> str | None:
        """The limit that the sandbox exceeds, or None."""
        self._checks += 1
        found = list(self._members())
        if self._processes is not None and (count := sum(threads for _, threads in found)) > self._processes:
            return f"it had {count} processes and threads, more than {self._processes}"
        pids = [pid for pid, _ in found]
        try:
            reason = self._too_much_memory(pids) or self._too_many_files(pids)
        except Hidden as error:
            self._denied += 1
            return str(error) if self._denied >= DENIED_MAX else None
        if self._checks % OPEN_FILES_EVERY == 0:
            self._denied = 0
        return reason

    def kill_all(self) -> None:
        """Kill all processes, including those that left the process group."""
        for pid, _ in self._members():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    def _members(self) -> Iterator[tuple[int, int]]:
        """Each process of the program with the number of its threads."""
        below = [(self._top, 0)]
        while below:
            pid, depth = below.pop()
            threads = _listed(f"/proc/{pid}/task")
            if depth > self._own and threads:
                yield pid, len(threads)
            for thread in threads:
                below += [(int(child), depth + 1) for child in _text(f"/proc/{pid}/task/{thread}/children").split()]

    def _too_much_memory(self, pids: list[int]) -> str | None:
        """Tries cheap upper bounds first, and reads exact numbers only if those exceed the limit."""
        if self._memory is None or sum(_pages(pid) for pid in pids) * PAGE <= self._memory:
            return None
        shared = sum({inode: size for pid in pids for inode, size in _shared(pid)}.values())
        if shared + sum(_anonymous(pid, "status", "RssAnon") for pid in pids) <= self._memory:
            return None
        if shared + sum(_anonymous(pid, "smaps_rollup", "Pss_Anon") for pid in pids) <= self._memory:
            return None  # RSS counts pages that processes share after a fork once for each
        return f"it used more than {self._memory} bytes of memory, all of its processes together"

    def _too_many_files(self, pids: list[int]) -> str | None:
        """On the machine's disk nothing else limits the number and the total size of files."""
        if self._files is None or self._folder is None:
            return None
        if self._checks % OPEN_FILES_EVERY == 0:
            unlinked = {inode: size for pid in pids for inode, size in _unlinked(pid, self._folder)}
            self._unlinked = sum(unlinked.values())
        used = 0
        for count, size in enumerate(chain([self._unlinked], _sizes(self._folder))):
            used += size
            if used > self._files:
                return f"it kept more than {self._files} bytes in files"
            if count > FILES_MAX:
                return f"it made more than {FILES_MAX} files"
        return None


# ------------------------------------------------------------------------------------------------- reading /proc


def _text(path: str) -> str:
    """The file's text; empty for a process that has ended."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            return file.read()
    except PermissionError:
        raise Hidden("one of its processes hides from the limits of its sandbox") from None
    except OSError:
        return ""


def _listed(folder: str) -> list[str]:
    with contextlib.suppress(OSError):
        return os.listdir(folder)  # noqa: PTH208
    return []


def _pages(pid: int) -> int:
    """Pages of virtual memory."""
    return int((_text(f"/proc/{pid}/statm") or "0").split()[0])


def _anonymous(pid: int, file: str, name: str) -> int:
    """Anonymous memory only: the kernel can drop pages of files."""
    lines = _text(f"/proc/{pid}/{file}").splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), 0)


def _mapped(pid: int) -> Iterator[tuple[str, int, str]]:
    """Device and inode, size and name of each mapping."""
    for line in _text(f"/proc/{pid}/maps").splitlines():
        place, _, _, device, inode, *name = line.split(maxsplit=5)
        if name and inode != "0":
            first, last = place.split("-")
            yield f"{device}:{inode}", int(last, 16) - int(first, 16), name[0]


def _shared(pid: int) -> Iterator[tuple[str, int]]:
    """Shared memory, which stays when its pages are unmapped: all of it counts, touched or not."""
    return ((inode, size) for inode, size, name in _mapped(pid) if name.startswith(SHARED))


def _unlinked(pid: int, below: str) -> Iterator[tuple[str, int]]:
    """Deleted files, which use space as long as a process has them open or mapped."""
    folder = f"/proc/{pid}/fd"
    try:
        numbers = os.listdir(folder)  # noqa: PTH208
    except PermissionError:
        raise Hidden("one of its processes hides from the limits of its sandbox") from None
    except OSError:
        return
    for number in numbers:
        with contextlib.suppress(OSError):
            opened = os.stat(f"{folder}/{number}")  # noqa: PTH116
            if stat.S_ISREG(opened.st_mode) and opened.st_nlink == 0:
                yield f"{os.major(opened.st_dev):02x}:{os.minor(opened.st_dev):02x}:{opened.st_ino}", _size(opened)
    for inode, size, name in _mapped(pid):
        if name.endswith(DELETED) and name.startswith(f"{below}/"):
            yield inode, size


def _size(found: os.stat_result) -> int:
    return found.st_blocks * 512


def _sizes(folder: str) -> Iterator[int]:
    """Sizes of everything below a folder, subfolders included."""
    below = [folder]
    while below:
        try:
            with os.scandir(below.pop()) as entries:
                for entry in entries:
                    with contextlib.suppress(OSError):
                        if entry.is_dir(follow_symlinks=False):
                            below.append(entry.path)
                        yield _size(entry.stat(follow_symlinks=False))
        except OSError:
            continue
