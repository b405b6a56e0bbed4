"""Blocks of shared memory are told apart by process, so that tests may run side by side."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.contracts.stdio.talk import OURS

from windlass.contracts.stdio.protocol.shm import PREFIX


@pytest.fixture(scope="session", autouse=True)
def _names_of_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PREFIX, OURS)
        yield
