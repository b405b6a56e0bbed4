"""Tests that cannot do without real time, because a carrier, a kernel or a program of others keeps it.

A machine that stands still for two seconds has lost a lease of one second, and nothing is wrong. So such a test
stretches its times by the fixture `pace`, and when it fails, it is run again with all of them longer. What is wrong at
every pace is wrong. The summary names those that were not content with the first.
"""

from __future__ import annotations

import gc
import sys
import warnings

import pytest
from _pytest.runner import runtestprotocol

PACES = (1.0, 4.0, 16.0)
ALL_TRIES_S = 900
_PACE = pytest.StashKey[float]()


def paced(item: pytest.Item) -> bool:
    return "pace" in getattr(item, "fixturenames", ())


def pace_of(item: pytest.Item) -> float:
    return item.stash.get(_PACE, PACES[0])


def run_paced(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """What the last try showed is reported, and of those before how they failed."""
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    failed: list[str] = []
    for pace in PACES:
        item.stash[_PACE] = pace
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        wrong = [report for report in reports if report.failed]
        if not wrong:
            break
        _forget()
        failed.append(f"at pace {pace:g}: {wrong[0].longreprtext.strip().splitlines()[-1]}")
    for report in reports:
        if report.when == "call" and failed:
            report.user_properties.append(("failed", "; ".join(failed)))
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


def _forget() -> None:
    """What a try that failed has left open would be held against whichever test is run next."""
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        if hasattr(sys, name):
            delattr(sys, name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()


def slower(reports: list[pytest.TestReport]) -> list[str]:
    return [f"{one.nodeid} {text}" for one in reports for name, text in one.user_properties if name == "failed"]
