"""`windlass psql`, as a process."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.command import windlass
from tests.cli.conftest import start_dev
from tests.cli.test_dev import ended
from tests.kit.database import temporary_folder

pytestmark = pytest.mark.slow


def test_psql_runs_sql_on_the_database_of_dev_and_fails_when_it_fails() -> None:
    with temporary_folder() as folder, ended(start_dev(folder, "--json")) as places:
        url = places["api"].removesuffix("/api/v1")
        good = windlass("psql", "select 6 * 7 as answer", "--csv", cwd=folder, WINDLASS_URL=url)
        assert (good.returncode, good.stdout, good.stderr) == (0, "answer\n42\n", "")
        bad = windlass("psql", "select nonsense", cwd=folder, WINDLASS_URL=url)
        assert (bad.returncode, bad.stdout) == (1, "")
        assert 'column "nonsense" does not exist' in bad.stderr


def test_psql_without_a_database_says_so(tmp_path: Path) -> None:
    done = windlass("psql", "select 1", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error there is no database in .windlass: ")
    assert list(tmp_path.iterdir()) == []


def test_psql_keeps_the_password_out_of_its_arguments(tmp_path: Path) -> None:
    done = windlass("psql", "select 1", "--database-url", f"postgresql://ada:very-secret@/none?host={tmp_path}")
    assert done.returncode == 1
    assert "very-secret" not in done.stdout + done.stderr
