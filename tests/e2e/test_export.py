"""Exports through all of it: the request, the server, a real machine, the upload, the download."""

from __future__ import annotations

import re
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contracts.machine.export.archive import TS, Archive, open_archive
from tests.contracts.machine.export.samples import simple
from tests.contracts.machine.world import PI
from tests.e2e.test_machine import Dev, nothing_is_left
from tests.kit.database import temporary_folder

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
ENTITIES = 2_000
OCR = "Größe, 大きさ and size.\n" * 230_000


@pytest.fixture
def archive() -> Iterator[Archive]:
    with open_archive() as archive:
        yield archive


@pytest.fixture
def dev(archive: Archive) -> Iterator[Dev]:
    with temporary_folder() as folder:
        (folder / "windlass.toml").write_text(f'mods_api_url = "{archive.url}"\nmods_gateway_url = "{archive.url}"\n')
        dev = Dev(folder)
        try:
            yield dev
        finally:
            dev.stop()


def name(number: int) -> str:
    return f"01K{number:023d}" if number else PI


def memory_mb(dev: Dev, field: str) -> float:
    found = re.search(rf"^{field}:\s*(\d+) kB$", Path(f"/proc/{dev.process.pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024


def downloaded(dev: Dev, task: str) -> tuple[int, bytes]:
    """How many bytes come, and the last of them; read in pieces, as somebody would who has little memory."""
    request = urllib.request.Request(f"{dev.url}/download/{task}", headers={"Authorization": "Bearer wl_mine"})
    size, last = 0, b""
    with urllib.request.urlopen(request, timeout=60) as answer:
        while piece := answer.read(65536):
            size, last = size + len(piece), piece
    return size, last


def test_a_format_of_ones_own_from_the_queue_to_the_download(dev: Dev, archive: Archive) -> None:
    simple(archive, PI, children=[name(1)])
    simple(archive, name(1))
    delivery = {
        "type": "machine", "launcher": "process", "command": [sys.executable, str(ROOT / "examples/csv_export.py")],
        "env": {"WINDLASS_MODS_API_URL": archive.url},
    }  # fmt: skip
    assert dev.call("/api/v1/queues/csv", {"delivery": delivery}, "PUT")[0] == 200

    task = dev.export("csv", options={"delimiter": ";"})
    told = dev.ended(task)
    status, content = dev.call(f"/download/{task}")

    assert (told["status"], status) == ("success", 200), told
    assert told["output_file_name"] == f"{PI}.csv"
    assert content.decode().splitlines() == ["pi;version;changed;files", f"{PI};1;{TS};1", f"{name(1)};1;{TS};1"]
    nothing_is_left(dev)


def test_two_thousand_entities_cost_machine_and_server_little_memory(dev: Dev, archive: Archive) -> None:
    for n in range(ENTITIES):
        children = [name(child) for child in range(4 * n + 1, 4 * n + 5) if child < ENTITIES]
        refs = {"page.ref.json": {"filename": "page.jpg", "ocr": OCR}} if n == 777 else None
        simple(archive, name(n), children=children, refs=refs)
    first = dev.export("mods")  # what is imported and opened for the first export is there once and for all
    assert dev.ended(first)["status"] == "success"
    downloaded(dev, first)
    before = memory_mb(dev, "VmRSS")

    task = dev.export("mods", options={"recursive": True, "maxDepth": 6})
    told = dev.ended(task)
    size, last = downloaded(dev, task)
    grown = memory_mb(dev, "VmHWM") - before

    assert told["status"] == "success", told
    assert told["metrics"]["entities_exported"] == ENTITIES
    assert told["metrics"]["peak_memory_mb"] < 150
    assert grown < 50
    assert size == told["output_file_size"] > len(OCR.encode())
    assert last.endswith(b"</modsCollection>\n")
    nothing_is_left(dev)
