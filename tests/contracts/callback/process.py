"""Workers in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[3]
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


class WorkerProcess:
    """One that listens. The first number that it prints is its port."""

    def __init__(self, *command: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *command],
            cwd=ROOT, env={**os.environ, "WINDLASS_SIGNING_SECRET": SECRET, **environment},
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        port = next(word for word in self.process.stdout.readline().split() if word.isdigit())
        self.url = f"http://127.0.0.1:{port}/push"

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def running(*command: str, **environment: str) -> Iterator[WorkerProcess]:
    worker = WorkerProcess(*command, **environment)
    try:
        yield worker
    finally:
        worker.close()
