"""Sets of numbers as spans: what of a dataset is committed, missing or failed, and which partitions that completes.

A set is a list of spans in order that neither overlap nor touch. Two partitions side by side are one span, so a million
committed partitions without a hole are one pair of numbers.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from windlass.datasets.rules.partition import Ordered, Run, Span, inside


class Coverage(msgspec.Struct, frozen=True):
    """Each number that was looked at is in exactly one of these."""

    committed: list[Span]
    missing: list[Span]
    failed: list[Span]


def coverage(committed: Iterable[Span], failed: Iterable[Span], within: Iterable[Span]) -> Coverage:
    """What there is of a version. What was committed counts as committed also if a later task failed; `within` is what
    there should be."""
    done = merge(committed)
    wrong = subtract(merge(failed), done)
    return Coverage(done, subtract(merge(within), merge([*done, *wrong])), wrong)


def complete(scheme: Ordered, committed: Iterable[Span]) -> list[Run]:
    """The partitions of a scheme whose whole range is committed, by partitions of whatever size."""
    runs = (inside(scheme, span) for span in merge(committed))
    return [run for run in runs if run is not None]


def merge(spans: Iterable[Span]) -> list[Span]:
    """The same numbers as a set."""
    merged: list[Span] = []
    for span in sorted(spans):
        if merged and span.first <= merged[-1].last + 1:
            merged[-1] = Span(merged[-1].first, max(merged[-1].last, span.last))
        else:
            merged.append(span)
    return merged


def subtract(some: list[Span], others: list[Span]) -> list[Span]:
    """The numbers of one set that are not in another."""
    rest: list[Span] = []
    place = 0
    for first, last in some:
        while place < len(others) and others[place].last < first:
            place += 1
        here = place  # a span of `others` may cut several of `some`
        while here < len(others) and others[here].first <= last:
            if first < others[here].first:
                rest.append(Span(first, others[here].first - 1))
            first = others[here].last + 1
            here += 1
        if first <= last:
            rest.append(Span(first, last))
    return rest


def overlap(span: Span, others: Iterable[Span]) -> Span | None:
    """The first of the others that shares a number with the span."""
    return next((other for other in others if other.first <= span.last and span.first <= other.last), None)
