"""Trees: their order, their bounds, and what one bad entity costs."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from tests.contracts.machine.export.archive import Answer
from tests.contracts.machine.export.machine import ROOT_PI, Machine
from tests.contracts.machine.export.mods_rules import NAMESPACE
from tests.contracts.machine.export.samples import simple

from windlass.contracts.machine.export.mods.program import export

pytestmark = pytest.mark.slow


def pi(number: int) -> str:
    return f"01K{number:023d}"


def exported(machine: Machine, **options: Any) -> list[str]:
    """The entities in the order of the document."""
    assert machine.run(export, recursive=True, **options) == 0, machine.callback
    return [str(record.get("ID")).removeprefix("entity-") for record in machine.document()]


def metrics(machine: Machine) -> tuple[int, int, int]:
    told = machine.callback["metrics"]
    return told["entities_exported"], told["entities_failed"], told["entities_incomplete"]


def binary_tree(machine: Machine, levels: int) -> list[str]:
    """Node n has children 2n+1 and 2n+2; in order of breadth that is counting."""
    names = [ROOT_PI, *(pi(n) for n in range(1, 2**levels - 1))]
    for n, name in enumerate(names):
        children = [names[c] for c in (2 * n + 1, 2 * n + 2) if c < len(names)]
        simple(machine.archive, name, children=children, parent=names[(n - 1) // 2] if n else None)
    return names


@pytest.mark.parametrize("width", [1, 3, 100])
def test_the_order_is_breadth_first_whoever_answers_first(machine: Machine, width: int) -> None:
    names = binary_tree(machine, 5)
    for name in names[3:6]:
        machine.archive.trouble[f"/entities/{name}"] = [Answer(503, headers={"Retry-After": "0"})]

    assert exported(machine, parallelBatchSize=width) == names


def test_a_slow_entity_holds_up_nobody_and_keeps_its_place(machine: Machine) -> None:
    names = binary_tree(machine, 4)
    gate = machine.archive.answers[f"/entities/{names[1]}"].gate = threading.Event()
    machine.archive.seen = lambda path: gate.set() if path == f"/entities/{names[2]}" else None

    assert exported(machine) == names


@pytest.mark.parametrize(("depth", "levels"), [(0, 1), (1, 2), (2, 3), (50, 4)])
def test_max_depth_counts_the_levels_below_the_root(machine: Machine, depth: int, levels: int) -> None:
    names = binary_tree(machine, 4)

    assert exported(machine, maxDepth=depth) == names[: 2**levels - 1]


def test_by_default_five_levels_are_followed(machine: Machine) -> None:
    chain = [ROOT_PI, *(pi(n) for n in range(1, 8))]
    for n, name in enumerate(chain):
        simple(machine.archive, name, children=chain[n + 1 : n + 2])

    assert exported(machine) == chain[:6]


def test_cycles_end_and_the_first_parent_wins(machine: Machine) -> None:
    a, b, c = pi(1), pi(2), pi(3)
    simple(machine.archive, ROOT_PI, children=[a, b, ROOT_PI, a])
    simple(machine.archive, a, children=[c, ROOT_PI])
    simple(machine.archive, b, children=[c, a, b])
    simple(machine.archive, c, children=[ROOT_PI])

    assert exported(machine, maxDepth=50) == [ROOT_PI, a, b, c]

    places = [note.text for note in machine.document().iterfind(f".//{NAMESPACE}note[@type='hierarchy']")]
    assert places == [
        f"depth: 0, path: /{ROOT_PI}",
        f"depth: 1, parent: {ROOT_PI}, path: /{ROOT_PI}/{a}",
        f"depth: 1, parent: {ROOT_PI}, path: /{ROOT_PI}/{b}",
        f"depth: 2, parent: {a}, path: /{ROOT_PI}/{a}/{c}",
    ]
    assert len(machine.archive.asked("/entities/")) == 4


def test_a_child_that_fails_costs_its_subtree_and_is_counted(machine: Machine) -> None:
    gone, wrong, lost, fine = pi(1), pi(2), pi(3), pi(4)
    simple(machine.archive, ROOT_PI, children=[gone, wrong, fine, "../../etc", 7, None, {"pi": 1}])
    machine.archive.answers[f"/entities/{wrong}"] = Answer(body=b"<html>")
    simple(machine.archive, lost)
    simple(machine.archive, fine)

    assert exported(machine) == [ROOT_PI, fine]
    assert metrics(machine) == (2, 4, 0)
    assert machine.archive.asked("/entities/..") == []


def test_entities_without_metadata_are_counted_and_their_children_are_visited(machine: Machine) -> None:
    machine.archive.entity(ROOT_PI, children=[pi(1)])
    machine.archive.entity(pi(1), children=[pi(2)])
    simple(machine.archive, pi(2))

    assert exported(machine) == [ROOT_PI, pi(1), pi(2)]
    assert metrics(machine) == (3, 0, 2)


def test_when_the_root_fails_the_export_fails(machine: Machine) -> None:
    assert machine.run(export, recursive=True) == 1

    assert machine.callback["error"] == f"Failed to fetch manifest for PI {ROOT_PI}: 404 Not Found"
    assert machine.stored == {}
    assert machine.left == []


def test_no_more_requests_at_once_than_were_asked_for(machine: Machine) -> None:
    binary_tree(machine, 5)

    exported(machine, parallelBatchSize=3)

    assert machine.archive.most_at_once <= 3


def test_each_manifest_and_each_file_is_fetched_once(machine: Machine) -> None:
    names = binary_tree(machine, 4)

    exported(machine)

    asked = machine.archive.asked("/")
    assert len(machine.archive.asked("/entities/")) == len(names)
    gets = [path for path in asked if path.startswith(("/entities", "/ipfs"))]
    assert len(gets) == len(set(gets))


def test_the_same_tree_is_the_same_document(machine: Machine) -> None:
    binary_tree(machine, 4)

    documents = []
    for width in (1, 7, 7):
        machine.run(export, recursive=True, parallelBatchSize=width)
        documents += list(machine.stored.values())

    assert len(set(documents)) == 1
