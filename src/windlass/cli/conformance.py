"""`windlass conformance`: checks a worker against the contract that it implements."""

from __future__ import annotations

import signal
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.markup import escape

from windlass.cli.options import Json, load
from windlass.cli.output import Exit, Unusable, console, print_json, say
from windlass.errors import Invalid
from windlass.testing.conformance.kit import Level, Result, ignore

INDENT = " " * 19

Only = Annotated[tuple[int, ...], Parameter(help="Number of a case to run; repeatable.", show_default=False)]
LevelName = Annotated[Literal["required", "hardening", "all"], Parameter(name="--level", help="Cases to run.")]
StepTimeout = Annotated[float, Parameter(name="--patience", help="Seconds that the worker has for each step.")]
Parallel = Annotated[int, Parameter(help="Number of cases to run at the same time.")]
Command = Annotated[
    str, Parameter(allow_leading_hyphen=True, help="Program and arguments, after `--`.", show_default=False)
]


def callback(
    *,
    worker: str,
    secret: str | None = None,
    kind: str = "conformance",
    level: LevelName = "all",
    only: Only = (),
    interval_ms: int = 250,
    step_timeout: StepTimeout = 10.0,
    parallel: Parallel = 1,
    callback_url: str | None = None,
    json: Json = False,
) -> int:
    """Push tasks to a worker, receive its callbacks, and report violations of the contract. The worker needs one
    handler, which the page "Check a worker of your own" describes. Exit code 1 if a case fails.

    Parameters
    ----------
    worker
        URL where the worker receives pushes, such as http://127.0.0.1:8080/windlass.
    secret
        Signing secret of the worker. Default: WINDLASS_SIGNING_SECRET.
    kind
        Kind of the handler for these cases.
    interval_ms
        Heartbeat interval, in milliseconds.
    callback_url
        URL of this machine as the worker sees it. Callbacks are then received on all addresses. Default: loopback.
    """
    from windlass.contracts.callback.conformance import check_worker

    secret = secret or (load().settings.signing_secret or "").partition(" ")[0]
    if not secret:
        raise Unusable("--secret: give the signing secret of the worker, or set WINDLASS_SIGNING_SECRET")
    with _usage_errors():
        results = check_worker(
            worker, secret, kind=kind, only=only, level=_level(level), interval_ms=interval_ms, timeout_s=step_timeout,
            parallel=parallel, callback_url=callback_url, on_result=_printer(json),
        )  # fmt: skip
    return _print_summary(worker, results, json=json)


def stdio(
    *command: Command,
    language: str = "python",
    level: LevelName = "all",
    only: Only = (),
    step_timeout: StepTimeout = 10.0,
    parallel: Parallel = 1,
    json: Json = False,
) -> int:
    """Start a worker, send it requests, and report violations of the contract: `windlass conformance stdio -- perl
    worker.pl`. Each case starts a new worker. Exit code 1 if a case fails.

    Parameters
    ----------
    language
        Language of the scripts: python, sh, javascript, or a JSON file with a script for each name that the reference
        page lists.
    """
    from windlass.contracts.stdio.conformance import check_worker, read_scripts

    _check_command("stdio", command)
    with _usage_errors():
        results = check_worker(
            command, read_scripts(language), only=only, level=_level(level), timeout_s=step_timeout, parallel=parallel,
            on_result=_printer(json),
        )  # fmt: skip
    return _print_summary(" ".join(command), results, json=json)


def lease(
    *command: Command,
    level: LevelName = "all",
    only: Only = (),
    lease: float = 2.0,
    step_timeout: StepTimeout = 10.0,
    parallel: Parallel = 1,
    json: Json = False,
) -> int:
    """Start a worker that claims tasks over mTLS, serve `/internal` and its wake-ups, and report violations of the
    contract: `windlass conformance lease -- ./worker`. Each case starts a new worker. Environment variables give the
    server, the certificates and the queue; the page "Check a worker of your own" lists them and the operator that the
    worker needs. Exit code 1 if a case fails.

    Parameters
    ----------
    lease
        Seconds after which a lease without a heartbeat expires.
    """
    from windlass.contracts.lease.conformance import check_worker

    _check_command("lease", command)
    with _usage_errors():
        results = check_worker(
            command, only=only, level=_level(level), lease_s=lease, timeout_s=step_timeout, parallel=parallel,
            on_result=_printer(json),
        )  # fmt: skip
    return _print_summary(" ".join(command), results, json=json)


def machine(
    *command: Command,
    program: Literal["any", "mods"] = "any",
    store: Literal["s3", "url"] = "s3",
    level: LevelName = "all",
    only: Only = (),
    step_timeout: StepTimeout = 20.0,
    parallel: Parallel = 1,
    json: Json = False,
) -> int:
    """Start a program in the environment of a machine, receive its upload and its callback, and report violations of
    the contract: `windlass conformance machine -- ./export`. Exit code 1 if a case fails.

    Parameters
    ----------
    program
        Type of the program: `mods` exports the entities of the archive that the environment names; `any` writes what
        its options say. The page "Check a worker of your own" describes both.
    store
        Upload target: a bucket with the keys in R2_…, or PUT to UPLOAD_URL.
    """
    from windlass.contracts.machine.conformance import check_program

    _check_command("machine", command)
    with _usage_errors():
        results = check_program(
            command, subject=program, store=store, only=only, level=_level(level), timeout_s=step_timeout,
            parallel=parallel, on_result=_printer(json),
        )  # fmt: skip
    return _print_summary(" ".join(command), results, json=json)


def registry(
    *command: Command,
    level: LevelName = "all",
    only: Only = (),
    heartbeat: int = 1,
    step_timeout: StepTimeout = 10.0,
    parallel: Parallel = 1,
    json: Json = False,
) -> int:
    """Start a worker that speaks `kagzi.WorkflowService`, serve it, and report violations of the contract: `windlass
    conformance registry -- ./worker`. Each case starts a new worker. Environment variables give the server, the queue
    and the namespace; the page "Check a worker of your own" lists them and the workflow types that the worker needs.
    Exit code 1 if a case fails.

    Parameters
    ----------
    heartbeat
        Seconds between two heartbeats.
    """
    from windlass.contracts.registry.conformance import check_worker

    _check_command("registry", command)
    with _usage_errors():
        results = check_worker(
            command, only=only, level=_level(level), heartbeat_s=heartbeat, timeout_s=step_timeout, parallel=parallel,
            on_result=_printer(json),
        )  # fmt: skip
    return _print_summary(" ".join(command), results, json=json)


# --------------------------------------------------------------------------------------------- shared helpers


def _level(name: str) -> Level | None:
    return None if name == "all" else Level(name)


def _check_command(contract: str, command: Sequence[str]) -> None:
    if not command:
        raise Unusable(f"command: give the program after `--`, such as: windlass conformance {contract} -- ./worker")


@contextmanager
def _usage_errors() -> Iterator[None]:
    """Turns `Invalid` into wrong usage. SIGTERM ends the check and its workers, as Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except Invalid as error:
        raise Unusable(error.message, **error.details) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _printer(json: bool) -> Callable[[Result], None]:
    return ignore if json else _print


def _print(result: Result) -> None:
    mark = "[green]ok[/green]    " if result.passed else "[red]failed[/red]"
    say(f"{mark} {result.number:>2}  {result.level:<9}  {escape(result.title)}")
    if not result.passed:
        say(f"           [bold]but[/bold]     {escape(_fit(result.problem))}")
        say(f"           [bold]instead[/bold] {escape(_fit(result.duty))}")


def _fit(text: str) -> str:
    """Wraps text to the width of a terminal. A pipe gets one line."""
    if not console.is_terminal:
        return text
    return textwrap.fill(text, max(console.width, 60), initial_indent=INDENT, subsequent_indent=INDENT).lstrip()


def _print_summary(worker: str, results: Sequence[Result], *, json: bool) -> int:
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
