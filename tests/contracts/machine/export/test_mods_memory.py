"""Memory of the exporter: bounded by what is under way, whatever the size of the tree and of the texts in it."""

from __future__ import annotations

import pytest
from tests.contracts.machine.export.machine import ROOT_PI, Machine
from tests.contracts.machine.export.samples import simple

pytestmark = pytest.mark.slow

ENTITIES = 2_000
LIMIT_MB = 150


def name(number: int) -> str:
    return f"01K{number:023d}" if number else ROOT_PI


def test_two_thousand_entities_and_five_megabytes_of_text_stay_in_bounds(machine: Machine) -> None:
    ocr = "Größe, 大きさ and size.\n" * 230_000
    assert len(ocr.encode()) > 5_000_000
    for n in range(ENTITIES):
        children = [name(c) for c in range(4 * n + 1, 4 * n + 5) if c < ENTITIES]
        refs = (
            {"page.ref.json": {"filename": "page.jpg", "ocr": ocr if n == 777 else f"page {n}"}} if n % 7 == 0 else {}
        )
        simple(machine.archive, name(n), children=children, refs=refs)
    machine.ask(recursive=True, maxDepth=6)

    code, said = machine.finish()

    assert code == 0, said
    metrics = machine.callback["metrics"]
    assert (metrics["entities_exported"], metrics["entities_failed"], metrics["entities_incomplete"]) == (
        ENTITIES,
        0,
        0,
    )
    assert metrics["peak_memory_mb"] < LIMIT_MB
    root = machine.document()
    assert len(root) == ENTITIES
    assert [text for text in root.itertext() if text == ocr] == [ocr]


def test_many_large_texts_at_once_stay_in_bounds(machine: Machine) -> None:
    children = [name(n) for n in range(1, 15)]
    simple(machine.archive, ROOT_PI, children=children)
    for child in children:
        refs = {f"{k}.ref.json": {"filename": f"{k}.jpg", "ocr": "\N{GRINNING FACE} smile" * 300_000} for k in range(2)}
        simple(machine.archive, child, refs=refs)
    machine.ask(recursive=True, parallelBatchSize=14)

    code, said = machine.finish()

    assert code == 0, said
    assert machine.callback["metrics"]["entities_incomplete"] == 0
    assert machine.callback["metrics"]["peak_memory_mb"] < LIMIT_MB
