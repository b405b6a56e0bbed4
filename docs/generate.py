"""Writes the parts of the documentation that are derived from the code: `python -m docs.generate`.

With `--check` nothing is written; stale parts are named, and the exit code is 1. `tests/shape` asks the same, so a page
cannot fall behind. What is generated: the moves of a task in docs/concepts/lifecycle.md (from `core.transition.TABLE`),
docs/reference/errors.md (from the error tree), settings.md and cli.md (see `docs.command_page`), the tables of
conformance.md (from the cases of each kit), the lists of promises and decisions in docs/README.md (from their pages),
and tests/shape/public_names.txt.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path

from docs.command_page import cli_page, settings_page
from windlass.core.error import ContractViolation, LeaseLost, Rejected, Unavailable, WindlassError
from windlass.core.transition import TABLE, TERMINAL, State, Verb
from windlass.testing.conformance import Kit

ROOT = Path(__file__).resolve().parent.parent
COMMAND = "python -m docs.generate"
PUBLIC_MODULES = (
    "windlass",
    "windlass.sdk",
    "windlass.sdk.machine",
    "windlass.registry",
    "windlass.stdio",
    "windlass.testing",
)

KITS = ("callback", "lease", "machine", "registry", "stdio")

# Who does it, and what it means. A verb without an entry stops the generator: write it here and in the glossary.
VERBS: dict[Verb, tuple[str, str]] = {
    Verb.UNBLOCK: ("engine", "every task that this one waits for has succeeded (or ended, where any end will do)"),
    Verb.SKIP: ("engine", "a task that this one waits for failed or was skipped"),
    Verb.CLAIM: ("worker", "takes the task: a new attempt begins"),
    Verb.COMPLETE: ("worker", "the handler returned"),
    Verb.FAIL: ("worker", "the handler failed, and no further try makes sense or is left"),
    Verb.RETRY: ("engine", "the handler failed, and another try follows after a delay"),
    Verb.RELEASE: ("worker", "gives the task back unrun; no budget is used"),
    Verb.SLEEP: ("worker", "the workflow waits for a time or a signal"),
    Verb.WAKE: ("engine", "the time or the signal came"),
    Verb.PARK: ("worker", "its code no longer matches the record: a person has to look"),
    Verb.RESUME: ("operator", "a parked task may go on"),
    Verb.EXPIRE: ("engine", "the lease ran out: the worker is lost, and another try follows"),
    Verb.CANCEL: ("client, worker or engine", "asked for, reported, or inherited from a task that this one waits for"),
    Verb.TIME_OUT: ("engine", "the attempt took longer than its timeout, and another try follows"),
}
# Where the target changes the reason.
BECAUSE: dict[tuple[Verb, State], str] = {
    (Verb.EXPIRE, State.FAILED): "the worker is lost, for the last time that `max_losses` allows",
    (Verb.EXPIRE, State.CANCELLED): "the worker is lost, and a cancel was asked for",
    (Verb.TIME_OUT, State.FAILED): "the deadline passed, the last try timed out, or the grace of a cancel is over",
    (Verb.TIME_OUT, State.CANCELLED): "the attempt timed out, and a cancel was asked for",
}

WHAT_TO_DO: dict[type[WindlassError], str] = {
    Rejected: "Change the request. Sent again as it is, it is refused again.",
    LeaseLost: "Stop working on this attempt and report nothing more; somebody else may have it.",
    Unavailable: "Send the same request again, after a pause.",
    ContractViolation: "Repair the peer: what it sent is not part of the protocol.",
}

Generated = dict[Path, str]


def main(arguments: list[str]) -> int:
    if unknown := [argument for argument in arguments if argument != "--check"]:
        sys.stderr.write(f"usage: {COMMAND} [--check] (not: {' '.join(unknown)})\n")
        return 2
    stale = {path: text for path, text in generated().items() if not path.exists() or path.read_text() != text}
    for path, text in stale.items():
        if "--check" not in arguments:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        sys.stdout.write(f"{'stale' if '--check' in arguments else 'wrote'} {path.relative_to(ROOT)}\n")
    return 1 if stale and "--check" in arguments else 0


def generated() -> Generated:
    """Every file with a generated part, as it should be."""
    lifecycle, index = ROOT / "docs/concepts/lifecycle.md", ROOT / "docs/README.md"
    conformance = ROOT / "docs/reference/conformance.md"
    lists = {folder: partial(list_of_pages, folder) for folder in ("promises", "decisions")}
    return {
        index: with_parts(index.read_text(), lists),
        lifecycle: with_parts(lifecycle.read_text(), {"diagram": state_diagram, "moves": moves_table}),
        conformance: with_parts(conformance.read_text(), {name: partial(cases_table, name) for name in KITS}),
        ROOT / "docs/reference/errors.md": errors_page(),
        ROOT / "docs/reference/settings.md": settings_page(COMMAND),
        ROOT / "docs/reference/cli.md": cli_page(COMMAND),
        ROOT / "tests/shape/public_names.txt": public_names(),
    }


def with_parts(page: str, parts: dict[str, Callable[[], str]]) -> str:
    """The page with what stands between each pair of markers replaced."""
    for name, make in parts.items():
        begin, end = f"<!-- generated: {name} (by {COMMAND}) -->\n", f"<!-- end of {name} -->\n"
        before, found, rest = page.partition(begin)
        _, found_end, after = rest.partition(end)
        if not (found and found_end):
            raise ValueError(f"the markers of {name} are missing: {begin.strip()} … {end.strip()}")
        page = f"{before}{begin}\n{make()}\n{end}{after}"
    return page


def list_of_pages(folder: str) -> str:
    """The pages of a folder by their titles, so that the index leads to each."""
    pages = sorted((ROOT / "docs" / folder).glob("*.md"))
    return "".join(
        f"- [{page.read_text().partition(chr(10))[0].lstrip('# ')}]({folder}/{page.name})\n" for page in pages
    )


def cases_table(contract: str) -> str:
    """The cases of one conformance kit."""
    kit: Kit[object] = import_module(f"windlass.testing.{contract}").KIT
    rows = [f"| {case.number} | {case.level} | {case.title} | {case.duty} |" for case in kit.cases]
    return "\n".join(["| | level | a good worker | in full |", "| --- | --- | --- | --- |", *rows, ""])


# --------------------------------------------------------------------------------------------- the life of a task


def state_diagram() -> str:
    """One arrow per pair of states, labelled with the verbs that lead there."""
    verbs_by_move: dict[tuple[State, State], list[Verb]] = {}
    for verb in VERBS:
        for pair in TABLE[verb]:
            verbs_by_move.setdefault(pair, []).append(verb)
    order = list(State)
    pairs = sorted(verbs_by_move, key=lambda pair: (order.index(pair[0]), order.index(pair[1])))
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> blocked: submit", "    [*] --> queued: submit"]
    lines += [f"    {source} --> {target}: {', '.join(verbs_by_move[source, target])}" for source, target in pairs]
    lines += [f"    {state} --> [*]" for state in order if state in TERMINAL]
    return "\n".join([*lines, "```", ""])


def moves_table() -> str:
    """The same moves in plain text, by verb. NOTE is left out: it records something and moves nothing."""
    missing = set(Verb) - set(VERBS) - {Verb.NOTE}
    if missing:
        raise ValueError(f"say in docs/generate.py who does what: {', '.join(sorted(missing))}")
    order = list(State)
    lines = ["| verb | who | from | to | because |", "| --- | --- | --- | --- | --- |"]
    for verb, (actor, meaning) in VERBS.items():
        targets = sorted({target for _, target in TABLE[verb]}, key=order.index)
        for target in targets:
            sources = sorted((source for source, end in TABLE[verb] if end is target), key=order.index)
            because = BECAUSE.get((verb, target), meaning)
            lines.append(f"| {verb} | {actor} | {', '.join(sources)} | {target} | {because} |")
    return "\n".join([*lines, ""])


# --------------------------------------------------------------------------------------------- errors


def errors_page() -> str:
    lines = [
        f"<!-- generated by {COMMAND} from src/windlass/core/error.py -->",
        "# Errors",
        "",
        "Every error that Windlass raises on purpose is a `WindlassError`. It has a `code` (stable text, the same on",
        "every wire), a `message` for people, and `details` (a dictionary). What to do next depends only on its",
        "family, so a caller that knows the four families can handle errors that it has never seen.",
        "",
        "A handler that fails is no error of this kind: it is a `Failure`, kept with its task.",
        "",
    ]
    for family in WHAT_TO_DO:
        lines += [f"## {family.__name__}", "", f"{_meaning(family)} **What to do:** {WHAT_TO_DO[family]}", ""]
        lines += ["| code | class | meaning |", "| --- | --- | --- |"]
        lines += [f"| `{error.code}` | `{error.__name__}` | {_meaning(error)} |" for error in error_tree(family)]
        lines += [""]
    return "\n".join(lines)


def error_tree(root: type[WindlassError]) -> list[type[WindlassError]]:
    """A class of `core.error` and all below it there, parents first."""
    children = [child for child in root.__subclasses__() if child.__module__ == WindlassError.__module__]
    return [root, *(error for child in children for error in error_tree(child))]


def _meaning(error: type[WindlassError]) -> str:
    return " ".join((error.__doc__ or "").split())


# --------------------------------------------------------------------------------------------- public names


def public_names() -> str:
    """What users may rely on: `__all__` of the public modules, one name a line."""
    names: list[str] = []
    for module in PUBLIC_MODULES:
        exported = getattr(import_module(module), "__all__", ())
        names += [module, *sorted(f"{module}.{name}" for name in exported)]
    return "\n".join([*names, ""])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
