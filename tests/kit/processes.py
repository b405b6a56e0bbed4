"""Processes and files that come and go while a test looks at them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from tests.kit.work import until


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not fetched does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def gone(*pids: int) -> None:
    """Until these have ended: one that was killed does so when it gets its next turn."""
    await until(lambda: not any(map(alive, pids)))


def everything_in(*folders: Path) -> list[Path]:
    """All files and folders below these; what goes while it is looked at is not there."""
    found: list[Path] = []
    for folder in folders:
        with suppress(FileNotFoundError, NotADirectoryError):
            for entry in sorted(folder.iterdir()):
                found += [entry, *(everything_in(entry) if entry.is_dir() else ())]
    return found


def files_in(*folders: Path) -> list[Path]:
    return [path for path in everything_in(*folders) if path.is_file()]
