"""`windlass conformance`: hold a worker that somebody wrote against the contract that it is meant to speak."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from cyclopts import Parameter
from rich.markup import escape

from windlass.cli.option import Json, load
from windlass.cli.output import Exit, Unusable, print_json, say
from windlass.core.error import Invalid
from windlass.testing.callback import Result, check_worker
from windlass.testing.stdio import check_worker as check_program
from windlass.testing.stdio import read_scripts


def callback(
    *,
    worker: str,
    secret: str | None = None,
    kind: str = "conformance",
    only: tuple[int, ...] = (),
    interval_ms: int = 250,
    patience: float = 10.0,
    parallel: int = 1,
    callback_url: str | None = None,
    json: Json = False,
) -> int:
    """Act as the engine towards a worker: push to it, hear what it calls back, and say where it breaks the contract.
    The worker needs one handler, which works for as many milliseconds as `work_ms` in its payload says, stops when it
    is told to, and then ends as `outcome` says: SUCCEEDED or FAILED. Exit code 1 if a case fails.

    Parameters
    ----------
    worker
        Where the worker takes pushes, such as http://127.0.0.1:8080/windlass.
    secret
        What pushes are signed with, as the worker knows it; default: WINDLASS_SIGNING_SECRET.
    kind
        The kind of task that the worker's handler for these cases has.
    only
        The numbers of the cases to try; by default all.
    interval_ms
        The heartbeat interval that the worker is told.
    patience
        Seconds that the worker gets for what it has to do.
    parallel
        How many cases are tried side by side.
    callback_url
        How the worker reaches this machine, if not directly; callbacks are taken at all addresses then.
    """
    secret = secret or (load().settings.signing_secret or "").partition(" ")[0]
    if not secret:
        raise Unusable(
            "--secret: give what pushes are signed with, as the worker knows it, or set WINDLASS_SIGNING_SECRET"
        )
    try:
        results = check_worker(
            worker, secret, kind=kind, only=only, interval_ms=interval_ms, patience_s=patience, parallel=parallel,
            callback_url=callback_url, told=(lambda _: None) if json else _tell,
        )  # fmt: skip
    except Invalid as error:
        raise Unusable(error.message, **error.details) from None
    return _tell_all(worker, results, json=json)


def stdio(
    *command: Annotated[str, Parameter(allow_leading_hyphen=True)],
    language: str = "python",
    only: tuple[int, ...] = (),
    patience: float = 10.0,
    json: Json = False,
) -> int:
    """Start a worker, send it requests, and say where it breaks the contract: `windlass conformance stdio -- perl
    worker.pl`. Each case starts it anew. Exit code 1 if a case fails.

    Parameters
    ----------
    command
        The program, and its arguments, after `--`.
    language
        What its scripts are written in: python, sh, or a JSON file with a script for each of the names that the
        reference page lists.
    only
        The numbers of the cases to try; by default all.
    patience
        Seconds that the worker gets for each answer.
    """
    if not command:
        raise Unusable("command: give the program after --, as in: windlass conformance stdio -- ./worker")
    try:
        results = check_program(
            command, read_scripts(language), only=only, patience_s=patience, told=(lambda _: None) if json else _tell
        )
    except Invalid as error:
        raise Unusable(error.message, **error.details) from None
    return _tell_all(" ".join(command), results, json=json)


def _tell_all(worker: str, results: Sequence[Result], *, json: bool) -> int:
    failed = sum(not result.passed for result in results)
    if json:
        print_json({"worker": worker, "passed": len(results) - failed, "failed": failed, "cases": results})
    else:
        say(f"{failed} of {len(results)} cases failed." if failed else f"All {len(results)} cases passed.")
    return Exit.FAILED if failed else Exit.OK


def _tell(result: Result) -> None:
    mark = "[green]ok[/green]    " if result.passed else "[red]failed[/red]"
    say(f"{mark} {result.number:>2}  {escape(result.title)}")
    if not result.passed:
        say(f"           [bold]but[/bold]     {escape(result.problem)}")
        say(f"           [bold]instead[/bold] {escape(result.duty)}")
