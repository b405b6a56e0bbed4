"""What all processes of a cage use together: memory, their number, the files in their folder. Read from /proc.

For what the kernel counts only per process or per user. Whoever looks is outside the cage and above all of it, so that
whatever loses its parent becomes a child of the one who looks.
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
LOOKS_DENIED = 10  # in a row: between its start and the program a process may hide for a moment
FILES_MAX = 100_000
OPEN_FILES_EVERY = 5  # looks: they are more work than the rest
SHARED = ("/dev/zero", "/SYSV", "/memfd:")  # mappings of memory that stays when the pages are given up
DELETED = " (deleted)"


def can_look() -> bool:
    """Whether this kernel tells who started whom, and /proc is there."""
    return os.path.exists(f"/proc/self/task/{os.getpid()}/children")  # noqa: PTH110


class Hidden(Exception):
    """A process of the cage cannot be looked at."""


class Watch:
    """One cage. `own` are the processes above the program that belong to us; they are not counted."""

    def __init__(self, top: int, limits: dict[str, Any], *, own: int, folder: str | None) -> None:
        self._top, self._own, self._folder = top, own, folder
        self._memory, self._processes = limits.get("memory_bytes"), limits.get("processes")
        self._files = limits.get("folder_bytes") if folder is not None else None
        self._looks = self._denied = self._unlinked = 0

    def look(self) -> str | None:
        """Why it has to be ended, if it has to be."""
        self._looks += 1
        found = list(self._members())
        if self._processes is not None and (count := sum(threads for _, threads in found)) > self._processes:
            return f"it had {count} processes and threads, more than {self._processes}"
        pids = [pid for pid, _ in found]
        try:
            why = self._too_much_memory(pids) or self._too_many_files(pids)
        except Hidden as error:
            self._denied += 1
            return str(error) if self._denied >= LOOKS_DENIED else None
        if self._looks % OPEN_FILES_EVERY == 0:
            self._denied = 0
        return why

    def kill_all(self) -> None:
        """Also who has left the group in which others are killed."""
        for pid, _ in self._members():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    # ----------------------------------------------------------------------------------------- processes

    def _members(self) -> Iterator[tuple[int, int]]:
        """Each process below the top one, without our own, and how many threads it has."""
        below = [(self._top, 0)]
        while below:
            pid, depth = below.pop()
            threads = _listed(f"/proc/{pid}/task")
            if depth > self._own and threads:
                yield pid, len(threads)
            for thread in threads:
                below += [(int(child), depth + 1) for child in _text(f"/proc/{pid}/task/{thread}/children").split()]

    # ----------------------------------------------------------------------------------------- memory

    def _too_much_memory(self, pids: list[int]) -> str | None:
        """The cheap questions first: who cannot have too much is not asked for more."""
        if self._memory is None or sum(_virtual(pid) for pid in pids) <= self._memory:
            return None
        shared = sum({inode: size for pid in pids for inode, size in _shared(pid)}.values())
        if shared + sum(_resident(pid) for pid in pids) <= self._memory:
            return None
        if shared + sum(_proportional(pid) for pid in pids) <= self._memory:
            return None  # what processes have in common after a fork was counted for each
        return f"it used more than {self._memory} bytes of memory, all of its processes together"

    # ----------------------------------------------------------------------------------------- files

    def _too_many_files(self, pids: list[int]) -> str | None:
        """On the disk of the machine nothing else limits them: not their number, nor all of them together."""
        if self._files is None or self._folder is None:
            return None
        if self._looks % OPEN_FILES_EVERY == 0:
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


# ------------------------------------------------------------------------------------------------- what /proc tells


def _text(path: str) -> str:
    """Nothing of a process that is gone."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            return file.read()
    except PermissionError:
        raise Hidden("one of its processes hides from the limits of its cage") from None
    except OSError:
        return ""


def _listed(folder: str) -> list[str]:
    with contextlib.suppress(OSError):
        return os.listdir(folder)  # noqa: PTH208
    return []


def _virtual(pid: int) -> int:
    return int((_text(f"/proc/{pid}/statm") or "0").split()[0]) * PAGE


def _kib(text: str, name: str) -> int:
    return next((int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith(f"{name}:")), 0)


def _resident(pid: int) -> int:
    """What is its own; pages of files can be had again and are not counted."""
    return _kib(_text(f"/proc/{pid}/status"), "RssAnon")


def _proportional(pid: int) -> int:
    return _kib(_text(f"/proc/{pid}/smaps_rollup"), "Pss_Anon")


def _mapped(pid: int) -> Iterator[tuple[str, int, str]]:
    """Device and inode, size and name of what it has mapped."""
    for line in _text(f"/proc/{pid}/maps").splitlines():
        place, _, _, device, inode, *name = line.split(maxsplit=5)
        if name and inode != "0":
            first, last = place.split("-")
            yield f"{device}:{inode}", int(last, 16) - int(first, 16), name[0]


def _shared(pid: int) -> Iterator[tuple[str, int]]:
    """Memory that does not go when its pages are given up: all of it counts, touched or not."""
    return ((inode, size) for inode, size, name in _mapped(pid) if name.startswith(SHARED))


def _unlinked(pid: int, below: str) -> Iterator[tuple[str, int]]:
    """Files that have no name any more, and live as long as somebody has them open or mapped."""
    folder = f"/proc/{pid}/fd"
    try:
        numbers = os.listdir(folder)  # noqa: PTH208
    except PermissionError:
        raise Hidden("one of its processes hides from the limits of its cage") from None
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
    """Of everything below a folder; a folder takes room as well."""
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
