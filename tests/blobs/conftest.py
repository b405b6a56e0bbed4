"""Blob stores of every kind that can run here: a folder, memory, and a real S3 server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kit.s3 import S3Server, open_s3

from windlass.blobs.object_store import ObjectStore, open_store


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    with open_s3() as server:
        yield server


@pytest.fixture(params=["folder", "memory", "s3"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    match request.param:
        case "folder":
            return open_store(f"file://{tmp_path}/blobs")
        case "memory":
            return open_store("memory://")
    server: S3Server = request.getfixturevalue("s3")
    return open_store(server.url(tmp_path.name))
