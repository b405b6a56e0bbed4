"""Writes a tree of entities as one collection, in breadth-first order: the same tree always gives the same document.

Several entities are written at once, each to a temporary file of its own, and then appended in order. An entity is
written once, so cycles end. If an entity fails, its subtree is missing.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections import deque
from concurrent.futures import Future
from typing import IO, BinaryIO

import msgspec

from windlass.contracts.machine.export.mods.crosswalk import Place
from windlass.contracts.machine.export.mods.record import EntityFailed, Frame, Written, write_entity
from windlass.contracts.machine.export.mods.threads import ThreadPool
from windlass.contracts.machine.export.mods.writer import COLLECTION_BEGIN, COLLECTION_END, DECLARATION

IN_MEMORY_BYTES = 128 * 1024
LOG_EVERY = 100
log = logging.getLogger("windlass.machine")


class Counts(msgspec.Struct):
    """The number of records written, of entities without a record, and of incomplete records."""

    exported: int = 0
    failed: int = 0
    incomplete: int = 0


def export_one(frame: Frame, pi: str, file: BinaryIO) -> Counts:
    """Raises EntityFailed."""
    file.write(DECLARATION)
    written = write_entity(frame, pi, file)
    file.write(b"\n")
    return Counts(1, 0, int(written.incomplete))


def export_tree(frame: Frame, root: str, file: BinaryIO) -> Counts:
    """Write a tree. Raises EntityFailed if the root fails."""
    counts, seen, waiting = Counts(), {root}, deque([Place((root,))])
    width = frame.options.at_once
    in_flight: deque[tuple[Place, Future[tuple[IO[bytes], Written]]]] = deque()
    threads = ThreadPool(width, "windlass-entity")
    file.write(COLLECTION_BEGIN)
    try:
        while waiting or in_flight:
            while waiting and len(in_flight) < width:
                place = waiting.popleft()
                in_flight.append((place, threads.submit(_write_apart, frame, place)))
            place, future = in_flight.popleft()
            for child in _append(future, place, file, counts):
                if place.depth < frame.options.max_depth and child not in seen:
                    seen.add(child)
                    waiting.append(Place((*place.path, child)))
    finally:
        threads.close()
    file.write(COLLECTION_END)
    return counts


def _append(future: Future[tuple[IO[bytes], Written]], place: Place, file: BinaryIO, counts: Counts) -> tuple[str, ...]:
    """Append a record to the collection. Returns the children of its entity."""
    try:
        record, written = future.result()
    except EntityFailed as error:
        if not place.depth:
            raise
        counts.failed += 1
        log.warning("%s", error)
        return ()
    with record:
        file.write(b"\n  ")
        shutil.copyfileobj(record, file)
    counts.exported += 1
    counts.incomplete += written.incomplete
    if counts.exported % LOG_EVERY == 0:
        log.info("%d entities, at depth %d", counts.exported, place.depth)
    return written.children


def _write_apart(frame: Frame, place: Place) -> tuple[IO[bytes], Written]:
    """Write the record of an entity to a temporary file, which is on disk only if it is large."""
    record = tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES)  # noqa: SIM115
    try:
        written = write_entity(frame, place.path[-1], record, place)  # type: ignore[arg-type]
        record.seek(0)
    except BaseException:
        record.close()
        raise
    return record, written
