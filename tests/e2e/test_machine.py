"""Machines from `windlass dev`, with nothing set up: real processes on all sides, and `kill -9`."""

from __future__ import annotations

import json
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import SOON_S
from tests.cli.conftest import start_dev
from tests.contracts.machine.export.archive import open_archive
from tests.contracts.machine.world import PI, PROGRAM, SIZE
from tests.kit.database import temporary_folder
from tests.kit.processes import alive, files_in

pytestmark = pytest.mark.slow


class Dev:
    """`windlass dev` in a folder, started again after it was killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.start()

    def start(self) -> None:
        self.process = start_dev(self.folder, "--json", "--api-key", "wl_mine")
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate(timeout=SOON_S)
        self.url = json.loads(line)["api"].removesuffix("/api/v1")

    def call(self, path: str, body: object = None, method: str | None = None) -> tuple[int, bytes]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Authorization": "Bearer wl_mine"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=SOON_S) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def export(self, format_: str, **body: Any) -> str:
        status, answer = self.call(f"/export/{format_}", {"pi": PI, **body})
        assert status == 200, answer
        return str(json.loads(answer)["task_id"])

    def ended(self, name: str) -> dict[str, Any]:
        until_s = time.monotonic() + SOON_S
        while time.monotonic() < until_s:
            told: dict[str, Any] = json.loads(self.call(f"/status/{name}")[1])
            if told["status"] != "processing":
                return told
            time.sleep(0.05)
        raise AssertionError(f"{name} is still processing")

    def left(self) -> list[str]:
        """What is left of machines and objects."""
        data = self.folder / ".windlass"
        return [str(file.relative_to(data)) for file in files_in(data / "machines", data / "blobs" / "exports")]

    def stop(self) -> None:
        self.process.terminate()
        said = self.process.communicate(timeout=SOON_S)
        assert self.process.returncode == 0, said


@pytest.fixture
def dev() -> Iterator[Dev]:
    with temporary_folder() as folder:
        dev = Dev(folder)
        try:
            yield dev
        finally:
            dev.stop()


def soon(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.02)


def nothing_is_left(dev: Dev) -> None:
    until_s = time.monotonic() + SOON_S
    while left := dev.left():
        assert time.monotonic() < until_s, left
        time.sleep(0.02)


def test_windlass_dev_exports_with_nothing_set_up() -> None:
    with open_archive() as archive, temporary_folder() as folder:
        pinax = {"id": PI, "title": "Pier", "type": "Text", "creator": "A", "institution": "B", "created": "1900"}
        archive.entity(PI, pinax={**pinax, "access_url": "PLACEHOLDER"})
        source = f'mods_api_url = "{archive.url}"\nmods_gateway_url = "{archive.url}"\n'
        (folder / "windlass.toml").write_text(source)  # nothing but where entities are
        dev = Dev(folder)
        try:
            name = dev.export("mods")
            told = dev.ended(name)
            status, content = dev.call(f"/download/{name}")
            nothing_is_left(dev)
        finally:
            dev.stop()

    assert (told["status"], status) == ("success", 200), told
    assert b"<title>Pier</title>" in content
    assert len(content) == told["output_file_size"]


def test_a_server_that_is_killed_finds_its_machines_again(dev: Dev) -> None:
    """The machine of one export ends while no server is there, that of the other after the next one has come."""
    delivery = {"type": "machine", "launcher": "process", "command": [sys.executable, str(PROGRAM)]}
    assert dev.call("/api/v1/queues/probe", {"delivery": delivery}, "PUT")[0] == 200
    gates = [dev.folder / name for name in ("early", "late")]
    began = [dev.folder / f"{gate.name}-began" for gate in gates]
    names = [
        dev.export("probe", options={"steps": ["upload", f"touch {mark}", f"wait {gate}", "success", "exit 0"]})
        for gate, mark in zip(gates, began, strict=True)
    ]
    soon(lambda: all(mark.exists() and mark.read_text() for mark in began))
    pids = [int(mark.read_text()) for mark in began]
    dev.process.send_signal(signal.SIGKILL)
    dev.process.communicate()
    gates[0].write_text("now")
    soon(lambda: not alive(pids[0]))
    assert alive(pids[1])
    dev.start()
    first = dev.ended(names[0])
    gates[1].write_text("now")
    second = dev.ended(names[1])

    assert [told["status"] for told in (first, second)] == ["success", "success"]
    assert [len(dev.call(f"/download/{name}")[1]) for name in names] == [SIZE, SIZE]
    nothing_is_left(dev)
    soon(lambda: not alive(pids[1]))
