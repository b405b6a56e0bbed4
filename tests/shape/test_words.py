"""One vocabulary: words that every engineer of the field knows. A word that is not ours comes with the one that is."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator

import pytest
from tests.shape.source import ROOT, Module, modules

# Parts of identifiers (`said`, `was_told`, `HeardBeat`) that say nothing to a new reader.
IN_NAMES = {
    "said": "request, report, message or reply",
    "told": "answer, options or request",
    "heard": "received",
    "asked": "request or expected",
    "whoever": "caller, worker or client",
    "whom": "caller, worker or client",
    "somebody": "caller, worker or client",
    "everybody": "all",
    "hub": "notifications",
    "chance": "randomness",
    "patience": "backoff, deadline or lock_waits",
    "keeper": "extender or supervisor",
    "papers": "tls_files or certificates",
    "rubble": "unreadable",
    "seat": "slot",
    "doorway": "entry",
    "resting": "idle",
    "hurry": "make_available",
    "hurried": "made_available",
    "bury": "dead_letter",
    "buried": "dead_lettered",
    "letter": "dead_letter or message",
    "letters": "dead_letters or messages",
    "sighting": "machine_status",
    "cage": "sandbox",
    "caged": "sandboxed",
    "beat": "heartbeat",
    "beats": "heartbeats",
    "speech": "message",
    "spoken": "announced",
    "hear": "listen or receive",
    "hears": "receives",
    "look": "status, read or check",
    "looks": "reads or checks",
    "looking": "reading or checking",
    "away": "unavailable",
    "death": "exit",
    "around": "environment",
    "leaving": "exit",
    "house": "context",
}
# Words of comments and docstrings.
IN_PROSE = {
    "said": "reported, sent or requested",
    "told": "reported, given or notified",
    "heard": "received",
    "whoever": "the caller, the worker, the client",
    "whom": "the caller, the worker, the client",
    "spoken of": "announced",
    "taken up": "started",
    "hurried": "made available",
    "buried": "dead-lettered",
    "cage": "sandbox",
}
# Where such a word is the interface: names that users know, and APIs of others.
ALLOWED: dict[str, set[str]] = {
    "windlass.contracts.lease.server.dead_letters": {"letter", "letters"},  # names of the API: /api/v1/letters
    "windlass.contracts.lease.conformance.stand_in": {"bury"},  # the handler of the route /internal/wakeups/bury
    "windlass.api.routes.runs": {"asked"},  # a field of the answer to POST /runs/{run_id}/cancel
    "windlass.cli.dead_letters": {"letter", "letters"},  # the argument LETTER-ID of `windlass letters`
}
# What is left, by package of the source and by folder of the tests. The numbers only shrink.
LEFT: dict[str, int] = {
    "tests.api": 58,
    "tests.blobs": 11,
    "tests.cli": 44,
    "tests.contracts": 500,
    "tests.datasets": 1,
    "tests.e2e": 74,
    "tests.isolation": 35,
    "tests.kernel": 196,
    "tests.kit": 1,
    "tests.net": 5,
    "tests.sdk": 33,
    "tests.shape": 11,
    "tests.sim": 120,
    "tests.testing": 3,
}

_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_DEAD_LETTER = re.compile(r"dead_?letters?", re.IGNORECASE)  # the replacement of "letter" contains it
_PROSE = re.compile(rf"\b({'|'.join(IN_PROSE)})\b", re.IGNORECASE)


def names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every identifier that a module makes: of functions, classes, parameters, variables and attributes."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name
            case ast.arg():
                yield node.lineno, node.arg
            case ast.Name(ctx=ast.Store()):
                yield node.lineno, node.id
            case ast.Attribute(ctx=ast.Store()):
                yield node.lineno, node.attr
            case ast.alias(asname=str() as name):
                yield node.lineno, name


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Comments and docstrings, without what stands in backticks."""
    for node in ast.walk(ast.parse(text)):
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if documented and (docstring := ast.get_docstring(node)) is not None:  # type: ignore[arg-type]
            yield node.body[0].lineno, re.sub(r"`[^`]*`", "", docstring)  # type: ignore[attr-defined]
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], re.sub(r"`[^`]*`", "", token.string)


def strange_words(module: Module) -> list[str]:
    allowed = ALLOWED.get(module.name, set())
    found = [
        f"{module.path}:{line}: {name}: instead of {part.lower()} write {IN_NAMES[part.lower()]}"
        for line, name in names(module.tree)
        for part in _PART.findall(_DEAD_LETTER.sub("", name))
        if part.lower() in IN_NAMES and part.lower() not in allowed
    ]
    return found + [
        f"{module.path}:{line}: instead of {word.lower()!r} write {IN_PROSE[word.lower()]}"
        for line, text in prose(module.text)
        for word in _PROSE.findall(text)
    ]


def package(name: str) -> str:
    """windlass.contracts.lease.worker.child -> contracts.lease; tests.sim.job -> tests.sim."""
    if not name.startswith("windlass."):
        return ".".join(name.split(".")[:2])
    parts = name.split(".")[1:]
    return ".".join(parts[:2] if parts[:1] == ["contracts"] else parts[:1])


def ours() -> list[Module]:
    """The modules of the source, and those of tests, bench, docs and examples."""
    return [
        *(module for module in modules() if not module.name.endswith("_pb2")),
        *(
            Module(
                ".".join(path.relative_to(ROOT).with_suffix("").parts), str(path.relative_to(ROOT)), path.read_text()
            )
            for folder in ("tests", "bench", "docs", "examples")
            for path in sorted((ROOT / folder).rglob("*.py"))
            if "generated" not in path.parts
        ),
    ]


def test_names_and_prose_use_the_words_of_the_field() -> None:
    found = [(package(module.name), problem) for module in ours() for problem in strange_words(module)]
    counts = Counter(place for place, _ in found)

    assert [problem for place, problem in found if counts[place] > LEFT.get(place, 0)] == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def f(said): ...", "said: instead of said write request"),
        ("class HeardBeat: ...", "instead of heard write received"),
        ("was_told = 1", "instead of told write answer"),
        ("self.hub = 1", "instead of hub write notifications"),
        ('"""Whoever comes first."""', "instead of 'whoever' write the caller"),
        ("x = 1  # what was said", "instead of 'said' write reported"),
    ],
)
def test_a_strange_word_is_found_with_its_replacement(text: str, says: str) -> None:
    assert says in strange_words(Module("windlass.core.x", "x.py", text))[0]


@pytest.mark.parametrize(
    "text", ["aside = 1", "dead_letters = 1", "github = 1", "x.tell()", '"""See `said`."""', "received = 1"]
)
def test_other_words_are_let_through(text: str) -> None:
    assert strange_words(Module("windlass.core.x", "x.py", text)) == []
