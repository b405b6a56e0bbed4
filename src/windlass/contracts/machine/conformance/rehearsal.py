"""Runs a machine's program in a test, against a server of its own.

rehearsal = rehearse(export, pi="01K9XVBAQZF9EHDRXGBEADTZYY", options={"delimiter": ";"})
assert rehearsal.exit_code == 0
assert rehearsal.content.startswith(b"pi;version")
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from windlass.contracts.machine.worker.run import Export, run
from windlass.testing.conformance.listener import Listener, Reply, Request

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

    def answer(request: Request) -> Reply:
        if request.method == "PUT":
            rehearsal.content = request.stream.read(request.length)
            rehearsal.content_type = request.headers.get("Content-Type", "")
            rehearsal.file_name = request.path.rpartition("/")[2]
        else:
            rehearsal.callback = msgspec.json.decode(request.body())
        return Reply(200)

    with Listener(answer) as server:
        task = TASK.format(format)
        environ = {
            "TASK_ID": task,
            "PI": pi,
            "EXPORT_FORMAT": format,
            "EXPORT_OPTIONS": msgspec.json.encode(dict(options or {})).decode(),
            "PAYLOAD": msgspec.json.encode(payload).decode(),
            "BATCH_ID": "single",
            "CALLBACK_URL": f"{server.url}/callback/{task}?sig=rehearsal",
            "UPLOAD_URL": f"{server.url}/upload/{task}/?sig=rehearsal",
            **(settings or {}),
        }
        rehearsal.exit_code = run(export, environ)
    return rehearsal
