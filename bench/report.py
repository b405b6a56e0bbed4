"""The output of a run: tables on the screen, and `results.json`, `details.json` and `results.svg` in `bench/out`.

`results` computes the figures. The files name the commit and the machine, without which figures mean nothing.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.picture import draw
from bench.results import Results, Verdict, entry, judge
from bench.rows import Row
from bench.venv import ROOT

OUT = ROOT / "bench" / "out"


def publish(console: Console, rows: Sequence[Row], results: Results, facts: dict[str, Any], out: Path = OUT) -> None:
    """Print and write everything."""
    judged = [(row, judge(row, results)) for row in rows]
    entries = [{**entry(row, verdicts), **facts} for row, verdicts in judged]
    console.print(_figures(results))
    console.print(_table(judged))
    for name, reason in results.absent.items():
        console.print(f"[yellow]not in this run:[/] {name}: {reason}")
    for fault in results.faults:
        console.print(f"[red]error:[/] {fault.kind} of {fault.subject}: {fault.message}", markup=True, highlight=False)
    _write(entries, results, facts, out)
    shown = out.relative_to(ROOT) if out.is_relative_to(ROOT) else out
    console.print(f"written: {', '.join(str(shown / file.name) for file in sorted(out.iterdir()))}")


def _write(entries: list[dict[str, Any]], results: Results, facts: dict[str, Any], out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.json").write_text(json.dumps(entries, indent=1, ensure_ascii=False) + "\n")
    details = {
        **facts,
        "absent": results.absent,
        "errors": [asdict(fault) for fault in results.faults],
        "figures": {f"{kind} {subject}": figures for (kind, subject), figures in results.figures.items()},
    }
    (out / "details.json").write_text(json.dumps(details, indent=1, ensure_ascii=False) + "\n")
    (out / "results.svg").write_text(draw(entries))


def _table(judged: Sequence[tuple[Row, list[Verdict]]]) -> Table:
    table = Table(title="Targets: medians, with the range over the repetitions")
    for name in ("", "work", "ours", "against", "ratio or figure", "target", ""):
        table.add_column(name, overflow="fold")
    for row, verdicts in judged:
        for number, verdict in enumerate(verdicts):
            first = number == 0
            table.add_row(
                row.id if first else "",
                f"{row.what} ({row.unit})" if first else "",
                spread(verdict.ours),
                f"{verdict.other} {spread(verdict.theirs)}" if verdict.theirs else "",
                verdict.problem[:120] if verdict.problem else number_text(verdict.value),
                verdict.check.text,
                {True: "[green]holds[/]", False: "[red]missed[/]", None: "[yellow]no figure[/]"}[verdict.holds],
            )
        table.add_section()
    return table


def _figures(results: Results) -> Table:
    """All figures, including those of peers that are not the best."""
    table = Table(title="Measured")
    for name in ("measurement", "of", "figures"):
        table.add_column(name)
    for kind, subject in sorted(results.figures):
        metrics = {name: results.series((kind, name), subject) for name in results.figures[kind, subject][0]}
        text = "  ".join(f"{name} {spread(series)}" for name, series in metrics.items() if series)
        table.add_row(kind, subject, text or "[red]failed[/]")
    return table


def spread(series: Sequence[float] | None) -> str:
    if not series:
        return "–"
    middle = number_text(statistics.median(series))
    return middle if len(series) == 1 else f"{middle} ({number_text(min(series))}–{number_text(max(series))})"


def number_text(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def facts(reps: int, *, quick: bool, load: float, settings: dict[str, str]) -> dict[str, Any]:
    """The commit and the machine, without the name of the host."""
    return {
        "commit": _git("rev-parse", "HEAD")
        + ("+changes" if _git("status", "--porcelain", "--", "src", "bench") else ""),
        "machine": f"{_processor()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "repetitions": reps,
        "quick": quick,
        "load": [round(load, 2), round(os.getloadavg()[0], 2)],  # before and after
        "settings": settings,
    }


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
