"""Files that may be replaced while they are in use, such as certificates that live for days only."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


class Watched:
    """Tells once of each time that one of them was replaced. One that is not there is a state like any other."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._files = tuple(files)
        self._stamps = self._looked()

    def replaced(self) -> bool:
        before, self._stamps = self._stamps, self._looked()
        return self._stamps != before

    def _looked(self) -> list[tuple[int, int] | None]:
        return [_stamp(file) for file in self._files]


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino
