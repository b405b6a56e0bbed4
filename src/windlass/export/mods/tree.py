"""A tree of entities as one collection, in breadth-first order: the same tree is always the same document.

Some entities are under way at once, each into a file of its own that has no name and goes with us; they are put down in
their order. Whoever was met before is not met again, so that cycles end. An entity that fails costs its subtree.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections import deque
from concurrent.futures import Future
from typing import IO, BinaryIO

import msgspec

from windlass.export.mods.crew import Crew
from windlass.export.mods.crosswalk import Place
from windlass.export.mods.record import EntityFailed, Frame, Written, write_entity
from windlass.export.mods.sheet import COLLECTION_BEGIN, COLLECTION_END, DECLARATION

IN_MEMORY_BYTES = 128 * 1024
SAY_EVERY = 100
log = logging.getLogger("windlass.machine")


class Counts(msgspec.Struct):
    """Records that were written, entities that have none, and records that lack something."""

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
    """Raises EntityFailed if it is the root that fails."""
    counts, seen, waiting = Counts(), {root}, deque([Place((root,))])
    width = frame.options.at_once
    under_way: deque[tuple[Place, Future[tuple[IO[bytes], Written]]]] = deque()
    crew = Crew(width, "windlass-entity")
    file.write(COLLECTION_BEGIN)
    try:
        while waiting or under_way:
            while waiting and len(under_way) < width:
                place = waiting.popleft()
                under_way.append((place, crew.submit(_apart, frame, place)))
            place, future = under_way.popleft()
            for child in _put_down(future, place, file, counts):
                if place.depth < frame.options.max_depth and child not in seen:
                    seen.add(child)
                    waiting.append(Place((*place.path, child)))
    finally:
        crew.close()
    file.write(COLLECTION_END)
    return counts


def _put_down(
    future: Future[tuple[IO[bytes], Written]], place: Place, file: BinaryIO, counts: Counts
) -> tuple[str, ...]:
    """Add a record to the collection, and tell whose turn that makes it."""
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
    if counts.exported % SAY_EVERY == 0:
        log.info("%d entities, at depth %d", counts.exported, place.depth)
    return written.children


def _apart(frame: Frame, place: Place) -> tuple[IO[bytes], Written]:
    """The record of an entity in a file of its own, which is on disk only if it is large."""
    record = tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES)  # noqa: SIM115
    try:
        written = write_entity(frame, place.path[-1], record, place)  # type: ignore[arg-type]
        record.seek(0)
    except BaseException:
        record.close()
        raise
    return record, written
