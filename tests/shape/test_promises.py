"""What the project promises is tested: every row in docs/promises names tests that exist and are run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.shape.promises import without_parameters, wrong_tests
from tests.shape.source import ROOT

from windlass.datasets.rules.problem import Code

pytestmark = pytest.mark.slow

PAGES = sorted((ROOT / "docs/promises").glob("*.md"))
ROW = re.compile(r"^\|(?P<promise>[^|]+)\|(?P<tests>.+)\|$", re.MULTILINE)
TEST = re.compile(r"`(tests/[^`]+::[^`]+)`")
LATER = re.compile(r"\b(today|planned|in future|will be|open until|before there are)\b", re.IGNORECASE)
RULE = re.compile(r"^[\s:|-]+$")


def promises(text: str) -> dict[str, list[str]]:
    """Each promise of a page with its tests; the head of the table and the line below it are none."""
    rows = [match for match in ROW.finditer(text) if not RULE.match(match["tests"])]
    return {row["promise"].strip(): TEST.findall(row["tests"]) for row in rows if row["promise"].strip() != "promise"}


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bool]:
    """Every test in the files that are named, and whether it is never run; collected as `make test` does."""
    named = {test for page in PAGES for tests in promises(page.read_text()).values() for test in tests}
    files = sorted({without_parameters(test).partition("::")[0] for test in named})
    found = tmp_path_factory.mktemp("promises") / "collected.json"
    there = [file for file in files if (ROOT / file).exists()]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "tests.shape.promises", *there],
        cwd=ROOT, env={**os.environ, "COLLECTED": str(found)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    tests: dict[str, bool] = json.loads(found.read_text())
    return tests


def test_there_are_promises() -> None:
    assert PAGES
    assert all(promises(page.read_text()) for page in PAGES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_promise_names_a_test(page: Path) -> None:
    assert [promise for promise, tests in promises(page.read_text()).items() if not tests] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_is_not_carried_out_yet_is_below_the_promises_and_not_among_them(page: Path) -> None:
    """What is open has a list of its own, under a heading that says so."""
    assert [promise for promise in promises(page.read_text()) if LATER.search(promise)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_test_that_is_named_exists_and_is_run(page: Path, collected: dict[str, bool]) -> None:
    named = [test for tests in promises(page.read_text()).values() for test in tests]

    assert wrong_tests(named, collected) == []


def test_every_code_of_a_dag_file_has_a_row() -> None:
    rows = promises((ROOT / "docs/promises/lease.md").read_text())

    assert {code for code in Code if not any(row.startswith(f"`{code}`: ") for row in rows)} == set()


# --------------------------------------------------------------------------------------------- the test itself


def test_a_table_is_read_row_by_row() -> None:
    text = """# Page
| promise | tests |
| --- | --- |
| One thing. | `tests/a.py::test_one`, `tests/b.py::test_two[x-1]` |
| Another. | nobody looked |
"""
    assert promises(text) == {"One thing.": ["tests/a.py::test_one", "tests/b.py::test_two[x-1]"], "Another.": []}


@pytest.mark.parametrize(
    ("test", "wrong"),
    [
        ("tests/a.py::test_one", []),
        ("tests/a.py::test_some", []),
        ("tests/a.py::test_some[1]", []),
        ("tests/a.py::test_some[2]", ["tests/a.py::test_some[2]: is never run"]),
        ("tests/a.py::test_some[3]", ["tests/a.py::test_some[3]: there is no such test"]),
        ("tests/a.py::test_none", ["tests/a.py::test_none: is never run"]),
        ("tests/a.py::test_gone", ["tests/a.py::test_gone: there is no such test"]),
    ],
)
def test_what_is_missing_or_never_run_is_found(test: str, wrong: list[str]) -> None:
    collected = {"tests/a.py::test_one": False, "tests/a.py::test_some[1]": False, "tests/a.py::test_some[2]": True,
                 "tests/a.py::test_none[1]": True}  # fmt: skip

    assert wrong_tests([test], collected) == wrong


def test_a_skipped_test_is_collected_as_one_that_never_runs(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "def test_run(): pass\n"
        "@pytest.mark.skip(reason='later')\ndef test_skipped(): pass\n"
        "@pytest.mark.skipif(True, reason='always')\ndef test_always_skipped(): pass\n"
        "@pytest.mark.skipif(False, reason='never')\ndef test_sometimes(): pass\n"
        "@pytest.mark.xfail(run=False)\ndef test_not_run(): pass\n"
    )
    found = tmp_path / "collected.json"
    subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "tests.shape.promises", "-c", "/dev/null",
         "--rootdir", str(tmp_path), "test_it.py"],
        cwd=tmp_path, env={**os.environ, "COLLECTED": str(found), "PYTHONPATH": str(ROOT)}, check=True,
        capture_output=True,
    )  # fmt: skip

    assert {name.rpartition("::")[2]: never for name, never in json.loads(found.read_text()).items()} == {
        "test_run": False, "test_skipped": True, "test_always_skipped": True, "test_sometimes": False,
        "test_not_run": True,
    }  # fmt: skip
