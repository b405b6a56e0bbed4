"""All that an export goes through, as real processes that can be killed: a server, its machines, a bucket; and clients.

What happens when is decided by files: a machine says that it has come to a step, and waits until it may go on.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
from tests.cli.command import SOON_S, WINDLASS, environment
from tests.contracts.machine.world import PI
from tests.kit.database import temporary_folder
from tests.kit.ports import free_port
from tests.kit.processes import alive, everything_in
from tests.kit.s3 import S3Server

from windlass.contracts.machine.launchers.process_supervisor import marked
from windlass.contracts.machine.rules import machine_name, read_export_name
from windlass.engine.payloads.objects import MARKER

API_KEY = "wl_of_a_site"
PROGRAM = Path(__file__).with_name("gated_program.py")
SIZE = 12_000_000  # in three parts
PATIENT_MS = 1_800_000  # who stands at a gate loses no time by it
DELIVERY = {
    "type": "machine", "launcher": "process", "command": [sys.executable, str(PROGRAM)],
    "spawn_timeout_ms": PATIENT_MS, "run_timeout_ms": PATIENT_MS, "upload_timeout_ms": PATIENT_MS,
    "env": {"CALLBACK_PATIENCE_MS": str(PATIENT_MS)},
}  # fmt: skip


class Site:
    def __init__(self, folder: Path, database: str, s3: S3Server) -> None:
        self.folder, self.database, self.s3, self.port = folder, database, s3, free_port()
        for name in ("gates", "tmp"):
            (folder / name).mkdir()
        self.names: list[str] = []
        self.store_was_killed = False
        self.start()
        for queue in ("free", "held"):
            self.call("PUT", f"/api/v1/queues/{queue}", {"delivery": DELIVERY, "paused": queue == "held"})

    # ----------------------------------------------------------------------------------------- who can be killed

    def start(self) -> None:
        """The server, where it was before."""
        variables = environment(
            WINDLASS_BLOBS=self.s3.url("ours"), WINDLASS_LAUNCHERS="process", WINDLASS_MACHINE_SWEEP_S="0.2",
            WINDLASS_API_KEY=API_KEY, WINDLASS_DATA_DIR=str(self.folder / "data"), TMPDIR=str(self.folder / "tmp"),
        )  # fmt: skip
        with (self.folder / "log").open("ab") as log:
            self.server = subprocess.Popen(
                [WINDLASS, "serve", "--json", "--database-url", self.database, "--http", f"127.0.0.1:{self.port}",
                 "--grpc", "127.0.0.1:0"],
                cwd=self.folder, env=variables, stdout=subprocess.PIPE, stderr=log,
            )  # fmt: skip
        assert self.server.stdout is not None
        assert self.server.stdout.readline(), self.log()

    def kill_server(self) -> None:
        self.server.send_signal(signal.SIGKILL)
        self.server.communicate()

    def kill_store(self) -> None:
        self.s3.stop()
        self.store_was_killed = True

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    # ----------------------------------------------------------------------------------------- a client

    def ask(self, method: str, path: str, body: object = None, *, slowly: bool = False) -> http.client.HTTPResponse:
        """An answer whose body is still to be read; `slowly`: hardly any of it is on its way before it is."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SOON_S)
        if slowly:
            connection.sock = socket.socket()
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            connection.sock.settimeout(SOON_S)
            connection.sock.connect(("127.0.0.1", self.port))
        data = None if body is None else json.dumps(body)
        headers = {"Authorization": f"Bearer {API_KEY}", "Connection": "close"}
        connection.request(method, path, data, headers)
        return connection.getresponse()

    def call(self, method: str, path: str, body: object = None) -> Any:
        with self.ask(method, path, body) as answer:
            content = answer.read()
        assert answer.status == 200, content
        return json.loads(content)

    def export(self, at: str = "", *, way: str = "bucket", size: int = SIZE) -> str:
        """The name of an export whose machine stops at a step."""
        name = str(self.call("POST", "/export/free", self._order(at, way, size))["task_id"])
        self.names.append(name)
        return name

    def export_held(self) -> str:
        """One that was taken and is not launched: its client is not answered."""
        body, where = json.dumps(self._order("", "bucket", SIZE)).encode(), ("127.0.0.1", self.port)
        self.client = socket.create_connection(where)
        head = (
            f"POST /export/held HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {API_KEY}\r\nContent-Length: {len(body)}"
        )
        self.client.sendall(f"{head}\r\n\r\n".encode() + body)
        soon(lambda: bool(self.call("GET", "/api/v1/tasks?queue=held")["items"]))
        [task] = self.call("GET", "/api/v1/tasks?queue=held")["items"]
        name = str(self.call("GET", f"/status/{task['id']}")["task_id"])
        self.names.append(name)
        return name

    def _order(self, at: str, way: str, size: int) -> dict[str, Any]:
        options = {"at": at, "way": way, "size": size, "gates": str(self.folder / "gates")}
        return {"pi": PI, "options": options}

    def reached(self, name: str) -> int:
        """The process that has come to its step."""
        file = self.folder / "gates" / f"{name}.reached"
        soon(file.exists)
        return int(file.read_text())

    def go(self, name: str) -> None:
        (self.folder / "gates" / f"{name}.go").touch()

    def ended(self, name: str) -> dict[str, Any]:
        told: dict[str, Any] = {}

        def over() -> bool:
            told.update(self.call("GET", f"/status/{name}"))
            return bool(told["status"] != "processing")

        soon(over)
        return told

    def download(self, name: str) -> tuple[int, int]:
        """How it was answered, and how many bytes came."""
        with self.ask("GET", f"/download/{name}") as answer:
            return answer.status, count(answer)

    def downloaded(self, name: str) -> bool:
        """Whether it is written down that somebody has got all of it."""
        query = "select downloaded_at is not null from windlass.export_object where task_id = %s"
        with psycopg.connect(self.database) as connection:
            found = connection.execute(query, [read_export_name(name)]).fetchone()
        return found is None or bool(found[0])

    # ----------------------------------------------------------------------------------------- what is left

    def machine(self, name: str) -> Path:
        task_id = read_export_name(name)
        assert task_id is not None
        [folder] = (self.folder / "data" / "machines").glob(f"*/{machine_name(task_id, 1)}")
        return folder

    def left(self) -> list[str]:
        """Processes, folders and files of machines, temporary files, objects, parts of objects."""
        found = [f"process {pid}" for name in self.names for pid in self._processes(name)]
        found += [f"file {file}" for file in everything_in(self.folder / "data" / "machines", self.folder / "tmp")]
        found += [f"object {key}" for key in self.s3.files() if not key.endswith(MARKER) and not self._litter(key)]
        return found + [f"part of {key}" for key in self.s3.uploads()]

    def _litter(self, key: str) -> bool:
        """What the bucket's own server leaves when it is killed, and shows to nobody who could remove it."""
        return self.store_was_killed and ".rclone_temp_multipart_" in key

    def nothing_is_left(self) -> None:
        until_s = time.monotonic() + SOON_S
        while left := self.left():
            assert time.monotonic() < until_s, left
            time.sleep(0.05)

    def _processes(self, name: str) -> list[int]:
        task_id = read_export_name(name)
        assert task_id is not None
        return [pid for pid in marked(machine_name(task_id, 1)) if alive(pid)]

    def close(self) -> None:
        """Also after a test that failed half-way."""
        with suppress(AttributeError):
            self.client.close()
        self.kill_server()
        for name in self.names:
            for pid in self._processes(name):
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)


@contextmanager
def open_site(database: str, s3: S3Server) -> Iterator[Site]:
    with temporary_folder() as folder:
        site = Site(folder, database, s3)
        try:
            yield site
        finally:
            site.close()


def count(answer: http.client.HTTPResponse) -> int:
    """How many bytes come until the end, or until it breaks off."""
    size = 0
    with suppress(OSError, http.client.HTTPException):
        while piece := answer.read(65536):
            size += len(piece)
    return size


def soon(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < until_s, "it does not happen"
        time.sleep(0.02)
