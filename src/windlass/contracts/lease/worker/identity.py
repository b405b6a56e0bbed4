"""The id of a wrapper, which stays the same after a restart. It is kept in a file of the state folder.

Several wrappers may share a folder. Each takes the first file that is free, and holds a lock on it while it runs.
"""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path
from uuid import uuid4

from windlass.errors import Invalid

SHARED_MAX = 1000


class Identity:
    """The id of this wrapper. Its lock is held until this process ends, however it ends."""

    def __init__(self, folder: Path, name: str | None = None) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._file, self.id = _first_free(folder)
        except OSError as error:
            raise Invalid(f"{folder} cannot be used: {error.strerror}", field="state_dir") from None
        self.worker_id = f"wrapper:{name or socket.gethostname()}/{self.id}"

    def close(self) -> None:
        os.close(self._file)


def _first_free(folder: Path) -> tuple[int, str]:
    for number in range(SHARED_MAX):
        file = os.open(folder / f"producer-{number}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            continue
        stored = os.read(file, 100).decode("ascii", "replace").strip()
        if not stored:  # a few bytes under the lock are written whole or not at all
            stored = uuid4().hex
            os.pwrite(file, f"{stored}\n".encode(), 0)
            os.fsync(file)
        return file, stored
    raise Invalid(f"{folder} is already used by {SHARED_MAX} wrappers", field="state_dir")
