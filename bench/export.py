"""Row P16: an export of a large tree through all of it, from the request over the machine to the download.

2,000 entities on seven levels, 5 MB of text in one of them. The archive that they come from is served here.
"""

from __future__ import annotations

import json
import re
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from bench import process
from bench.harness import Contestant, Failed, Figures, Stage
from bench.idle_many import _free_port, _running

KEY = "wl_for_the_length_of_a_benchmark_only"  # ours has spaces, which no header takes
ENTITIES, CHILDREN = 2_000, 4
TEXT = "Größe, 大きさ and size.\n" * 230_000
LARGE = 77
READY_S, PATIENCE_S = 30.0, 300.0


def export_mods(stage: Stage, who: Contestant) -> Figures:
    """What an export takes, and how much memory its machine had and the server took on for it."""
    count = max(100, int(ENTITIES * stage.scale.share))
    http = f"127.0.0.1:{_free_port()}"
    with stage.place(who) as place, _archive(count) as archive:
        source = {"WINDLASS_MODS_API_URL": archive, "WINDLASS_MODS_GATEWAY_URL": archive}
        blobs = f"file://{stage.folder / 'blobs'}"
        variables = {**source, "WINDLASS_LAUNCHERS": "process", "WINDLASS_BLOBS": blobs}
        command = [
            who.python.with_name("windlass"), "serve", "--database-url", place.url, "--http", http,
            "--grpc", f"127.0.0.1:{_free_port()}", "--api-key", KEY, "--data-dir", str(stage.folder / "data"),
        ]  # fmt: skip
        with _running(stage, command, "export", variables) as server:
            _until_ready(server, http)
            _exported(http, 0)  # what is imported and opened for the first export is there once and for all
            before = process.memory_mb(server.pid, "VmRSS")
            began = time.perf_counter()
            state, size = _exported(http, 50)
            seconds = time.perf_counter() - began
            grown = process.memory_mb(server.pid, "VmHWM") - before
    if state["metrics"]["entities_exported"] != count or size != state["output_file_size"]:
        raise Failed(f"not what was asked for: {state}")
    return {"rate": count / seconds, "machine_mb": state["metrics"]["peak_memory_mb"], "server_growth_mb": grown}


def _exported(http: str, depth: int) -> tuple[dict[str, Any], int]:
    """The state of an export that has ended, and how many bytes its download had, which nobody kept."""
    options = {"recursive": True, "maxDepth": depth}
    with _call(http, "/export/mods", {"pi": _pi(0), "options": options}) as answer:
        task = json.load(answer)["task_id"]
    until = time.monotonic() + PATIENCE_S
    while True:
        with _call(http, f"/status/{task}") as answer:
            state: dict[str, Any] = json.load(answer)
        if state["status"] != "processing":
            break
        if time.monotonic() > until:
            raise Failed(f"no end within {PATIENCE_S:.0f} s")
        time.sleep(0.05)
    if state["status"] != "success":
        raise Failed(str(state.get("error")))
    size = 0
    with _call(http, f"/download/{task}") as answer:
        while piece := answer.read(1 << 20):
            size += len(piece)
    return state, size


def _call(http: str, path: str, body: dict[str, Any] | None = None) -> Any:
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    return urllib.request.urlopen(urllib.request.Request(f"http://{http}{path}", data, headers), timeout=60)


def _until_ready(server: process.Child, http: str) -> None:
    until = time.monotonic() + READY_S
    while True:
        server.check()
        with suppress(OSError), urllib.request.urlopen(f"http://{http}/readyz", timeout=1):
            return
        if time.monotonic() > until:
            raise Failed(f"no server within {READY_S:.0f} s: {process.tail(server.log)}")
        time.sleep(0.1)


# --------------------------------------------------------------------------------------------- the archive


def _pi(number: int) -> str:
    return f"01K{number:023d}"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 200

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # what is too large to be read ahead is hung up on


@contextmanager
def _archive(count: int) -> Iterator[str]:
    ref = json.dumps({"filename": "page.jpg", "ocr": TEXT}).encode()

    class Archive(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            number = int((re.search(r"(\d+)$", self.path) or ["0", "0"])[1])
            body = _manifest(number, count) if "/entities/" in self.path else _pinax(number)
            body = ref if self.path.endswith(f"ref{LARGE}") else body
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = _Server(("127.0.0.1", 0), Archive)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _manifest(number: int, count: int) -> bytes:
    below = range(CHILDREN * number + 1, CHILDREN * number + CHILDREN + 1)
    components = {"pinax.json": f"pinax{number}"} | ({"page.ref.json": f"ref{LARGE}"} if number == LARGE else {})
    told = {"pi": _pi(number), "ver": 1, "ts": "2025-11-01T09:30:00Z", "manifest_cid": f"bafy{number}"}
    return json.dumps({**told, "components": components, "children_pi": [_pi(n) for n in below if n < count]}).encode()


def _pinax(number: int) -> bytes:
    return json.dumps({"id": _pi(number), "title": f"Page {number}", "type": "Text", "created": "1931"}).encode()
