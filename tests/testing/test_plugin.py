"""The plugin is found by pytest, and costs nothing where nobody asks for it."""

from __future__ import annotations

import subprocess
import sys
import tomllib

from tests.shape.source import ROOT


def test_pytest_is_told_of_the_plugin() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert project["entry-points"]["pytest11"] == {"windlass": "windlass.testing.plugin"}


def test_the_plugin_imports_nothing_of_the_server_until_a_test_asks_for_it() -> None:
    program = "import sys; sys.modules['asyncpg'] = None; from windlass.testing import plugin; plugin.windlass_kit"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
