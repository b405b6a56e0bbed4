"""What the tests of exports share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contracts.machine.export.archive import Archive, open_archive
from tests.contracts.machine.export.machine import Machine


@pytest.fixture
def archive() -> Iterator[Archive]:
    with open_archive() as archive:
        yield archive


@pytest.fixture
def machine(archive: Archive, tmp_path: Path) -> Machine:
    return Machine(archive, tmp_path)
