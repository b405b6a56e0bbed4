"""Opening an embedded database and being interrupted meanwhile."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from tests.kit.database import temporary_folder

from windlass.serve import open_database
from windlass.store.embedded.launch import read_record

pytestmark = pytest.mark.slow


async def until_the_server_starts(data_dir: Path) -> None:
    deadline = time.monotonic() + 60
    while not (data_dir / "control/process").exists():
        assert time.monotonic() < deadline, "the server did not start"
        await asyncio.sleep(0.001)


async def test_who_is_cancelled_while_the_embedded_server_starts_leaves_no_server_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("DATABASE_URL", raising=False)

    async def use(data_dir: Path) -> None:
        async with open_database(data_dir=data_dir):
            await asyncio.Event().wait()

    with temporary_folder() as folder:
        user = asyncio.create_task(use(folder / "data"))
        await until_the_server_starts(folder / "data")
        user.cancel()
        with pytest.raises(asyncio.CancelledError):
            await user
        assert read_record(folder / "data/control/process") is None
