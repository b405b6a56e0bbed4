"""`windlass conformance`: hold a worker that somebody wrote against the contract that it is meant to speak."""

from __future__ import annotations

import signal
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.markup import escape

from windlass.cli.option import Json, load
from windlass.cli.output import Exit, Unusable, console, print_json, say
from windlass.core.error import Invalid
from windlass.testing.conformance import Level, Result, ignore

INDENT = " " * 19

Only = Annotated[tuple[int, ...], Parameter(help="The number of a case to try; repeatable.", show_default=False)]
LevelName = Annotated[Literal["required", "hardening", "all"], Parameter(name="--level", help="Which cases to try.")]
Patience = Annotated[float, Parameter(help="Seconds that the worker gets for each thing that it has to do.")]
Parallel = Annotated[int, Parameter(help="How many cases are tried side by side.")]
Command = Annotated[
    str, Parameter(allow_leading_hyphen=True, help="The program and its arguments, after `--`.", show_default=False)
]


def callback(
    *,
    worker: str,
    secret: str | None = None,
    kind: str = "conformance",
    level: LevelName = "all",
    only: Only = (),
    interval_ms: int = 250,
    patience: Patience = 10.0,
    parallel: Parallel = 1,
    callback_url: str | None = None,
    json: Json = False,
) -> int:
    """Push tasks to a worker, take its callbacks, and report where it breaks the contract. The worker needs one
    handler, which the page "Check a worker of your own" describes. Exit code 1 if a case fails.

    Parameters
    ----------
    worker
        Where the worker takes pushes, such as http://127.0.0.1:8080/windlass.
    secret
        What pushes are signed with, as the worker knows it; default: WINDLASS_SIGNING_SECRET.
    kind
        The kind of task that the worker's handler for these cases has.
    interval_ms
        The heartbeat interval that the worker is told.
    callback_url
        How the worker reaches this machine, if not directly; callbacks are taken at all addresses then.
    """
    from windlass.testing.callback import check_worker

    secret = secret or (load().settings.signing_secret or "").partition(" ")[0]
    if not secret:
        raise Unusable(
            "--secret: give what pushes are signed with, as the worker knows it, or set WINDLASS_SIGNING_SECRET"
        )
    with _usable():
        results = check_worker(
            worker, secret, kind=kind, only=only, level=_level(level), interval_ms=interval_ms, patience_s=patience,
            parallel=parallel, callback_url=callback_url, told=_teller(json),
        )  # fmt: skip
    return _tell_all(worker, results, json=json)


def stdio(
    *command: Command,
    language: str = "python",
    level: LevelName = "all",
    only: Only = (),
    patience: Patience = 10.0,
    parallel: Parallel = 1,
    json: Json = False,
) -> int:
    """Start a worker, send it requests, and report where it breaks the contract, as in: `windlass conformance stdio --
    perl worker.pl`. Each case starts it anew. Exit code 1 if a case fails.

    Parameters
    ----------
    language
        What its scripts are written in: python, sh, javascript, or a JSON file with a script for each of the names
        that the reference page lists.
    """
    from windlass.testing.stdio import check_worker, read_scripts

    _check_command("stdio", command)
    with _usable():
        results = check_worker(
            command, read_scripts(language), only=only, level=_level(level), patience_s=patience, parallel=parallel,
            told=_teller(json),
        )  # fmt: skip
    return _tell_all(" ".join(command), results, json=json)


def lease(
    *command: Command,
    level: LevelName = "all",
    only: Only = (),
    lease: float = 2.0,
    patience: Patience = 10.0,
    parallel: Parallel = 1,
    json: Json = False,
) -> int:
    """Start a worker that claims tasks over mTLS, serve `/internal` and its wake-ups, and report where it breaks the
    contract, as in: `windlass conformance lease -- ./worker`. Each case starts it anew. The environment names the
    server, the certificates and the queue; the page "Check a worker of your own" lists these and the operator that it
    needs. Exit code 1 if a case fails.

    Parameters
    ----------
    lease
        Seconds that a lease lasts without a heartbeat.
    """
    from windlass.testing.lease import check_worker

    _check_command("lease", command)
    with _usable():
        results = check_worker(
            command, only=only, level=_level(level), lease_s=lease, patience_s=patience, parallel=parallel,
            told=_teller(json),
        )  # fmt: skip
    return _tell_all(" ".join(command), results, json=json)


def machine(
    *command: Command,
    program: Literal["any", "mods"] = "any",
    store: Literal["s3", "url"] = "s3",
    level: LevelName = "all",
    only: Only = (),
    patience: Patience = 20.0,
    parallel: Parallel = 1,
    json: Json = False,
) -> int:
    """Start a program in the environment of its machine, take its upload and its callback, and report where it breaks
    the contract, as in: `windlass conformance machine -- ./export`. Exit code 1 if a case fails.

    Parameters
    ----------
    program
        What it exports: mods reads entities from the archive that the environment names; any other program makes what
        its options say, which the page "Check a worker of your own" describes.
    store
        Where it uploads: to a bucket with the keys in R2_…, or by PUT to UPLOAD_URL.
    """
    from windlass.testing.machine import check_program

    _check_command("machine", command)
    with _usable():
        results = check_program(
            command, subject=program, store=store, only=only, level=_level(level), patience_s=patience,
            parallel=parallel, told=_teller(json),
        )  # fmt: skip
    return _tell_all(" ".join(command), results, json=json)


def registry(
    *command: Command,
    level: LevelName = "all",
    only: Only = (),
    heartbeat: int = 1,
    patience: Patience = 10.0,
    parallel: Parallel = 1,
    json: Json = False,
) -> int:
    """Start a worker that speaks `kagzi.WorkflowService`, serve it, and report where it breaks the contract, as in:
    `windlass conformance registry -- ./worker`. Each case starts it anew. The environment names the server, the queue
    and the namespace; the page "Check a worker of your own" lists these and the workflow types that it needs. Exit
    code 1 if a case fails.

    Parameters
    ----------
    heartbeat
        Seconds between two heartbeats, as the worker is told.
    """
    from windlass.testing.registry import check_worker

    _check_command("registry", command)
    with _usable():
        results = check_worker(
            command, only=only, level=_level(level), heartbeat_s=heartbeat, patience_s=patience, parallel=parallel,
            told=_teller(json),
        )  # fmt: skip
    return _tell_all(" ".join(command), results, json=json)


# --------------------------------------------------------------------------------------------- what all of them share


def _level(name: str) -> Level | None:
    return None if name == "all" else Level(name)


def _check_command(contract: str, command: Sequence[str]) -> None:
    if not command:
        raise Unusable(f"command: give the program after --, as in: windlass conformance {contract} -- ./worker")


@contextmanager
def _usable() -> Iterator[None]:
    """What cannot be tried at all is wrong use. SIGTERM ends the check as Ctrl-C does: with the workers that it
    started."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except Invalid as error:
        raise Unusable(error.message, **error.details) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _teller(json: bool) -> Callable[[Result], None]:
    return ignore if json else _tell


def _tell(result: Result) -> None:
    mark = "[green]ok[/green]    " if result.passed else "[red]failed[/red]"
    say(f"{mark} {result.number:>2}  {result.level:<9}  {escape(result.title)}")
    if not result.passed:
        say(f"           [bold]but[/bold]     {escape(_fit(result.problem))}")
        say(f"           [bold]instead[/bold] {escape(_fit(result.duty))}")


def _fit(text: str) -> str:
    """In lines of the terminal, if there is one; whoever reads from a pipe gets one line."""
    if not console.is_terminal:
        return text
    return textwrap.fill(text, max(console.width, 60), initial_indent=INDENT, subsequent_indent=INDENT).lstrip()


def _tell_all(worker: str, results: Sequence[Result], *, json: bool) -> int:
    failed = [result for result in results if not result.passed]
    if json:
        levels = {level: _count([result for result in results if result.level == level]) for level in Level}
        print_json({"worker": worker, **_count(results), "levels": levels, "cases": results})
    elif failed:
        parts = [f"{sum(result.level == level for result in failed)} {level}" for level in Level]
        say(f"{len(failed)} of {len(results)} cases failed: {', '.join(parts)}.")
    else:
        say(f"All {len(results)} cases passed.")
    return Exit.FAILED if failed else Exit.OK


def _count(results: Sequence[Result]) -> dict[str, int]:
    passed = sum(result.passed for result in results)
    return {"passed": passed, "failed": len(results) - passed}
