"""A server on a real socket, in this process, and stubs that are generated from the proto as any client would."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.contracts.registry.client import Client
from tests.kit.world import KEY
from tests.shape.source import SRC

from windlass import Engine
from windlass.serve import open_sessions

ALONE = {"gather_s": 0.0}  # a test that beats its heart does not wait for others
PROTO = "windlass/contracts/registry/wire/kagzi.proto"


@pytest.fixture
def mode() -> str:
    """Pooler or not is the engine's business; here it is direct."""
    return "direct"


@pytest.fixture(scope="session")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The module that `protoc` makes of our proto for Python clients."""
    folder = tmp_path_factory.mktemp("stubs")
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{SRC}", f"--grpc_python_out={folder}", PROTO]
    subprocess.run(command, check=True)
    [made] = Path(folder).rglob("*_pb2_grpc.py")
    spec = importlib.util.spec_from_file_location("kagzi_pb2_grpc", made)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


Connect = Callable[..., Client]


@pytest.fixture
async def connect(stubs: Any) -> AsyncIterator[Connect]:
    """Makes clients of a server, each with a channel of its own."""
    channels: list[Any] = []

    def make(url: str, key: str | None = KEY, **metadata: str) -> Client:
        channel = grpc.aio.insecure_channel(
            url.removeprefix("http://"), options=(("grpc.use_local_subchannel_pool", 1),)
        )
        channels.append(channel)
        return Client(stubs.WorkflowServiceStub(channel), channel, key, metadata)

    yield make
    for channel in channels:
        await channel.close()


@pytest.fixture
async def server(live_engine: Engine) -> AsyncIterator[str]:
    async with open_sessions(live_engine, grpc="127.0.0.1:0", api_key=KEY, registry=ALONE) as url:
        yield url


@pytest.fixture
def client(server: str, connect: Connect) -> Client:
    return connect(server)


@pytest.fixture
async def still(engine: Engine) -> AsyncIterator[str]:
    """A server on an engine whose time stands still: a test moves `clock` and calls the ticks of `engine`."""
    async with open_sessions(engine, grpc="127.0.0.1:0", api_key=KEY, registry=ALONE) as url:
        yield url


@pytest.fixture
def still_client(still: str, connect: Connect) -> Client:
    return connect(still)
