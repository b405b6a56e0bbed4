"""`windlass conformance`: checks a worker against the contract that it implements."""

from __future__ import annotations

import signal
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.markup import escape

from windlass.cli.options import Json, load, without_none
from windlass.cli.output import Exit, Unusable, console, print_json, say
from windlass.errors import Invalid
from windlass.testing.conformance.kit import Level, Result, ignore

INDENT = " " * 19

Command = Annotated[
    str, Parameter(allow_leading_hyphen=True, help="Program and arguments, after `--`.", show_default=False)
]


@Parameter(name="*")
@dataclass(frozen=True)
class CheckOptions:
    """Flags of all conformance kits."""

    level: Annotated[Literal["required", "hardening", "all"], Parameter(help="Cases to run.")] = "all"
    only: Annotated[tuple[int, ...], Parameter(help="Number of a case to run; repeatable.", show_default=False)] = ()
    step_timeout: Annotated[
        float | None,
        Parameter(name="--patience", help="Seconds that the worker has for each step. Default: 10, for machines 20."),
    ] = None
    parallel: Annotated[int, Parameter(help="Number of cases to run at the same time.")] = 1
    json: Json = False

    def run(self, worker: str, check: Callable[..., list[Result]]) -> int:
        """Runs the cases and prints their results. Returns the exit code. SIGTERM ends the check and its workers, as
        Ctrl-C does."""
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            results = check(
                only=self.only,
                level=None if self.level == "all" else Level(self.level),
                parallel=self.parallel,
                on_result=ignore if self.json else _print,
                **without_none(timeout_s=self.step_timeout),
            )
        except Invalid as error:
            raise Unusable(error.message, **error.details) from None
        finally:
            signal.signal(signal.SIGTERM, before)
        failed = [result for result in results if not result.passed]
        if self.json:
            levels = {level: _count([result for result in results if result.level == level]) for level in Level}
            print_json({"worker": worker, **_count(results), "levels": levels, "cases": results})
        elif failed:
            parts = [f"{sum(result.level == level for result in failed)} {level}" for level in Level]
            say(f"{len(failed)} of {len(results)} cases failed: {', '.join(parts)}.")
        else:
            say(f"All {len(results)} cases passed.")
        return Exit.FAILED if failed else Exit.OK

    def run_command(self, contract: str, command: Sequence[str], check: Callable[..., list[Result]]) -> int:
        """Runs the cases against the worker that a command starts."""
        if not command:
            example = f"windlass conformance {contract} -- ./worker"
            raise Unusable(f"command: give the program after `--`, such as: {example}")
        return self.run(" ".join(command), partial(check, command))


ALL_CASES = CheckOptions()


def callback(
    *,
    worker: str,
    secret: str | None = None,
    kind: str = "conformance",
    interval_ms: int = 250,
    callback_url: str | None = None,
    options: CheckOptions = ALL_CASES,
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
    return options.run(
        worker, partial(check_worker, worker, secret, kind=kind, interval_ms=interval_ms, callback_url=callback_url)
    )


def stdio(*command: Command, language: str = "python", options: CheckOptions = ALL_CASES) -> int:
    """Start a worker, send it requests, and report violations of the contract: `windlass conformance stdio -- perl
    worker.pl`. Each case starts a new worker. Exit code 1 if a case fails.

    Parameters
    ----------
    language
        Language of the scripts: python, sh, javascript, or a JSON file with a script for each name that the reference
        page lists.
    """
    from windlass.contracts.stdio.conformance import check_worker, read_scripts

    return options.run_command(
        "stdio", command, lambda command, **rest: check_worker(command, read_scripts(language), **rest)
    )


def lease(*command: Command, lease: float = 2.0, options: CheckOptions = ALL_CASES) -> int:
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

    return options.run_command("lease", command, partial(check_worker, lease_s=lease))


def machine(
    *command: Command,
    program: Literal["any", "mods"] = "any",
    store: Literal["s3", "url"] = "s3",
    options: CheckOptions = ALL_CASES,
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

    return options.run_command("machine", command, partial(check_program, subject=program, store=store))


def registry(*command: Command, heartbeat: int = 1, options: CheckOptions = ALL_CASES) -> int:
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

    return options.run_command("registry", command, partial(check_worker, heartbeat_s=heartbeat))


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


def _count(results: Sequence[Result]) -> dict[str, int]:
    passed = sum(result.passed for result in results)
    return {"passed": passed, "failed": len(results) - passed}
