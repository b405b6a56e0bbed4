"""A program for machines, with nothing but the standard library: does what EXPORT_OPTIONS says, step by step.

Steps: `wait PATH` until there is such a file, `touch PATH`, `say TEXT`, `tell VARIABLE`, `environment PATH`, `temp`,
`child PATH`, `hog MB`, `deaf` (to SIGTERM), `upload`, `success`, `lie` (says another size), `error TEXT`, `exit N`,
`signal N`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

CONTENT = b"<mods>" + b"x" * 1000 + b"</mods>"


def send(method: str, url: str, body: bytes, media: str) -> int:
    request = urllib.request.Request(url, body, {"Content-Type": media}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        print(f"{method} was answered {error.code}: {error.read(300)!r}")
        return error.code
    except OSError as error:
        print(f"{method} failed: {type(error).__name__}")
        return 0


def upload(name: str) -> None:
    head, _, query = os.environ["UPLOAD_URL"].partition("?")
    status = send("PUT", f"{head}{name}?{query}", CONTENT, "application/xml")
    if status != 200:
        raise RuntimeError(f"the upload was answered {status}")


def call_back(**said: object) -> None:
    told = {"task_id": os.environ["TASK_ID"], "batch_id": os.environ["BATCH_ID"], **said}
    send("POST", os.environ["CALLBACK_URL"], json.dumps(told).encode(), "application/json")


def success(name: str, size: int = len(CONTENT)) -> None:
    call_back(
        status="success", output_r2_key=f"exports/{os.environ['TASK_ID']}/{name}", output_file_name=name,
        output_file_size=size, metrics={"total_time_ms": 5, "entities_exported": 1},
    )  # fmt: skip


def do(step: str) -> None:
    verb, _, what = step.partition(" ")
    name = f"{os.environ['PI']}.xml"
    match verb:
        case "wait":
            while not Path(what).exists():
                time.sleep(0.01)
        case "touch":
            Path(what).write_text(str(os.getpid()))
        case "say":
            print(what)
        case "tell":
            print(os.environ[what])
        case "environment":
            Path(what).write_text(json.dumps(dict(os.environ)))
        case "temp":
            Path(tempfile.mkstemp()[1]).write_bytes(b"left behind")
        case "child":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
            Path(what).write_text(str(child.pid))
        case "hog":
            hold = bytearray(int(what) << 20)
            hold[::4096] = b"x" * len(hold[::4096])
            time.sleep(60)
        case "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        case "upload":
            upload(name)
        case "success":
            success(name)
        case "lie":
            success(name, 7)
        case "error":
            call_back(status="error", error=what)
        case "exit":
            sys.stdout.flush()
            os._exit(int(what))
        case "signal":
            os.kill(os.getpid(), int(what))
        case _:
            raise ValueError(step)


if __name__ == "__main__":
    for step in json.loads(os.environ["EXPORT_OPTIONS"])["steps"]:
        do(step)
