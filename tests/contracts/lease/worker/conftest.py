"""A wrapper in this process, between a dispatcher and a carrier that a test looks into."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.contracts.lease.worker.certificates import Authority, Files
from tests.contracts.lease.worker.stand_in import Carrier, Dispatcher
from tests.kit.work import soon, until

from windlass.contracts.lease.worker.child import Programs
from windlass.contracts.lease.worker.dispatcher import Dispatcher as Client
from windlass.contracts.lease.worker.dispatcher import tls_context
from windlass.contracts.lease.worker.isolation import Isolation
from windlass.contracts.lease.worker.operator import Operator
from windlass.contracts.lease.worker.wrapper import Line, Wrapper

NOTHING = Isolation(None, ("this test isolates nothing",))


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def certificate(authority: Authority) -> Files:
    return authority.issue("wrapper")


@pytest.fixture
def dispatcher(authority: Authority) -> Iterator[Dispatcher]:
    with Dispatcher(authority.server_context()) as dispatcher:
        yield dispatcher


class Bench:
    """A wrapper in this process, with its dispatcher and carrier. `start` begins to work."""

    def __init__(self, dispatcher: Dispatcher, client: Client, stack: AsyncExitStack) -> None:
        self.dispatcher, self.client, self.carrier = dispatcher, client, Carrier()
        self._stack = stack
        self.wrapper: Wrapper
        self.running: asyncio.Task[None]

    def start(
        self,
        *,
        isolation: Isolation = NOTHING,
        trusted: bool = True,
        secrets: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
        concurrency: int = 2,
        **operator: Any,
    ) -> None:
        programs = Programs(isolation)
        self._stack.callback(programs.close)
        self.wrapper = Wrapper(
            self.client, {"work": Operator(**operator)}, programs, worker_id="wrapper:test", concurrency=concurrency,
            environment=environment,
        )  # fmt: skip
        line = Line("jobs", self.carrier, trusted=trusted, secrets=secrets)
        self.running = asyncio.create_task(self.wrapper.run([line]))

    async def does(self, count: int = 1) -> list[str]:
        """Until so many messages are done with; what became of them."""
        await until(lambda: len(self.carrier.done) >= count)
        return [what for what, _ in self.carrier.done]

    async def runs_one(self) -> str:
        self.carrier.put(uuid4())
        [done] = await self.does()
        return done

    def report(self) -> dict[str, Any]:
        """The one that was accepted."""
        [report] = [heard.body for heard in self.dispatcher.requests_for("task-complete") if heard.status == 200]
        return report

    async def close(self) -> None:
        if hasattr(self, "running"):
            self.wrapper.stop_now()
            await soon(asyncio.gather(self.running, return_exceptions=True))
        self.client.close()


@pytest.fixture
async def world(dispatcher: Dispatcher, authority: Authority, certificate: Files) -> AsyncIterator[Bench]:
    client = Client(dispatcher.url, tls_context(certificate.certificate, certificate.key, authority.certificate))
    async with AsyncExitStack() as stack:
        world = Bench(dispatcher, client, stack)
        yield world
        await world.close()


@pytest.fixture
def script(tmp_path: Path) -> Any:
    """Writes a program in Python, and says how it is run."""
    import sys

    def write(text: str) -> list[str]:
        file = tmp_path / f"program-{uuid4().hex}.py"
        file.write_text(text)
        return [sys.executable, str(file)]

    return write
