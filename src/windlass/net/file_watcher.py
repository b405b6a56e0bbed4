"""Notices when files in use are replaced, such as short-lived certificates."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


class Watched:
    """Files that may be replaced. A missing file is a state like any other."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._files = tuple(files)
        self._stamps = [*map(_stamp, self._files)]

    def replaced(self) -> bool:
        """Whether a file was replaced since the last call."""
        before, self._stamps = self._stamps, [*map(_stamp, self._files)]
        return self._stamps != before


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino
