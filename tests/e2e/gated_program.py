"""A program on a machine that stops at one step of its task until it is let on.

All that it does is done by `windlass.sdk.machine`, as in every such program. EXPORT_OPTIONS say where it stops (`at`),
by which way it uploads (`way`: `bucket` or `server`), how many bytes (`size`), and where the files are (`gates`):
`TASK.reached` holds its process id as soon as it is there, `TASK.go` lets it on.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from functools import partialmethod
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from windlass.contracts.machine.worker import s3, store
from windlass.contracts.machine.worker.run import run
from windlass.contracts.machine.worker.send import Slice
from windlass.sdk.machine import Job

TASK, OPTIONS = os.environ["TASK_ID"], json.loads(os.environ["EXPORT_OPTIONS"])
GATES, SIZE = Path(OPTIONS["gates"]), int(OPTIONS["size"])
PIECE = bytes(range(250)) * 400
sent = 0
frame = sys.modules[run.__module__]
upload, call_back = frame.upload, frame.call_back


def pause(step: str) -> None:
    """Once: what is done again after it was let on is not stopped again."""
    go = GATES / f"{TASK}.go"
    if step != OPTIONS["at"] or go.exists():
        return
    draft = GATES / f"{TASK}.draft"
    draft.write_text(str(os.getpid()))
    draft.rename(GATES / f"{TASK}.reached")
    while GATES.exists() and not go.exists():
        time.sleep(0.01)


def export(job: Job) -> None:
    out = job.output(f"{job.pi}.bin")
    with out.path.open("wb") as file:
        for number in range(SIZE // len(PIECE)):
            file.write(PIECE)
            if number == SIZE // len(PIECE) // 2:
                file.flush()
                pause("exporting")


class GatedSlice(Slice):
    """The body of an upload. The one that is read for a signature has no end of its time."""

    def read(self, size: int = -1, /) -> bytes:
        global sent
        if self._until != float("inf"):
            sent += size
            if sent > SIZE * 3 // 5:
                pause("uploading")
        return super().read(size)


def uploaded(*args: Any, **options: Any) -> None:
    upload(*args, **options)
    pause("uploaded")


def called_back(job: Job, report: dict[str, Any], *rest: Any) -> bool:
    """The first time half of it only."""
    if OPTIONS["at"] == "calling back":
        where, body = urlsplit(job.callback_url), json.dumps(report).encode()
        head = (
            f"POST {where.path}?{where.query} HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        with socket.create_connection((where.hostname or "", where.port or 80)) as connection:
            connection.sendall(head.encode() + body[: len(body) // 2])
            pause("calling back")
    return call_back(job, report, *rest)


if __name__ == "__main__":
    s3.Upload.send = partialmethod(s3.Upload.send, whole_max_bytes=1, part_bytes=5 << 20)  # type: ignore[assignment]
    s3.Slice = store.Slice = GatedSlice  # type: ignore[misc, attr-defined]
    frame.upload, frame.call_back = uploaded, called_back  # type: ignore[attr-defined]
    environ = {name: value for name, value in os.environ.items() if OPTIONS["way"] == "bucket" or name[:3] != "R2_"}
    pause("spawned")
    code = run(export, environ)
    pause("leaving")
    sys.exit(code)
