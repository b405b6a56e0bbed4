"""What a program must do in a case: given by its options or, for an exporter of MODS, by the content of its archive."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from windlass.testing.conformance.listener import Reply

LARGE_BYTES = 48 * 1024 * 1024
SLOW_S = 60.0
PLAIN_PI, MISSING_PI, SLOW_PI, LARGE_PI = (f"01K9XVBAQZF9EHDRXGBEADTZ{end}" for end in ("YY", "YZ", "Y0", "Y1"))
CHILDREN = 96
TEXT = b"All work and no play. " * (256 * 1024 // 22)


class ExportRequest(NamedTuple):
    """A PI and options."""

    pi: str
    options: dict[str, Any]


class Subject(msgspec.Struct, frozen=True):
    """The requests that make a program succeed, fail, work slowly, and make a large output."""

    plain: ExportRequest
    failing: ExportRequest
    slow: ExportRequest
    large: ExportRequest
    large_bytes: int
    archive: Callable[[str], Reply]
    metrics: tuple[str, ...]


def _archive(path: str) -> Reply:
    """Entities: one that is there, one that is not, one that takes long, one with many children."""
    _, what, name = path.split("/", 2)
    if what == "ipfs":
        return Reply(200, TEXT) if name == "text" else Reply(200, {
            "id": name, "title": "Pier at dawn", "type": "StillImage", "creator": "R. Vance", "created": "1931",
            "institution": "Harbor Library", "access_url": "PLACEHOLDER",
        })  # fmt: skip
    if name == SLOW_PI:
        time.sleep(SLOW_S)
    children = [f"{PLAIN_PI[:-4]}C{number:03}" for number in range(CHILDREN)]
    if name not in (PLAIN_PI, SLOW_PI, LARGE_PI, *children):
        return Reply(404, {"error": "NOT_FOUND", "message": "no such entity"})
    large = {"description.md": "text"} if name in children else {}
    return Reply(200, {
        "pi": name, "ver": 1, "ts": "2025-11-01T09:30:00Z", "manifest_cid": "bafyMANIFEST",
        "components": {"pinax.json": name, **large}, "children_pi": children if name == LARGE_PI else [],
    })  # fmt: skip


SUBJECTS = {
    "any": Subject(
        plain=ExportRequest(PLAIN_PI, {"bytes": 1000}),
        failing=ExportRequest(PLAIN_PI, {"fail": "requested to fail"}),
        slow=ExportRequest(PLAIN_PI, {"work_ms": int(SLOW_S * 1000)}),
        large=ExportRequest(PLAIN_PI, {"bytes": LARGE_BYTES}),
        large_bytes=LARGE_BYTES,
        archive=lambda _path: Reply(404, {"error": "NOT_FOUND", "message": "there is no archive here"}),
        metrics=("total_time_ms",),
    ),
    "mods": Subject(
        plain=ExportRequest(PLAIN_PI, {"recursive": False}),
        failing=ExportRequest(MISSING_PI, {"recursive": False}),
        slow=ExportRequest(SLOW_PI, {"recursive": False}),
        large=ExportRequest(LARGE_PI, {"recursive": True, "maxDepth": 2}),
        large_bytes=CHILDREN * len(TEXT),
        archive=_archive,
        metrics=("total_time_ms", "entities_exported", "entities_failed", "peak_memory_mb"),
    ),
}
