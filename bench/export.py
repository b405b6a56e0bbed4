"""Row P16: an export of a large tree from end to end: the request, the machine, the download.

2,000 entities on seven levels, 5 MB of text in one of them. This module also serves the archive that they come from.
"""

from __future__ import annotations

import json
import re
import time
import urllib.request
from typing import Any

from bench import process
from bench.harness import Contestant, Failed, Figures, Stage
from bench.ours import KEY
from windlass.testing.conformance.listener import Listener, Reply, Request

ENTITIES, CHILDREN = 2_000, 4
TEXT = "Größe, 大きさ and size.\n" * 230_000
LARGE = 77
TIMEOUT_S = 300.0


def export_mods(stage: Stage, contestant: Contestant) -> Figures:
    """The rate of an export, the peak memory of its machine, and the growth of the server's memory."""
    count = max(100, int(ENTITIES * stage.scale.share))
    with stage.place(contestant) as place, _archive(count) as archive:
        variables = {
            "WINDLASS_MODS_API_URL": archive.url, "WINDLASS_MODS_GATEWAY_URL": archive.url,
            "WINDLASS_LAUNCHERS": "process", "WINDLASS_BLOBS": f"file://{stage.folder / 'blobs'}",
        }  # fmt: skip
        data = ("--data-dir", str(stage.folder / "data"))
        with stage.windlass_server(contestant, place, *data, **variables) as (server, http, _):
            _export(http, 0)  # the first export also pays for imports and connections
            before = process.memory_mb(server.pid, "VmRSS")
            began = time.perf_counter()
            state, size = _export(http, 50)
            seconds = time.perf_counter() - began
            grown = process.memory_mb(server.pid, "VmHWM") - before
    if state["metrics"]["entities_exported"] != count or size != state["output_file_size"]:
        raise Failed(f"the export is incomplete: {state}")
    return {"rate": count / seconds, "machine_mb": state["metrics"]["peak_memory_mb"], "server_growth_mb": grown}


def _export(http: str, depth: int) -> tuple[dict[str, Any], int]:
    """Run an export. Returns its last state and the size of its download."""
    options = {"recursive": True, "maxDepth": depth}
    with _call(http, "/export/mods", {"pi": _pi(0), "options": options}) as answer:
        task = json.load(answer)["task_id"]
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        with _call(http, f"/status/{task}") as answer:
            state: dict[str, Any] = json.load(answer)
        if state["status"] != "processing":
            break
        if time.monotonic() > deadline:
            raise Failed(f"the export did not end within {TIMEOUT_S:.0f} s")
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


# --------------------------------------------------------------------------------------------- the archive


def _pi(number: int) -> str:
    return f"01K{number:023d}"


def _archive(count: int) -> Listener:
    large = json.dumps({"filename": "page.jpg", "ocr": TEXT}).encode()

    def answer(request: Request) -> Reply:
        number = int((re.search(r"(\d+)$", request.path) or ["0", "0"])[1])
        if request.path.endswith(f"ref{LARGE}"):
            return Reply(body=large)
        return Reply(body=_manifest(number, count) if "/entities/" in request.path else _pinax(number))

    return Listener(answer)


def _manifest(number: int, count: int) -> bytes:
    below = range(CHILDREN * number + 1, CHILDREN * number + CHILDREN + 1)
    components = {"pinax.json": f"pinax{number}"} | ({"page.ref.json": f"ref{LARGE}"} if number == LARGE else {})
    fields = {"pi": _pi(number), "ver": 1, "ts": "2025-11-01T09:30:00Z", "manifest_cid": f"bafy{number}"}
    return json.dumps(
        {**fields, "components": components, "children_pi": [_pi(n) for n in below if n < count]}
    ).encode()


def _pinax(number: int) -> bytes:
    return json.dumps({"id": _pi(number), "title": f"Page {number}", "type": "Text", "created": "1931"}).encode()
