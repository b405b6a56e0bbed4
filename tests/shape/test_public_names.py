"""What users may rely on does not change by accident."""

from __future__ import annotations

from importlib import import_module

import pytest
from docs.generate import COMMAND, PUBLIC_MODULES, public_names
from tests.shape.source import ROOT

GOLDEN = ROOT / "tests/shape/public_names.txt"


def test_the_public_names_are_those_that_were_agreed_on() -> None:
    agreed = GOLDEN.read_text(encoding="utf-8")

    assert public_names() == agreed, f"if this is meant: {COMMAND}, and say it in CHANGELOG.md"


@pytest.mark.parametrize("module", PUBLIC_MODULES)
def test_every_public_name_exists_once_and_is_not_private(module: str) -> None:
    there = import_module(module)
    names = list(getattr(there, "__all__", ()))

    assert [name for name in names if not hasattr(there, name)] == []
    assert [name for name in names if name.startswith("_")] == []
    assert len(names) == len(set(names))


def test_every_public_class_and_function_says_what_it_is() -> None:
    exported = [
        (f"{module}.{name}", getattr(import_module(module), name))
        for module in PUBLIC_MODULES
        for name in getattr(import_module(module), "__all__", ())
    ]

    assert [name for name, value in exported if callable(value) and not (value.__doc__ or "").strip()] == []
