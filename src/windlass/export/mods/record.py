"""One entity from its manifest to its record, piece by piece: of its many files one is in memory at a time."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from itertools import chain
from typing import BinaryIO

import msgspec

from windlass.export.mods import crosswalk
from windlass.export.mods.crosswalk import Addresses, Entity, Place
from windlass.export.mods.entity import DESCRIPTION, GRAPH, PI, PINAX, Manifest, decode, read_manifest, text, text_of
from windlass.export.mods.graph import Graph, read_graph
from windlass.export.mods.node import Node
from windlass.export.mods.options import Options
from windlass.export.mods.related import other_items, ref_item
from windlass.export.mods.sheet import write_record
from windlass.export.mods.source import NotRead, Reading, Source

AHEAD = 3  # files of an entity that are read before they are needed
log = logging.getLogger("windlass.machine")


class EntityFailed(Exception):
    """There is no record of this entity, not even a minimal one."""


class Frame(msgspec.Struct, frozen=True):
    """What all records of an export have in common."""

    source: Source
    options: Options
    addresses: Addresses
    today: str
    origin: str = "Made by windlass-export-mods"


class Written(msgspec.Struct, frozen=True):
    """`incomplete` if something that the manifest names, or its metadata, could not be read."""

    children: tuple[str, ...]
    incomplete: bool


def write_entity(frame: Frame, pi: str, file: BinaryIO, place: Place | None = None) -> Written:
    """With a place it is part of a collection. Raises EntityFailed before anything is written."""
    manifest = _manifest(frame.source, pi)
    with Reading(frame.source) as reading:
        files = Files(manifest, reading)
        entity = _entity(files, frame.options)
        nodes = chain(
            crosswalk.before(entity, frame.options.cheimarros_mode),
            files.refs(include_ocr=frame.options.include_ocr),
            other_items(manifest, frame.addresses),
            crosswalk.after(entity, frame.addresses, place, frame.today, frame.origin),
        )
        if place is None:
            write_record(file, nodes)
        else:
            write_record(file, nodes, level=1, record_id=f"entity-{pi}")
    return Written(manifest.children, files.missing or entity.pinax is None)


def _manifest(source: Source, pi: str) -> Manifest:
    if not PI.fullmatch(pi):
        raise EntityFailed(f"{pi[:100]!r} is no persistent identifier")
    try:
        return read_manifest(pi, source.manifest(pi))
    except NotRead as error:
        raise EntityFailed(f"Failed to fetch manifest for PI {pi}: {error}") from None
    except ValueError as error:
        raise EntityFailed(f"Failed to read manifest for PI {pi}: {error}") from None


class Files:
    """The files of one entity. What cannot be read is left out, and remembered."""

    def __init__(self, manifest: Manifest, reading: Reading) -> None:
        self.manifest, self._reading = manifest, reading
        self.missing = False

    def pinax(self, body: bytearray) -> dict[str, object]:
        said = decode(body)
        if not isinstance(said, dict):
            raise ValueError("it is not a JSON object")  # noqa: TRY004
        return said

    def refs(self, *, include_ocr: bool) -> Iterator[Node]:
        waiting, ahead, kept = deque(self.manifest.refs), deque(), self._reading.large  # type: ignore[var-annotated]
        while waiting or ahead:
            while waiting and len(ahead) < AHEAD:
                key = waiting.popleft()
                ahead.append((key, self._reading.begin(self.manifest.components[key])))
            key, begun = ahead.popleft()
            try:
                yield ref_item(
                    key, decode(self._reading.end(self.manifest.components[key], begun)), include_ocr=include_ocr
                )
            except (NotRead, ValueError) as error:
                self.miss(key, error)
            del begun
            if not kept:
                self._reading.let_go()

    def miss(self, key: str, error: Exception) -> None:
        self.missing = True
        log.warning("%s of %s could not be read: %s", key[:200], self.manifest.pi, error)


def _entity(files: Files, options: Options) -> Entity:
    """The three files that a record needs first are asked for at once."""
    manifest, reading = files.manifest, files._reading
    wanted = [PINAX, DESCRIPTION, *([GRAPH] if options.cheimarros_mode != "skip" else [])]
    begun = {key: reading.begin(manifest.components[key]) for key in wanted if key in manifest.components}
    pinax, description, graph, problem = None, "", Graph(), "pinax.json is missing"
    for key, future in begun.items():
        try:
            body = reading.end(manifest.components[key], future)
            if key == PINAX:
                pinax = files.pinax(body)
            elif key == DESCRIPTION:
                description = text_of(body)
            else:
                graph = read_graph(decode(body))
        except (NotRead, ValueError) as error:
            files.miss(key, error)
            problem = f"pinax.json could not be read: {error}" if key == PINAX else problem
    return Entity(manifest=manifest, pinax=pinax, problem=problem, description=text(description), graph=graph)
