"""The figures of a run by repetition, and the verdict on each row.

A ratio is the median of the ratios within each repetition, never a ratio of medians. A measurement that failed once
gives no figure: for ours, the row is an error; a peer is left out, and named.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.harness import Figures
from bench.rows import Check, Figure, Row

OURS, LIMIT = "windlass", "limit"


@dataclass(frozen=True, slots=True)
class Fault:
    """A measurement that gave no figure."""

    kind: str
    subject: str
    message: str


@dataclass(slots=True)
class Results:
    """Figures of one run; `peers` took part, and `absent` has the reason for each that did not."""

    peers: Sequence[str]
    absent: dict[str, str]
    figures: dict[tuple[str, str], list[Figures]] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)

    def add(self, kind: str, subject: str, figures: Figures) -> None:
        self.figures.setdefault((kind, subject), []).append(figures)

    def series(self, figure: Figure, subject: str) -> list[float] | None:
        """One metric, a value per repetition; None if it was not measured or failed once."""
        kind, metric = figure
        if any(fault.kind == kind and fault.subject == subject for fault in self.faults):
            return None
        found = [each[metric] for each in self.figures.get((kind, subject), ()) if metric in each]
        return found or None

    def best_peer(self, figure: Figure, *, highest: bool) -> tuple[str, list[float]] | None:
        known = {name: series for name in self.peers if (series := self.series(figure, name))}
        if not known:
            return None
        pick = max if highest else min
        name = pick(known, key=lambda each: statistics.median(known[each]))
        return name, known[name]


@dataclass(frozen=True, slots=True)
class Verdict:
    """One check: our figure, the one that it is compared with, and whether it holds. `problem`: why there is none."""

    check: Check
    ours: list[float] | None = None
    other: str = ""
    theirs: list[float] | None = None
    problem: str = ""

    @property
    def value(self) -> float | None:
        """What the bound applies to: a ratio, or the figure itself."""
        if self.problem or self.ours is None:
            return None
        if self.theirs is None:
            return statistics.median(self.ours)
        return statistics.median(a / b for a, b in zip(self.ours, self.theirs, strict=True))

    @property
    def holds(self) -> bool | None:
        value = self.value
        if value is None:
            return None
        return value >= self.check.at_least if self.check.at_least is not None else value <= (self.check.at_most or 0.0)


def judge(row: Row, results: Results) -> list[Verdict]:
    return [_judge(check, results) for check in row.checks]


def _judge(check: Check, results: Results) -> Verdict:
    """The figure of the other side is shown even if ours is missing."""
    ours = results.series(check.ours, OURS)
    problem = "" if ours is not None else _reason(results, check.ours[0], OURS)
    if check.peer:
        best = results.best_peer(check.ours, highest=check.higher_is_better)
        if best is None:
            return Verdict(check, ours, problem=problem or "no peer to compare with")
        return Verdict(check, ours, best[0], best[1], problem)
    figure, subject = (check.limit, LIMIT) if check.limit else (check.ourselves, OURS)
    if figure is None:
        return Verdict(check, ours, problem=problem)
    theirs = results.series(figure, subject)
    if theirs is None:
        return Verdict(check, ours, problem=problem or _reason(results, figure[0], subject))
    return Verdict(check, ours, figure[0], theirs, problem)


def _reason(results: Results, kind: str, subject: str) -> str:
    for fault in results.faults:
        if (fault.kind, fault.subject) == (kind, subject):
            return f"{kind}: {fault.message}"
    return results.absent.get(subject, f"{kind} was not measured")


def entry(row: Row, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """A row of results.json, in the form that the performance page documents, with its checks."""
    peer = next((v for v in verdicts if v.check.peer and v.theirs), None)
    limit = next((v for v in verdicts if v.check.limit and v.theirs), None)
    problems = list(dict.fromkeys(v.problem for v in verdicts if v.problem))
    return {
        "id": row.id,
        "ours": _median(verdicts[0].ours),
        "peer": peer.other if peer else None,
        "peer_value": _median(peer.theirs) if peer else None,
        "limit_value": _median(limit.theirs) if limit else None,
        "ratio_peer": peer.value if peer else None,
        "ratio_limit": limit.value if limit else None,
        "target": row.target,
        "holds": None if problems else all(v.holds for v in verdicts),
        "what": row.what,
        "unit": row.unit,
        "errors": problems,
        "checks": [_check_entry(v) for v in verdicts],
    }


def _check_entry(verdict: Verdict) -> dict[str, Any]:
    return {
        "target": verdict.check.text,
        "bound": verdict.check.at_least if verdict.check.higher_is_better else verdict.check.at_most,
        "at_least": verdict.check.higher_is_better,
        "figure": ".".join(verdict.check.ours),
        "ours": verdict.ours,
        "against": verdict.other or None,
        "theirs": verdict.theirs,
        "value": verdict.value,
        "holds": verdict.holds,
    }


def _median(series: Sequence[float] | None) -> float | None:
    return statistics.median(series) if series else None
