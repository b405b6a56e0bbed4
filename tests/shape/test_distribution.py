"""The distribution is `windlass-engine`: on PyPI, `windlass` is somebody else's package, which no text may install."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from tests.shape.source import ROOT

FOLDERS = ("src", "docs", "examples", "bench", "tests", ".ci")
SUFFIXES = {".md", ".py", ".pyi", ".toml", ".sql", ".proto", ".txt", ".js", ".ts", ".yaml", ".yml", ".sh", ""}
# An install command, an extra, or a requirement with a version, each with the bare name.
OTHER_NAME = re.compile(
    r"""\b(?:install|add|uvx)\s+(?:-\S+\s+)*['"]?windlass(?![\w./-])"""
    r"""|(?<![\w./-])windlass\["""
    r"""|(?<![\w./-])windlass\s?[=~<>!]=\s?\d"""
)


def texts() -> list[Path]:
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")] + list(ROOT.iterdir())
    return [path for path in found if path.is_file() and path.suffix in SUFFIXES and path.name != Path(__file__).name]


def other_names(text: str) -> list[str]:
    return [match[0] for match in OTHER_NAME.finditer(text)]


def test_no_text_installs_somebody_elses_package() -> None:
    found = {path.relative_to(ROOT).as_posix(): other_names(path.read_text(encoding="utf-8")) for path in texts()}

    assert len(found) > 500
    assert {path: names for path, names in found.items() if names} == {}


def test_the_distribution_has_its_own_name_and_the_version_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())

    assert project["project"]["name"] == "windlass-engine"
    assert "windlass" in project["project"]["scripts"]
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["path"] == "src/windlass/__init__.py"


# --------------------------------------------------------------------------------------------- the test itself


@pytest.mark.parametrize(
    "text",
    [
        "pip install windlass", "uv pip install --quiet windlass", "pip install 'windlass[mods]'", "uv add windlass",
        "the command comes with `windlass[server]`", 'all = ["windlass[server,aws]"]', "windlass>=0.1",
        "uvx windlass dev", "f\"pip install 'windlass[{extra}]'\"", "pip install -e windlass",
    ],
)  # fmt: skip
def test_the_other_name_is_found(text: str) -> None:
    assert other_names(text)


@pytest.mark.parametrize(
    "text",
    [
        "pip install windlass-engine", "pip install 'windlass-engine[mods]'", "windlass-engine>=0.1",
        "from windlass import App", "pip install '.[all]'", "windlass worker shop:app",
        "COPY src/windlass /app", "install windlass/__init__.py",
    ],
)  # fmt: skip
def test_what_is_no_install_of_it_is_let_alone(text: str) -> None:
    assert other_names(text) == []
