"""A program for machines with nothing but the standard library, for its conformance cases: `python faulty.py [FAULT]`.

Without a fault it passes every case. Each fault changes one thing. Run as a program, in a process of its own.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

FAULT = sys.argv[1] if len(sys.argv) > 1 else ""
CHUNK = b"x" * 65536
AGAIN = (0, 429, 500, 502, 503, 504)


class Stopped(BaseException):
    pass


def request(method: str, url: str, body: Any, headers: dict[str, str]) -> int:
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.netloc, timeout=20)
    try:
        connection.request(method, f"{where.path}?{where.query}" if where.query else where.path, body, headers)
        reply = connection.getresponse()
        reply.read()
    except (OSError, http.client.HTTPException):
        return 0
    else:
        return reply.status
    finally:
        connection.close()


def patiently(what: str, send: Any) -> int:
    status, stubborn = 0, what == "callback" and FAULT == "repeats what was refused"
    for pause_s in (0.05, 0.1, 0.2, 0.4, 0.8):
        status = int(send())
        if status == 200 or not (stubborn or status in AGAIN) or f"does not repeat its {what}" == FAULT:
            break
        time.sleep(pause_s)
    return status


def make(path: Path, options: dict[str, Any]) -> None:
    with path.open("wb") as file:
        time.sleep(options.get("work_ms", 0) / 1000)
        if "fail" in options:
            raise RuntimeError(options["fail"])
        size = options.get("bytes", 100)
        while size > 0:
            size -= file.write(CHUNK[:size])


def upload(path: Path, key: str) -> None:
    base, bucket = os.environ["R2_ENDPOINT"], os.environ.get("R2_BUCKET") or "arke-exports"
    if FAULT == "needs a bucket":
        bucket = os.environ["R2_BUCKET"]
    account = os.environ["R2_ACCESS_KEY_ID"]
    headers = {"Content-Length": str(path.stat().st_size), "Authorization": f"AWS4-HMAC-SHA256 Credential={account}/"}
    if FAULT == "does not sign":
        del headers["Authorization"]

    def send() -> int:
        with path.open("rb") as file:
            body = b"".join([file.read()]) if FAULT == "reads all of it" else file
            return request("PUT", f"{base}/{bucket}/{key}", body, headers)

    status = patiently("upload", send)
    if status != 200 and FAULT != "ignores a failed upload":
        secret = os.environ["R2_SECRET_ACCESS_KEY"] if FAULT == "tells its key" else ""
        raise RuntimeError(f"the upload was answered {status} {secret}")


def call_back(said: dict[str, Any]) -> int:
    url, batch = os.environ["CALLBACK_URL"], os.environ.get("BATCH_ID", "default")
    if FAULT == "has another default":
        batch = os.environ.get("BATCH_ID", "single")
    if FAULT == "drops the query":
        url = url.partition("?")[0]
    task = "another" if FAULT == "names another task" else os.environ.get("TASK_ID", url)
    body = json.dumps({"task_id": task, "batch_id": batch, **said}).encode()
    media = {"Content-Type": "application/json"}
    status = patiently("callback", lambda: request("POST", url, body, media))
    return patiently("callback", lambda: request("POST", url, body, media)) if FAULT == "calls twice" else status


def success(key: str, size: int, began_s: float) -> int:
    metrics = {"metrics": {"total_time_ms": round((time.monotonic() - began_s) * 1000)}}
    told = {"output_r2_key": key, "output_file_name": key.rpartition("/")[2]}
    said = size + 1 if FAULT == "says another size" else size
    more = {} if FAULT == "has no metrics" else metrics
    return call_back({"status": "success", **told, "output_file_size": said, **more})


def work(began_s: float) -> None:
    options = json.loads(os.environ.get("EXPORT_OPTIONS") or "{}")
    if FAULT == "needs options":
        options = json.loads(os.environ["EXPORT_OPTIONS"])
    name = f"{os.environ['PI']}.bin"
    _ = os.environ["TASK_ID"], os.environ["R2_SECRET_ACCESS_KEY"]
    key = f"exports/{os.environ['TASK_ID']}/{name}" if FAULT != "has keys of its own" else f"out/{name}"
    handle, temporary = tempfile.mkstemp()
    os.close(handle)
    path = Path(temporary)
    try:
        make(path, options)
        if FAULT == "calls back first":
            success(key, path.stat().st_size, began_s)
            upload(path, key)
            return
        upload(path, key)
        status = success(key, path.stat().st_size, began_s)
        if FAULT == "fails with its callback" and status != 200:
            raise RuntimeError("the callback was refused")  # noqa: TRY301
    except BaseException:
        if FAULT == "uploads what failed":
            upload(path, key)
        raise
    finally:
        if FAULT != "leaves its files":
            path.unlink()


def main() -> int:
    def stop(*_: object) -> None:
        raise Stopped

    if FAULT != "ignores SIGTERM":
        signal.signal(signal.SIGTERM, stop)
    try:
        work(time.monotonic())
    except BaseException as error:
        print(f"{type(error).__name__}: {error}")
        environment = isinstance(error, KeyError | ValueError)
        if FAULT != "fails in silence" and not (environment and FAULT == "tells no wrong environment"):
            call_back({"status": "error", "error": repr(error)})
        return {"exits with 0": 0, "exits with 2": 2}.get(FAULT, 1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
