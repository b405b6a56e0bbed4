"""Runs a machine's program in a test, against a server of its own.

rehearsal = rehearse(export, pi="01K9XVBAQZF9EHDRXGBEADTZYY", options={"delimiter": ";"})
assert rehearsal.exit_code == 0
assert rehearsal.content.startswith(b"pi;version")
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from windlass.contracts.machine.worker.run import Export, run

TASK = "export_{}_1704857234567_a3f8c2d1"


class Rehearsal(msgspec.Struct):
    """The exit code of the program, its callback, and the file that it uploaded, if any."""

    exit_code: int = 1
    callback: dict[str, Any] = {}
    file_name: str = ""
    content_type: str = ""
    content: bytes = b""


def rehearse(
    export: Export,
    *,
    pi: str = "",
    options: Mapping[str, Any] | None = None,
    payload: Any = None,
    format: str = "csv",  # noqa: A002
    settings: Mapping[str, str] | None = None,
) -> Rehearsal:
    """Run the program as a machine would, in this process. `settings` are further variables of its environment."""
    rehearsal = Rehearsal()
    with ThreadingHTTPServer(("127.0.0.1", 0), _stage(rehearsal)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        task, base = TASK.format(format), f"http://127.0.0.1:{server.server_port}"
        environ = {
            "TASK_ID": task,
            "PI": pi,
            "EXPORT_FORMAT": format,
            "EXPORT_OPTIONS": msgspec.json.encode(dict(options or {})).decode(),
            "PAYLOAD": msgspec.json.encode(payload).decode(),
            "BATCH_ID": "single",
            "CALLBACK_URL": f"{base}/callback/{task}?sig=rehearsal",
            "UPLOAD_URL": f"{base}/upload/{task}/?sig=rehearsal",
            **(settings or {}),
        }
        try:
            rehearsal.exit_code = run(export, environ)
        finally:
            server.shutdown()
            thread.join()
    return rehearsal


def _stage(rehearsal: Rehearsal) -> type[BaseHTTPRequestHandler]:
    class Stage(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            rehearsal.content = self._body()
            rehearsal.content_type = self.headers.get("Content-Type", "")
            rehearsal.file_name = unquote(urlsplit(self.path).path.rpartition("/")[2])
            self._answer()

        def do_POST(self) -> None:
            rehearsal.callback = msgspec.json.decode(self._body())
            self._answer()

        def _body(self) -> bytes:
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))

        def _answer(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    return Stage
