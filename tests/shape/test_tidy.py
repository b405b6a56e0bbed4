"""A ratchet for size and habits: new code keeps within the lines, old code that does not is listed until it does."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from tests.shape.source import SRC, Module, modules

FUNCTION_LINES_MAX = 60
MODULE_LINES_MAX = 500

# Known exceptions with their present size. They may shrink but not grow, and go when they are no longer needed.
LONG_FUNCTIONS: dict[str, int] = {}
LONG_MODULES: dict[str, int] = {}

# The database's clock is the only one that counts. Who else reads the wall clock, and why that decides nothing:
WALL_CLOCK_READERS = {
    "src/windlass/engine/randomness.py",  # ids carry a time for their order only; no rule reads it
    "src/windlass/cli/certs.py",  # from when to when a certificate is good
    "src/windlass/contracts/lease/tls/server.py",  # whether one is still good, as the handshake asked by the same clock
    "src/windlass/cli/doctor.py",  # tells a person how far this machine's clock is off
    "src/windlass/contracts/callback/worker/worker.py",  # how old a signature is; what it lets through is still fenced
    "src/windlass/contracts/machine/worker/job.py",  # part of a file's name
    "src/windlass/contracts/machine/worker/s3.py",  # S3 wants the time in its signatures
    "src/windlass/blobs/leftover.py",  # the same
    "src/windlass/contracts/machine/export/mods/program.py",  # the day on which a minimal record was made
    "src/windlass/contracts/callback/conformance/stand_in.py",  # stands in for an engine towards somebody else's worker
    "src/windlass/contracts/lease/conformance/stand_in.py",  # the same
    "src/windlass/contracts/lease/conformance/certificates.py",  # from when to when a certificate is good
}
WALL_CLOCKS = re.compile(r"(^|\.)(time\.(time|time_ns|localtime|gmtime)|(datetime|date)\.(now|utcnow|today))$")

QUERY_FILES = sorted(
    file for file in (SRC / "windlass").rglob("*.sql") if "migrations" not in file.parts and file.name != "schema.sql"
)
QUERY = re.compile(r"^-- (?:name|part): (\S+)\n(.*?)(?=^-- (?:name|part): |\Z)", re.MULTILINE | re.DOTALL)


def functions(module: Module) -> dict[str, int]:
    """Every function with its number of lines, decorators left out."""
    found: dict[str, int] = {}

    def walk(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            name = f"{prefix}.{child.name}" if named else prefix  # type: ignore[attr-defined]
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                found[name] = (child.end_lineno or child.lineno) - child.lineno + 1
            walk(child, name)

    walk(module.tree, module.name)
    return found


def ratchet(sizes: dict[str, int], longest: int, known: dict[str, int]) -> list[str]:
    """What is too long and not known, has grown, or is known in vain."""
    wrong = [
        f"{name} has {size} lines, at most {known.get(name, longest)} are allowed: what is its second idea?"
        for name, size in sizes.items()
        if size > known.get(name, longest)
    ]
    vain = [name for name in known if sizes.get(name, 0) <= longest]
    return wrong + [f"{name} is short enough now: take it off the list" for name in vain]


def wall_clock_reads(source: list[Module]) -> list[str]:
    found = []
    for module in source:
        hidden = {name for name in module.imports if WALL_CLOCKS.search(name)}  # `from time import time`
        reads = [f"{module.path}:{line}: {used}" for line, used in module.dotted if WALL_CLOCKS.search(used)]
        found += [*reads, *(f"{module.path}: imports {name}" for name in sorted(hidden))]
    return found


def prints(source: list[Module]) -> list[str]:
    return [
        f"{module.path}:{line}: print"
        for module in source
        if not module.name.startswith("windlass.cli")
        for line, used in module.dotted
        if used == "print"
    ]


def queries(text: str) -> dict[str, str]:
    return dict(QUERY.findall(text))


def without_a_promise(text: str) -> list[str]:
    return [name for name, body in queries(text).items() if not re.match(r"--[ \t]*[^\s-]", body)]


# --------------------------------------------------------------------------------------------- the source as it is


def test_functions_fit_a_screen() -> None:
    sizes = {name: size for module in modules() for name, size in functions(module).items()}

    assert ratchet(sizes, FUNCTION_LINES_MAX, LONG_FUNCTIONS) == []


def test_modules_are_one_idea() -> None:
    sizes = {module.name: len(module.text.splitlines()) for module in modules()}

    assert ratchet(sizes, MODULE_LINES_MAX, LONG_MODULES) == []


def test_every_module_says_what_it_owns() -> None:
    silent = [module.path for module in modules() if module.tree.body and not ast.get_docstring(module.tree)]

    assert silent == []


def test_only_the_command_line_prints() -> None:
    assert prints(modules()) == []


def test_nobody_reads_the_wall_clock() -> None:
    reads = wall_clock_reads(modules())

    assert [read for read in reads if read.split(":")[0] not in WALL_CLOCK_READERS] == []
    assert {read.split(":")[0] for read in reads} == WALL_CLOCK_READERS, "take those that no longer do off the list"


@pytest.mark.parametrize("file", QUERY_FILES, ids=lambda file: file.name)
def test_every_query_promises_something(file: Path) -> None:
    text = file.read_text(encoding="utf-8")

    assert queries(text), "a file without a query"
    assert without_a_promise(text) == []


def test_every_query_has_its_own_name_and_is_used_by_the_store() -> None:
    names = [name for file in QUERY_FILES for name in queries(file.read_text(encoding="utf-8"))]
    said = {node.value for module in modules() for node in ast.walk(module.tree) if isinstance(node, ast.Constant)}
    said |= {part for file in QUERY_FILES for part in re.findall(r"\{(\w+)\(", file.read_text(encoding="utf-8"))}

    assert sorted({name for name in names if names.count(name) > 1}) == []
    assert sorted(set(names) - said) == []


# --------------------------------------------------------------------------------------------- the test itself


def module(text: str, name: str = "windlass.engine.loops.ticks") -> Module:
    return Module(name, f"src/{name.replace('.', '/')}.py", text)


def test_the_length_of_a_function_is_measured_wherever_it_is() -> None:
    text = "class A:\n    @property\n    def b(self):\n        def c():\n            pass\n        return c\n"

    assert functions(module(text)) == {"windlass.engine.loops.ticks.A.b": 4, "windlass.engine.loops.ticks.A.b.c": 2}


@pytest.mark.parametrize(
    ("size", "known", "says"),
    [
        (60, {}, []),
        (61, {}, ["f has 61 lines, at most 60 are allowed: what is its second idea?"]),
        (70, {"f": 70}, []),
        (71, {"f": 70}, ["f has 71 lines, at most 70 are allowed: what is its second idea?"]),
        (60, {"f": 70}, ["f is short enough now: take it off the list"]),
    ],
    ids=["fits", "too long", "known", "has grown", "has shrunk"],
)
def test_the_ratchet_only_turns_one_way(size: int, known: dict[str, int], says: list[str]) -> None:
    assert ratchet({"f": size}, 60, known) == says


def test_an_exception_for_what_is_gone_goes_too() -> None:
    assert ratchet({}, 60, {"f": 70}) == ["f is short enough now: take it off the list"]


@pytest.mark.parametrize(
    "statement",
    [
        "time.time()",
        "time.time_ns()",
        "datetime.now(UTC)",
        "datetime.datetime.utcnow()",
        "date.today()",
        "read = datetime.now",
        "from time import time",
    ],
)
def test_a_wall_clock_is_found(statement: str) -> None:
    assert len(wall_clock_reads([module(statement)])) == 1


@pytest.mark.parametrize("statement", ["time.monotonic()", "tx.now()", "self.now", "now", "datetime(2030, 1, 1)"])
def test_other_clocks_are_none_of_its_business(statement: str) -> None:
    assert wall_clock_reads([module(statement)]) == []


def test_a_print_is_found_outside_the_command_line() -> None:
    assert prints([module("print(1)")]) == ["src/windlass/engine/loops/ticks.py:1: print"]
    assert prints([module("print(1)", "windlass.cli.dev"), module("console.print(1)")]) == []


def test_a_query_without_a_promise_is_found() -> None:
    text = "-- name: good\n-- Finds it.\nselect 1\n\n-- name: bad\nselect 2\n-- late\n\n-- name: empty\n--\nselect 3\n"

    assert list(queries(text)) == ["good", "bad", "empty"]
    assert without_a_promise(text) == ["bad", "empty"]
