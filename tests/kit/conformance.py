"""Many workers under test at the same time, since most of it is waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from windlass.testing.conformance.kit import Kit, Result


def at_once(examine: Callable[[str], list[Result]], names: Iterable[str], most: int) -> dict[str, list[Result]]:
    """What `examine` found of each name, some of them at the same time."""
    names = list(names)
    with ThreadPoolExecutor(most) as threads:
        return dict(zip(names, threads.map(examine, names), strict=True))


def problems(results: list[Result]) -> list[tuple[int, str]]:
    return [(result.number, result.problem) for result in results if not result.passed]


def missed(
    examine: Callable[[str], list[Result]], faults: Mapping[str, Sequence[int]], most: int
) -> dict[str, list[int]]:
    """The cases that should have found a planted fault, and did not."""
    found = at_once(examine, faults, most)
    assert all(result.problem and result.duty for results in found.values() for result in results if not result.passed)
    cases = {fault: sorted(set(faults[fault]) - {n for n, _ in problems(found[fault])}) for fault in faults}
    return {fault: numbers for fault, numbers in cases.items() if numbers}


def untested(kit: Kit[object], faults: Mapping[str, Sequence[int]]) -> list[int]:
    """Cases that no planted fault has shown to find anything."""
    return sorted({case.number for case in kit.cases} - {number for numbers in faults.values() for number in numbers})
