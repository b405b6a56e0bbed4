"""One `windlass dev` for the tests of commands: a real process with its own PostgreSQL, API and worker."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import SOON_S, WINDLASS, environment, windlass
from tests.kit.database import temporary_folder

SHOP = """
import asyncio
from pathlib import Path
from windlass import App, Context, WorkflowContext

app = App("shop")


@app.task(kind="greet")
async def greet(name: str) -> str:
    return f"Hello, {name}!"


@app.task(kind="break", max_attempts=1)
async def break_(what: str) -> None:
    raise ValueError(f"{what} is broken")


@app.task(kind="forever")
async def forever() -> None:
    await asyncio.Event().wait()


@app.task(kind="slow")
async def slow(ctx: Context) -> str:
    ctx.progress(1, 4, "sorting")
    while not Path("seen").exists():
        await asyncio.sleep(0.01)
    return "sorted"


async def charge(order: str) -> str:
    return f"receipt of {order}"


@app.workflow(kind="checkout")
async def checkout(order: str, ctx: WorkflowContext) -> str:
    receipt = await ctx.step(charge, order)
    approved = await ctx.wait_signal("approval")
    return f"{receipt}, approved: {approved}"


@app.task(kind="talk")
async def talk(ctx: Context) -> int:
    ctx.log.warning("one moment")
    return 1
"""


@dataclass(frozen=True)
class Dev:
    """The addresses that `windlass dev --json` prints when it is ready."""

    folder: Path
    places: dict[str, Any]

    def __call__(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        """A command in the folder of the server, where its key lies."""
        return windlass(*arguments, cwd=self.folder, WINDLASS_URL=self.url, **more)

    def json(self, *arguments: str) -> Any:
        done = self(*arguments, "--json")
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return json.loads(done.stdout)

    def submit(self, kind: str, payload: object = None, *more: str) -> str:
        task: dict[str, Any] = self.json("submit", kind, "--payload", json.dumps(payload), *more)
        return str(task["id"])

    @property
    def url(self) -> str:
        return str(self.places["api"]).removesuffix("/api/v1")


# Handlers may log and fail, we need say no more; but on a machine that stands still, any handler blocks the event loop.
EXPECTED_LOGS = ("windlass.task.", ", attempt ", "the heartbeat process has extended the lease")


StartDev = Callable[..., subprocess.Popen[str]]


def start_dev(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(WINDLASS), "dev", *arguments, "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"],
        cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def dev() -> Iterator[Dev]:
    with temporary_folder() as folder:
        (folder / "shop.py").write_text(SHOP)
        process = start_dev(folder, "shop:app", "--json")
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line, process.communicate(timeout=SOON_S)
            yield Dev(folder, json.loads(line))
        finally:
            process.terminate()
            _, logs = process.communicate(timeout=SOON_S)
        assert process.returncode == 0, logs
        assert [line for line in logs.splitlines() if not any(word in line for word in EXPECTED_LOGS)] == []
