"""`make bench`: measures Windlass, the peers that can be installed, and the raw limits, and compares the figures.

    python -m bench                     all rows, three repetitions
    python -m bench --rows P4,P6        some rows
    python -m bench --quick             one short repetition, to see that everything works

The exit code is 1 if a measurement of ours or of a limit failed. A missed target is reported and is no error, since
machines differ.
"""

from __future__ import annotations

import argparse
import importlib
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from bench import measure, report, venv
from bench.harness import FULL, QUICK, Contestant, Failed, Scale, Stage
from bench.ours import Windlass
from bench.results import LIMIT, OURS, Fault, Results
from bench.rows import ROWS, Row
from bench.server import Server
from bench.subject import Subject

PEERS = ("pgqueuer", "procrastinate", "dbos", "absurd", "restate", "appose")
console = Console(stderr=True, highlight=False, soft_wrap=True)  # for the progress of the run

Job = tuple[str, str]  # the measurement and its subject


def main() -> int:
    arguments = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that child processes are ended
    rows = _rows(arguments.rows)
    reps = 1 if arguments.quick else arguments.reps
    scale = QUICK if arguments.quick else FULL
    contestants, absent = _contestants([] if arguments.no_peers else [kind for row in rows for kind in row.peers()])
    load = os.getloadavg()[0]
    if load > 0.5:
        console.print(f"[yellow]this machine is busy (load {load:.1f}): rates are not reliable, CPU ratios are[/]")
    results = Results([name for name in contestants if name != OURS], absent)
    with Server() as server:
        _run(server, scale, rows, reps, contestants, results)
    settings = {name: contestant.subject.settings for name, contestant in contestants.items()}
    output = Console(width=None if sys.stdout.isatty() else 180)
    facts = report.facts(reps, quick=arguments.quick, load=load, settings=settings)
    report.publish(output, rows, results, facts, arguments.out)
    return int(any(fault.subject in (OURS, LIMIT) for fault in results.faults))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", default="", help=f"some of {','.join(row.id for row in ROWS)}")
    parser.add_argument("--reps", type=int, default=3, help="repetitions (3)")
    parser.add_argument("--quick", action="store_true", help="one short repetition; its figures mean little")
    parser.add_argument("--no-peers", action="store_true", help="only Windlass and the limits")
    parser.add_argument("--out", type=Path, default=report.OUT, help="the folder for the results (bench/out)")
    return parser.parse_args()


def _rows(wanted: str) -> list[Row]:
    names = [name.strip().upper() for name in wanted.split(",") if name.strip()]
    unknown = set(names).difference(row.id for row in ROWS)
    if unknown:
        raise SystemExit(f"unknown rows: {', '.join(sorted(unknown))}; choose from {', '.join(r.id for r in ROWS)}")
    return [row for row in ROWS if not names or row.id in names]


def _contestants(kinds: Sequence[str]) -> tuple[dict[str, Contestant], dict[str, str]]:
    """The subjects that take part, and the reasons why others do not."""
    peers = [importlib.import_module(f"bench.peers.{name}").SUBJECT() for name in PEERS] if kinds else []
    subjects: list[Subject] = [Windlass(), *(peer for peer in peers if any(map(peer.takes_part, kinds)))]
    present, absent = {}, {}
    for subject in subjects:
        python, reason = Path(sys.executable), None
        try:
            if subject.part:
                console.print(f"[dim]{subject.name}: {escape(', '.join(subject.requirements))}[/]")
                python = venv.ensure(subject.part, subject.requirements, part=subject.name)
            reason = subject.missing()
        except RuntimeError as error:
            reason = f"it cannot be installed here: {error}"
        if reason is None:
            present[subject.name] = Contestant(subject, python)
        else:
            absent[subject.name] = reason
            console.print(f"[yellow]{subject.name} is not in this run:[/] {escape(reason)}")
    return present, absent


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
                random.shuffle(jobs)  # the machine drifts, so no subject always goes first
                for job in jobs:
                    spent_s, left = time.monotonic() - began_s, ""
                    if number >= 3:  # enough for an estimate
                        left = f", about {max(1, round(spent_s / number * (count - number) / 60))} min left,"
                    number += 1
                    console.print(f"[dim]{number}/{count}{left} {row.id}[/] {job[0]} {job[1]} … ", end="")
                    _measure(stage, job, contestants, results)
                done.update(jobs)
    finally:
        stage.close()


def _jobs(row: Row, contestants: dict[str, Contestant]) -> list[Job]:
    """All measurements that a row compares."""
    ours = [(kind, OURS) for kind in row.ours() if OURS in contestants]
    limits = [(name, LIMIT) for name in row.limits()]
    peers = [
        (kind, name)
        for kind in row.peers()
        for name, contestant in contestants.items()
        if name != OURS and contestant.subject.takes_part(kind)
    ]
    return [*ours, *peers, *limits]


def _measure(stage: Stage, job: Job, contestants: dict[str, Contestant], results: Results) -> None:
    """Run one measurement, and print and add its figures or its fault."""
    kind, subject = job
    started = time.monotonic()
    try:
        figures = measure.limit(stage, kind) if subject == LIMIT else measure.KINDS[kind](stage, contestants[subject])
    except (Failed, RuntimeError, OSError) as error:
        message = " ".join(str(error).split())
        results.faults.append(Fault(kind, subject, message))
        console.print(f"[red]failed:[/] {escape(message)}")
    else:
        results.add(kind, subject, figures)
        text = "  ".join(f"{name} {report.number_text(value)}" for name, value in figures.items())
        console.print(text, f"[dim]({time.monotonic() - started:.0f} s)[/]")


if __name__ == "__main__":
    sys.exit(main())
