"""Apps and workers behind a transaction-mode pooler, where only the settings say that there is one."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest
from tests.cli.command import WINDLASS, environment
from tests.cli.conftest import SHOP
from tests.kit.pooler import Pooler
from tests.kit.work import soon

from windlass import App, Engine, State, Submission, open_engine

pytestmark = pytest.mark.slow

TIMEOUT_S = 60.0


async def test_an_app_honours_the_setting(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDLASS_POOLED", "true")
    async with Pooler(database) as pooler:
        app = App("shop", pooler.dsn)

        @app.task
        async def double(number: int) -> int:
            return 2 * number

        async with app:
            assert isinstance(app.client, Engine)
            assert app.client.store.pooled
            worker = app.worker()
            working = asyncio.create_task(worker.run())
            results = [await (await double.submit(number)).result(timeout=TIMEOUT_S) for number in range(5)]
            assert results == [0, 2, 4, 6, 8]
            worker.stop()
            await soon(working)


async def test_what_is_said_in_the_program_beats_the_setting(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDLASS_POOLED", "true")
    async with open_engine(database, pooled=False) as engine:
        assert not engine.store.pooled
    async with open_engine(database) as engine:
        assert engine.store.pooled


async def test_the_worker_command_honours_the_setting(database: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    async with Pooler(database) as pooler, open_engine(database) as engine:
        worker = subprocess.Popen(  # noqa: ASYNC220
            [str(WINDLASS), "worker", "shop:app"], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            env=environment(DATABASE_URL=pooler.dsn, WINDLASS_POOLED="true"), text=True,
        )  # fmt: skip
        try:
            ids = [await engine.submit(Submission(kind="greet", payload=b'{"name": "Ada"}')) for _ in range(5)]
            for task_id in ids:
                while not (ended := (await soon(engine.wait(task_id, 20))).task).terminal:
                    assert worker.poll() is None, worker.communicate()
                assert ended.state is State.SUCCEEDED, ended
        finally:
            worker.terminate()
            _, said = await asyncio.to_thread(worker.communicate, timeout=TIMEOUT_S)
        assert worker.returncode == 0, said
        assert "Traceback" not in said
