"""The fixtures that all tests share: one PostgreSQL per session, one database per test, engines on it in two modes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import AsyncExitStack
from typing import Any

import asyncpg
import pytest
from tests.kit import carriers
from tests.kit import database as databases
from tests.kit import pace as paces
from tests.kit.pooler import Pooler
from tests.kit.world import by_hand

from windlass.engine.engine import Engine
from windlass.net.file_limits import raise_limit
from windlass.store.store import Store
from windlass.testing.clock import VirtualClock, virtual_clock

# A shell that runs the tests in the background makes them ignore Ctrl-C, and their children would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# An ordinary user may open 1,024 files by default, and servers take fewer connections then. `windlass serve` raises the
# limit for itself, but tests open servers in this process.
raise_limit()

# Tests start programs in folders of their own, where a relative path would lead to other sources.
if "PYTHONPATH" in os.environ:
    os.environ["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, os.environ["PYTHONPATH"].split(os.pathsep)))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if paces.paced(item) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(paces.ALL_TRIES_S))


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    if not paces.paced(item):
        return None
    paces.run_paced(item, nextitem)
    return True


@pytest.fixture
def pace(request: pytest.FixtureRequest) -> float:
    """By how much all times of this test are longer than at its first try; see `tests.kit.pace`."""
    return paces.pace_of(request.node)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for line in paces.slower(terminalreporter.getreports("passed")):
        terminalreporter.write_line(f"SLOWER {line}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What hostile input made a test print may not be text that can be sent to the process that gathers the results."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.fixture(scope="session")
def postgres() -> Iterator[databases.Server]:
    """The PostgreSQL of this session; see `tests.kit.database` for how to choose another."""
    with databases.open_server() as server:
        yield server
        asyncio.run(databases.drop_template(server))


@pytest.fixture(scope="session")
def nats_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Where the NATS server of this session listens."""
    with carriers.nats_server(tmp_path_factory.mktemp("nats")) as port:
        yield port


@pytest.fixture(scope="session")
def aws_port() -> Iterator[int]:
    """Where a server that speaks the APIs of AWS listens."""
    with carriers.aws_server() as port:
        yield port


@pytest.fixture
async def database(postgres: databases.Server) -> AsyncIterator[str]:
    """The DSN of a database with the current schema, for this test alone."""
    dsn = await databases.fresh_database(postgres)
    yield dsn
    await databases.drop_database(postgres, dsn)


@pytest.fixture
async def bare_database(postgres: databases.Server) -> AsyncIterator[str]:
    """The DSN of a database without any schema, for this test alone."""
    dsn = await databases.empty_database(postgres)
    yield dsn
    await databases.drop_database(postgres, dsn)


@pytest.fixture
async def other_connection(database: str) -> AsyncIterator[asyncpg.Connection]:
    """Another program's connection to the database of this test, past any pooler."""
    connection = await asyncpg.connect(database)
    yield connection
    connection.terminate()


@pytest.fixture
async def clock(database: str) -> AsyncIterator[VirtualClock]:
    """Time in this test's database stands still until the test moves it."""
    clock = await virtual_clock(database)
    yield clock
    await clock.close()


# What follows comes in two modes, so that every test of store and engine runs directly and through a pooler that
# changes the backend after each transaction. `tests.kit.work.only_direct` marks those that need LISTEN.


@pytest.fixture(params=["direct", pytest.param("pooled", marks=pytest.mark.slow)])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def gateway(mode: str, database: str) -> AsyncIterator[str]:
    """The DSN by which stores reach the database."""
    if mode == "direct":
        yield database
        return
    async with Pooler(database) as pooler:
        yield pooler.dsn


@pytest.fixture
async def store(mode: str, gateway: str) -> AsyncIterator[Store]:
    store = Store(gateway, pooled=mode == "pooled")
    yield store
    await store.close()


@pytest.fixture
async def engine(store: Store, clock: VirtualClock) -> AsyncIterator[Engine]:
    """An engine whose loops do not run: a test calls its ticks, and moves `clock`."""
    engine = Engine(store, **by_hand(clock))
    yield engine
    await engine.close()


NewEngine = Callable[..., Any]


@pytest.fixture
async def new_engine(mode: str, gateway: str, clock: VirtualClock) -> AsyncIterator[NewEngine]:
    """Makes more engines like `engine`, each with connections of its own."""
    async with AsyncExitStack() as stack:

        async def new(**options: Any) -> Engine:
            store = Store(gateway, pooled=mode == "pooled")
            engine = Engine(store, **{**by_hand(clock), **options})
            stack.push_async_callback(engine.close)
            return engine

        yield new


@pytest.fixture
async def live_engine(mode: str, gateway: str) -> AsyncIterator[Engine]:
    """An engine that runs in real time with all its loops; directly it listens, through the pooler it polls."""
    store = Store(gateway, pooled=mode == "pooled")
    async with Engine(store, listen=mode == "direct", poll_s=0.05) as engine:
        yield engine
