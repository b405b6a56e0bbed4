"""Whatever an archive says, what is written is XML that keeps the rules of MODS."""

from __future__ import annotations

import io
import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree
from tests.contracts.machine.export.machine import ROOT_PI
from tests.contracts.machine.export.mods_rules import NAMESPACE, breaches
from tests.contracts.machine.export.samples import FULL_GRAPH, FULL_PINAX, PIER_REF

from windlass.contracts.machine.export.mods import crosswalk
from windlass.contracts.machine.export.mods.crosswalk import Addresses, Entity, Place
from windlass.contracts.machine.export.mods.entity import decode, read_manifest, text
from windlass.contracts.machine.export.mods.graph import Graph, read_graph
from windlass.contracts.machine.export.mods.node import leaf
from windlass.contracts.machine.export.mods.related import other_items, ref_item
from windlass.contracts.machine.export.mods.writer import clean, write_record

pytestmark = pytest.mark.slow

ADDRESSES = Addresses("https://api.example", "https://ipfs.example", "https://example")
WORDS = st.text(st.characters(exclude_categories=()), max_size=12)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)


def about(known: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Objects with the fields that are known, some as they should be and some not, and others besides."""
    fields = st.fixed_dictionaries({}, optional={name: ANYTHING | st.just(value) for name, value in known.items()})
    return st.builds(lambda one, other: {**other, **one}, fields, st.dictionaries(WORDS, ANYTHING, max_size=2))


THING = about({"type": "person", "label": "x", "properties": {"a": "b"}})
GRAPHS = about(FULL_GRAPH) | st.builds(lambda things: {"entities": things}, st.dictionaries(WORDS, THING, max_size=3))
MANIFEST = {"ver": 1, "ts": "2025-11-01T09:30:00Z", "manifest_cid": "bafy", "components": {"a": "b"},
            "children_pi": ["x"], "parent_pi": "p"}  # fmt: skip


def sent(value: Any) -> Any:
    """As it arrives."""
    return decode(json.dumps(value).encode())


def graph_of(said: Any) -> Graph:
    return read_graph(sent(said)) if isinstance(said, dict) else Graph()


@given(
    manifest=about(MANIFEST), pinax=st.none() | about(FULL_PINAX), graph=GRAPHS | ANYTHING, description=WORDS,
    refs=st.lists(about(PIER_REF), max_size=2), mode=st.sampled_from(["full", "minimal", "skip"]), placed=st.booleans(),
)  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_whatever_is_said_a_record_keeps_the_rules(
    manifest: Any, pinax: Any, graph: Any, description: str, refs: list[Any], mode: Any, placed: bool
) -> None:
    known = read_manifest(ROOT_PI, json.dumps({**manifest, "pi": ROOT_PI}).encode())
    entity = Entity(
        manifest=known,
        pinax=None if pinax is None else sent(pinax),
        description=text(description),
        graph=graph_of(graph),
    )
    place = Place((ROOT_PI,)) if placed else None
    nodes = [
        *crosswalk.before(entity, mode),
        *(ref_item("a.ref.json", sent(ref), include_ocr=True) for ref in refs),
        *other_items(known, ADDRESSES),
        *crosswalk.after(entity, ADDRESSES, place, "2026-02-03", "us"),
    ]
    file = io.BytesIO()

    write_record(file, nodes, level=1, record_id=f"entity-{ROOT_PI}")

    root = etree.fromstring(file.getvalue())
    assert breaches(root) == []
    abstract = root.findtext(f"{NAMESPACE}abstract") or ""
    if text(description):
        assert abstract == clean(description)


@given(said=WORDS)
@settings(max_examples=300, deadline=None)
def test_text_comes_back_as_it_was(said: str) -> None:
    file = io.BytesIO()

    write_record(file, [leaf("abstract", said, displayLabel=said)])

    (abstract,) = etree.fromstring(file.getvalue())
    assert abstract.text == (clean(said) or None)
    assert abstract.get("displayLabel") == clean(said)
    assert all(ord(c) in {9, 10, 13} or 0x20 <= ord(c) < 0xD800 or 0xDFFF < ord(c) < 0xFFFE or ord(c) > 0xFFFF
               for c in clean(said))  # fmt: skip


@given(body=st.binary(max_size=60))
@settings(max_examples=300, deadline=None)
def test_bytes_are_a_manifest_or_refused(body: bytes) -> None:
    with suppress(ValueError):
        read_manifest(ROOT_PI, body)
