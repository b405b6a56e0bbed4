"""Writes the parts of the documentation that are derived from the code: `python -m docs.generate`.

With `--check` nothing is written; stale parts are named, and the exit code is 1. `tests/shape` asks the same, so a page
cannot fall behind. What is generated: the moves of a task in docs/concepts/lifecycle.md (from `core.states.TABLE`),
docs/reference/errors.md (from the error tree), settings.md and cli.md (see `docs.command_page`), the tables of
conformance.md (from the cases of each kit), the map in CONTRIBUTING.md and modules.md (from docstrings), the lists of
promises and decisions in docs/README.md (from their pages), and tests/shape/public_names.txt.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path

from docs.command_page import cli_page, settings_page
from windlass.core.states import TABLE, TERMINAL, State, Verb
from windlass.errors import ContractViolation, LeaseLost, Rejected, Unavailable, WindlassError
from windlass.testing.conformance.kit import Kit

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src/windlass"
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

# The actor and the reason of each verb. A verb without an entry is an error: add it here and to the glossary.
VERBS: dict[Verb, tuple[str, str]] = {
    Verb.UNBLOCK: ("engine", "every task that this one waits for succeeded (or ended, if any outcome is accepted)"),
    Verb.SKIP: ("engine", "a task that this one waits for failed or was skipped"),
    Verb.CLAIM: ("worker", "a worker claimed the task; a new attempt begins"),
    Verb.COMPLETE: ("worker", "the handler returned"),
    Verb.FAIL: ("worker", "the handler failed, and the error is permanent or no attempt is left"),
    Verb.RETRY: ("engine", "the handler failed, and another attempt follows after a delay"),
    Verb.RELEASE: ("worker", "the worker returned the task without running it; no budget is used"),
    Verb.SLEEP: ("worker", "the workflow waits for a time or a signal"),
    Verb.WAKE: ("engine", "the time has passed, or the signal arrived"),
    Verb.PARK: ("worker", "the workflow's code no longer matches its recorded steps; an operator must decide"),
    Verb.RESUME: ("operator", "an operator lets the parked task continue"),
    Verb.EXPIRE: ("engine", "the lease expired: the worker is lost, and another attempt follows"),
    Verb.CANCEL: (
        "client, worker or engine",
        "requested by a client, reported by a worker, or caused by a task that this one waits for",
    ),
    Verb.TIME_OUT: ("engine", "the attempt exceeded its timeout, and another attempt follows"),
}
# Reasons that depend on the target state.
BECAUSE: dict[tuple[Verb, State], str] = {
    (Verb.SLEEP, State.QUEUED): "the workflow waits for a time or a signal that has already come",
    (Verb.EXPIRE, State.FAILED): "the worker is lost, and `max_losses` is reached",
    (Verb.EXPIRE, State.CANCELLED): "the worker is lost, and a cancel was requested",
    (
        Verb.TIME_OUT,
        State.FAILED,
    ): "the deadline passed, the last attempt timed out, or the grace period of a cancel ended",
    (Verb.TIME_OUT, State.CANCELLED): "the attempt timed out, and a cancel was requested",
}

WHAT_TO_DO: dict[type[WindlassError], str] = {
    Rejected: "Change the request. The same request is refused again.",
    LeaseLost: "Stop working on this attempt and send no further reports. Another worker may run the task.",
    Unavailable: "Send the same request again, after a pause.",
    ContractViolation: "Fix the peer. Its message does not follow the protocol.",
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
    conformance, contributing = ROOT / "docs/reference/conformance.md", ROOT / "CONTRIBUTING.md"
    lists = {folder: partial(list_of_pages, folder) for folder in ("promises", "decisions")}
    return {
        index: with_parts(index.read_text(), lists),
        lifecycle: with_parts(lifecycle.read_text(), {"diagram": state_diagram, "moves": moves_table}),
        conformance: with_parts(conformance.read_text(), {name: partial(cases_table, name) for name in KITS}),
        contributing: with_parts(contributing.read_text(), {"map": package_map}),
        ROOT / "docs/reference/modules.md": modules_page(),
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


def package_map() -> str:
    """Every package with the first line of its docstring, indented by depth."""
    lines = ["```text", "src/windlass/"]
    for package in packages():
        depth = package.relative_to(SOURCE).as_posix().count("/") + 1
        lines.append(f"{'  ' * depth + package.name + '/':<22} {first_line(package / '__init__.py')}")
    lines += [f"  {name + '.py':<20} {first_line(SOURCE / f'{name}.py')}" for name in ("serve", "connect", "errors")]
    return "\n".join([*lines, "```", ""])


def modules_page() -> str:
    """Every module with the first line of its docstring, a section for each package."""
    sections = [f"<!-- generated by {COMMAND} -->\n# Modules\n\nWhat each module owns, from its docstring.\n"]
    for package in packages():
        own = sorted(path for path in package.glob("*.py") if path.stem not in ("__init__", "__main__"))
        rows = [f"| `{path.name}` | {first_line(path)} |" for path in own if not path.stem.endswith("_pb2")]
        if rows:
            head = f"## {package.relative_to(SOURCE).as_posix()}\n\n{first_line(package / '__init__.py')}\n"
            sections.append("\n".join([head, "| module | owns |", "| --- | --- |", *rows, ""]))
    return "\n".join(sections)


def packages() -> list[Path]:
    return sorted(path.parent for path in SOURCE.glob("*/**/__init__.py"))


def first_line(path: Path) -> str:
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0]


def cases_table(contract: str) -> str:
    """The cases of one conformance kit."""
    kit: Kit[object] = import_module(f"windlass.contracts.{contract}.conformance").KIT
    rows = [f"| {case.number} | {case.level} | {case.title} | {case.duty} |" for case in kit.cases]
    return "\n".join(["| | level | the worker … | requirement |", "| --- | --- | --- | --- |", *rows, ""])


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
        raise ValueError(f"add these verbs to VERBS in docs/generate.py: {', '.join(sorted(missing))}")
    order = list(State)
    lines = ["| verb | actor | from | to | reason |", "| --- | --- | --- | --- | --- |"]
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
        f"<!-- generated by {COMMAND} from src/windlass/errors.py -->",
        "# Errors",
        "",
        "Every error that Windlass raises on purpose is a `WindlassError`. It has a `code` (stable text, the same on",
        "every wire), a `message` for people, and `details` (a dictionary). What to do next depends only on its",
        "family, so a caller that knows the four families can handle errors that it has never seen.",
        "",
        "A failed handler is not a `WindlassError`. It is a `Failure`, which is stored with its task.",
        "",
    ]
    for family in WHAT_TO_DO:
        lines += [f"## {family.__name__}", "", f"{_meaning(family)} **What to do:** {WHAT_TO_DO[family]}", ""]
        lines += ["| code | class | meaning |", "| --- | --- | --- |"]
        lines += [f"| `{error.code}` | `{error.__name__}` | {_meaning(error)} |" for error in error_tree(family)]
        lines += [""]
    return "\n".join(lines)


def error_tree(root: type[WindlassError]) -> list[type[WindlassError]]:
    """A class of `errors` and all below it there, parents first."""
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
