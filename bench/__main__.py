"""`make bench`: ours, the peers that can be had, and the raw limit, in turn, several times; then what the figures say.

    python -m bench                     all rows, three repetitions
    python -m bench --rows P4,P6        a part
    python -m bench --quick             one short repetition, to see that everything works

Ends with 1 if a measurement of ours or of the limit failed. A missed target is told, not an error: machines differ.
"""

from __future__ import annotations

import argparse
import importlib
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from bench import measure, report, venv
from bench.harness import FULL, QUICK, Contestant, Failed, Figures, Scale, Stage
from bench.ours import Windlass
from bench.results import LIMIT, OURS, Fault, Results
from bench.rows import ROWS, Row
from bench.server import Server
from bench.subject import Subject

PEERS = ("pgqueuer", "procrastinate", "dbos", "absurd", "restate", "appose")
# Told as they come: a run takes a while, and its reader should see what it is at.
console = Console(stderr=True, highlight=False, soft_wrap=True)

Job = tuple[str, str]  # the measurement, and of whom


def main() -> int:
    arguments = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    rows = _rows(arguments.rows)
    reps = 1 if arguments.quick else arguments.reps
    scale = QUICK if arguments.quick else FULL
    contestants, absent = _contestants([] if arguments.no_peers else [kind for row in rows for kind in row.peers()])
    load = os.getloadavg()[0]
    if load > 0.5:
        console.print(f"[yellow]this machine is busy (load {load:.1f}): believe ratios of processor time, not rates[/]")
    results = Results([name for name in contestants if name != OURS], absent)
    with Server() as server:
        _run(server, scale, rows, reps, contestants, results)
    settings = {name: who.subject.settings for name, who in contestants.items()}
    told = Console(width=None if sys.stdout.isatty() else 180)
    facts = report.facts(reps, quick=arguments.quick, load=load, settings=settings)
    report.publish(told, rows, results, facts, arguments.out)
    return int(any(fault.who in (OURS, LIMIT) for fault in results.faults))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", default="", help=f"some of {','.join(row.id for row in ROWS)}")
    parser.add_argument("--reps", type=int, default=3, help="repetitions (3)")
    parser.add_argument("--quick", action="store_true", help="one short repetition; its figures mean little")
    parser.add_argument("--no-peers", action="store_true", help="ours and the limits only")
    parser.add_argument("--out", type=Path, default=report.OUT, help="the folder for what was measured (bench/out)")
    return parser.parse_args()


def _rows(wanted: str) -> list[Row]:
    names = [name.strip().upper() for name in wanted.split(",") if name.strip()]
    unknown = set(names).difference(row.id for row in ROWS)
    if unknown:
        raise SystemExit(f"no such row here: {', '.join(sorted(unknown))}; there are {', '.join(r.id for r in ROWS)}")
    return [row for row in ROWS if not names or row.id in names]


def _contestants(kinds: Sequence[str]) -> tuple[dict[str, Contestant], dict[str, str]]:
    """Who takes part in what peers are measured by, and why the others do not."""
    peers = [importlib.import_module(f"bench.peers.{name}").SUBJECT() for name in PEERS] if kinds else []
    subjects: list[Subject] = [Windlass(), *(peer for peer in peers if any(map(peer.takes_part, kinds)))]
    present, absent = {}, {}
    for subject in subjects:
        reason = _prepare(subject)
        if reason is None:
            python = venv.python(subject.part) if subject.part else Path(sys.executable)
            present[subject.name] = Contestant(subject, python)
        else:
            absent[subject.name] = reason
            console.print(f"[yellow]{subject.name} is not in this run:[/] {escape(reason)}")
    return present, absent


def _prepare(subject: Subject) -> str | None:
    try:
        if subject.part:
            console.print(f"[dim]{subject.name}: {escape(', '.join(subject.requirements))}[/]")
            venv.ensure(subject.part, subject.requirements, part=subject.name)
    except RuntimeError as error:
        return f"it cannot be installed here: {error}"
    return subject.missing()


def _run(
    server: Server,
    scale: Scale,
    rows: Sequence[Row],
    reps: int,
    contestants: dict[str, Contestant],
    results: Results,
) -> None:
    stage = Stage(server, scale)
    began_s, number = time.monotonic(), 0
    count = reps * len({job for row in rows for job in _jobs(row, contestants)})
    try:
        for _ in range(reps):
            done: set[Job] = set()
            for row in rows:
                jobs = [job for job in _jobs(row, contestants) if job not in done]
                random.shuffle(jobs)  # the machine drifts, so nobody always goes first
                for job in jobs:
                    left = _left(number, count, time.monotonic() - began_s)
                    number += 1
                    console.print(f"[dim]{number}/{count}{left} {row.id}[/] {job[0]} {job[1]} … ", end="")
                    _measure(stage, job, contestants, results)
                done.update(jobs)
    finally:
        stage.close()


def _left(done: int, count: int, spent_s: float) -> str:
    """How long the rest may take, once there is something to judge by."""
    return "" if done < 3 else f", about {max(1, round(spent_s / done * (count - done) / 60))} min left,"


def _jobs(row: Row, contestants: dict[str, Contestant]) -> list[Job]:
    """All that a row compares, side by side."""
    ours = [(kind, OURS) for kind in row.ours() if OURS in contestants]
    limits = [(name, LIMIT) for name in row.limits()]
    peers = [
        (kind, name)
        for kind in row.peers()
        for name, who in contestants.items()
        if name != OURS and who.subject.takes_part(kind)
    ]
    return [*ours, *peers, *limits]


def _measure(stage: Stage, job: Job, contestants: dict[str, Contestant], results: Results) -> None:
    """One figure or one fault, told at once."""
    kind, who = job
    started = time.monotonic()
    work: Callable[[], Figures]
    if who == LIMIT:
        work = lambda: measure.limit(stage, kind)  # noqa: E731
    else:
        work = lambda: measure.KINDS[kind](stage, contestants[who])  # noqa: E731
    try:
        figures = work()
    except (Failed, RuntimeError, OSError) as error:
        message = " ".join(str(error).split())
        results.faults.append(Fault(kind, who, message))
        console.print(f"[red]failed:[/] {escape(message)}")
    else:
        results.add(kind, who, figures)
        told: dict[str, Any] = {name: report.number_text(value) for name, value in figures.items()}
        spent = time.monotonic() - started
        console.print("  ".join(f"{name} {value}" for name, value in told.items()), f"[dim]({spent:.0f} s)[/]")


if __name__ == "__main__":
    sys.exit(main())
