"""Writes the record of one entity, piece by piece, with at most one of its large files in memory."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from itertools import chain
from typing import BinaryIO

import msgspec

from windlass.contracts.machine.export.mods import crosswalk
from windlass.contracts.machine.export.mods.crosswalk import Addresses, Entity, Place
from windlass.contracts.machine.export.mods.entity import (
    DESCRIPTION,
    GRAPH,
    PI,
    PINAX,
    Manifest,
    read_manifest,
    read_object,
    text,
    text_of,
)
from windlass.contracts.machine.export.mods.graph import Graph, read_graph
from windlass.contracts.machine.export.mods.node import Node
from windlass.contracts.machine.export.mods.options import Options
from windlass.contracts.machine.export.mods.related import other_items, ref_item
from windlass.contracts.machine.export.mods.source import Body, NotRead, Source
from windlass.contracts.machine.export.mods.writer import write_record

AHEAD = 3  # files of an entity that are read before they are needed
log = logging.getLogger("windlass.machine")


class EntityFailed(Exception):
    """No record of this entity can be written, not even a minimal one."""


class Frame(msgspec.Struct, frozen=True):
    """What all records of an export have in common."""

    source: Source
    options: Options
    addresses: Addresses
    today: str
    origin: str = "Made by windlass-export-mods"


class Written(msgspec.Struct, frozen=True):
    """A written record. `incomplete`: its metadata or a file that the manifest names could not be read."""

    children: tuple[str, ...]
    incomplete: bool


def write_entity(frame: Frame, pi: str, file: BinaryIO, place: Place | None = None) -> Written:
    """Write a record; with a place, as part of a collection. Raises EntityFailed before it writes anything."""
    manifest = _manifest(frame.source, pi)
    with Files(manifest, frame.source) as files:
        entity = files.entity(frame.options)
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
        raise EntityFailed(f"{pi[:100]!r} is not a persistent identifier")
    try:
        return read_manifest(pi, source.manifest(pi))
    except NotRead as error:
        raise EntityFailed(f"Failed to fetch manifest for PI {pi}: {error}") from None
    except ValueError as error:
        raise EntityFailed(f"Failed to read manifest for PI {pi}: {error}") from None


class Files:
    """The files of one entity. A file that cannot be read is left out and sets `missing`. The first large one waits
    until no other entity has a large file in memory."""

    def __init__(self, manifest: Manifest, source: Source) -> None:
        self._manifest, self._source = manifest, source
        self._large = False  # whether a large file of this entity may be in memory
        self.missing = False

    def __enter__(self) -> Files:
        return self

    def __exit__(self, *_: object) -> None:
        self._let_go()

    def entity(self, options: Options) -> Entity:
        """Read the three files that a record needs first, all at once."""
        cids = self._manifest.components
        wanted = [PINAX, DESCRIPTION, *([GRAPH] if options.cheimarros_mode != "skip" else [])]
        begun = {key: self._source.begin(cids[key]) for key in wanted if key in cids}
        pinax, description, graph, problem = None, "", Graph(), "pinax.json is missing"
        for key, future in begun.items():
            try:
                body = self._read(key, future)
                if key == PINAX:
                    pinax = read_object(body)
                elif key == DESCRIPTION:
                    description = text_of(body)
                else:
                    graph = read_graph(read_object(body))
            except (NotRead, ValueError) as error:
                self._miss(key, error)
                problem = f"pinax.json could not be read: {error}" if key == PINAX else problem
        return Entity(manifest=self._manifest, pinax=pinax, problem=problem, description=text(description), graph=graph)

    def refs(self, *, include_ocr: bool) -> Iterator[Node]:
        """The related items of files on the CDN. A few of them are read ahead."""
        cids, waiting, kept = self._manifest.components, deque(self._manifest.refs), self._large
        ahead: deque[tuple[str, Future[Body | None]]] = deque()
        while waiting or ahead:
            while waiting and len(ahead) < AHEAD:
                key = waiting.popleft()
                ahead.append((key, self._source.begin(cids[key])))
            key, begun = ahead.popleft()
            try:
                yield ref_item(key, read_object(self._read(key, begun)), include_ocr=include_ocr)
            except (NotRead, ValueError) as error:
                self._miss(key, error)
            if not kept:
                self._let_go()

    def _read(self, key: str, begun: Future[Body | None]) -> Body:
        """Raises NotRead."""
        body = begun.result()
        if body is not None:
            return body
        if not self._large:
            self._source.large.acquire()
            self._large = True
        return self._source.file(self._manifest.components[key])

    def _let_go(self) -> None:
        """Let another entity read a large file: this one has none in memory any more."""
        if self._large:
            self._large = False
            self._source.large.release()

    def _miss(self, key: str, error: Exception) -> None:
        self.missing = True
        log.warning("%s of %s could not be read: %s", key[:200], self._manifest.pi, error)
