"""The graph of an entity (`cheimarros.json`): people, places and things, as subjects and notes. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from windlass.contracts.machine.export.mods.entity import mapping, text
from windlass.contracts.machine.export.mods.node import Node, group, leaf, note
from windlass.contracts.machine.export.mods.options import Mode

SUBJECT = {"concept": "topic", "place": "geographic", "date": "temporal"}
NAME = {"person": "personal", "organization": "corporate"}
NO_SUBJECT = "document"


class Thing(msgspec.Struct, frozen=True):
    """A person, place or thing in the graph of an entity."""

    kind: str
    label: str
    properties: dict[str, Any] = {}


class Graph(msgspec.Struct, frozen=True):
    things: dict[str, Thing] = {}
    relations: tuple[tuple[str, str, str], ...] = ()  # source, type, target


def read_graph(content: Mapping[str, Any]) -> Graph:
    """Read a graph. Parts that cannot be read are left out."""
    things = {}
    for code, thing in mapping(content.get("entities")).items():
        if label := text(mapping(thing).get("label")):
            things[code] = Thing(text(thing.get("type")), label, dict(mapping(thing.get("properties"))))
    relations = content.get("relations")
    read = [tuple(text(mapping(one).get(name)) for name in ("source", "type", "target"))
            for one in (relations if isinstance(relations, list) else [])]  # fmt: skip
    return Graph(things, tuple((source, kind, target) for source, kind, target in read))


def subjects(graph: Graph, mode: Mode, tag: str) -> Iterator[Node]:
    """The subjects that contain this element. In full mode a thing of an unknown kind is a topic."""
    if mode == "skip":
        return
    for thing in graph.things.values():
        kind = SUBJECT.get(thing.kind)
        if kind is None and mode == "full" and thing.kind not in {*NAME, NO_SUBJECT}:
            kind = "topic"
        if kind == tag:
            yield group("subject", leaf(tag, thing.label))


def names(graph: Graph, mode: Mode) -> Iterator[Node]:
    for thing in graph.things.values():
        if mode != "skip" and thing.kind in NAME:
            yield group("subject", group("name", leaf("namePart", thing.label), type=NAME[thing.kind]))


def notes(graph: Graph, mode: Mode) -> Iterator[Node]:
    if mode != "full":
        return
    for thing in graph.things.values():
        for key, value in thing.properties.items():
            shown = _value(graph, value)
            if shown and key != "description":
                yield note("cheimarros-property", "Graph Property", f"{thing.label} • {key}: {shown}")
    for source, kind, target in graph.relations:
        if source in graph.things and target in graph.things:
            line = f"{graph.things[source].label} → {kind} → {graph.things[target].label}"
            yield note("cheimarros-relation", "Graph Relation", line)


def _value(graph: Graph, value: object) -> str:
    """A text; for a reference, the label of its target, or its code if the graph has no such thing."""
    if isinstance(value, str):
        return text(value)
    reference = mapping(value)
    if reference.get("type") != "entity_ref":
        return ""
    code = text(reference.get("code"))
    return graph.things[code].label if code in graph.things else code
