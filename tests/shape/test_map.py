"""The pages that show a reader around name what is there: no file that is gone, no package that is left out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.shape.source import ROOT, SRC
from tests.shape.test_layers import SEE_ALL, SEES

PACKAGE = SRC / "windlass"
MAP, TOUR = ROOT / "CONTRIBUTING.md", ROOT / "docs/concepts/architecture.md"
NOT_BUILT = {"web"}  # layers that have a place and no code yet


def packages() -> list[str]:
    return sorted(folder.name for folder in PACKAGE.iterdir() if (folder / "__init__.py").exists())


def layers() -> str:
    return TOUR.read_text(encoding="utf-8").partition("## Rooms")[2].partition("\n## ")[0]


def test_every_package_is_on_the_map_and_on_the_tour() -> None:
    tree = MAP.read_text(encoding="utf-8").partition("\nsrc/windlass/")[2].partition("```")[0]

    assert [name for name in packages() if f"\n  {name}/" not in tree] == []
    assert [name for name in packages() if f"`{name}`" not in layers() and name != "contracts"] == []


@pytest.mark.parametrize("page", [MAP, TOUR], ids=lambda page: page.name)
def test_every_file_that_is_named_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8").partition("## Add a state transition")[0]
    named = set(re.findall(r"(?<![\w*./-])((?:\w+/)*\w+\.py)\b", text))
    there = {path.relative_to(SRC).as_posix() for path in PACKAGE.rglob("*.py")}
    known = there | {path.removeprefix("windlass/") for path in there} | {path.rpartition("/")[2] for path in there} | {
        path.relative_to(ROOT).as_posix() for path in (*ROOT.glob("tests/**/*.py"), *ROOT.glob("docs/*.py"))
    }  # fmt: skip

    assert named
    assert sorted(name for name in named if name not in known) == []


def test_the_layers_of_the_tour_are_those_of_the_test() -> None:
    """What each layer sees is told as it is held."""
    rows = re.findall(r"^\| (`.+?) \| .+? \| (.+?) \|$", layers(), re.MULTILINE)
    told = {name: said for names, said in rows for name in re.findall(r"`([\w.]+)`", names)}

    for layer, sees in SEES.items():
        if layer in NOT_BUILT:
            continue
        assert layer in told, layer
        seen = set(re.findall(r"`([\w.]+)`", told[layer]))
        assert seen == sees, layer
    assert {layer for layer in SEE_ALL if layer} <= told.keys()
