"""Who this wrapper is, the same after a restart: a name of its own in the folder that it keeps things in.

Several wrappers may share a folder. Each holds the lock of one name while it lives, and takes the first that is free.
"""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path
from uuid import uuid4

from windlass.core.error import Invalid

SHARED_MAX = 1000


class Identity:
    """Held until this process ends, however it ends."""

    def __init__(self, folder: Path, name: str | None = None) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._file, said = _first_free(folder)
        except OSError as error:
            raise Invalid(f"{folder} cannot be used: {error.strerror}", field="state_dir") from None
        self.id = said
        self.worker_id = f"wrapper:{name or socket.gethostname()}/{said}"

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
        said = os.read(file, 100).decode("ascii", "replace").strip()
        if not said:  # written whole or not at all: a few bytes, under the lock
            said = uuid4().hex
            os.pwrite(file, f"{said}\n".encode(), 0)
            os.fsync(file)
        return file, said
    raise Invalid(f"{SHARED_MAX} wrappers use {folder} already", field="state_dir")
