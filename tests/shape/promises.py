"""Which tests there are and which of them never run: a plugin for `pytest --collect-only`, used by test_promises.py."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest


def never_runs(item: pytest.Item) -> bool:
    """Skipped whatever happens, or expected to fail without being run."""
    for mark in item.iter_markers():
        if mark.name == "skip" or (mark.name == "skipif" and mark.args[:1] == (True,)):
            return True
        if mark.name == "xfail" and mark.kwargs.get("run") is False:
            return True
    return False


def pytest_collection_finish(session: pytest.Session) -> None:
    found = {item.nodeid: never_runs(item) for item in session.items}
    Path(os.environ["COLLECTED"]).write_text(json.dumps(found), encoding="utf-8")


def without_parameters(test_id: str) -> str:
    return test_id.partition("[")[0]


def known_tests(collected: dict[str, bool]) -> dict[str, bool]:
    """Every test with and without its parameters; without them, it never runs if none of its cases does."""
    known = dict(collected)
    for test_id, skipped in collected.items():
        short = without_parameters(test_id)
        known[short] = skipped and known.get(short, True)
    return known


def wrong_tests(tests: Sequence[str], collected: dict[str, bool]) -> list[str]:
    known = known_tests(collected)
    missing = [f"{test}: there is no such test" for test in tests if test not in known]
    return missing + [f"{test}: is never run" for test in tests if known.get(test)]
