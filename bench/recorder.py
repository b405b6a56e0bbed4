"""Records each task that a handler starts, for the check that every task ran exactly once.

Every handler of every subject calls `hit`. It writes into a memory-mapped file, one per process, so that nothing is
lost when a worker is killed; it costs about half a microsecond. Standard library only, since it also runs in the peers'
environments.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

FOLDER, CAPACITY = "BENCH_RECORD_FOLDER", "BENCH_RECORD_CAPACITY"
_COUNT = struct.Struct("<q")
_SLOT = struct.Struct("<qdd")  # the task's index, when it started here, when it was sent


class _File:
    """The file of this process."""

    def __init__(self) -> None:
        size = _COUNT.size + _SLOT.size * int(os.environ[CAPACITY])
        with (Path(os.environ[FOLDER]) / f"{os.getpid()}.bin").open("w+b") as file:
            file.truncate(size)
            self.map = mmap.mmap(file.fileno(), size)
        self.count = 0


_file: _File | None = None
_lock = threading.Lock()  # handlers may run in threads


def _forget() -> None:
    global _file, _lock
    _file, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)


def hit(index: int, sent_at: float = 0.0) -> None:
    """The handler of task `index` started. Clocks are monotonic, which all processes of a machine share."""
    global _file
    started = time.monotonic()
    with _lock:
        record = _file = _file or _File()
        _SLOT.pack_into(record.map, _COUNT.size + _SLOT.size * record.count, index, started, sent_at)
        record.count += 1
        _COUNT.pack_into(record.map, 0, record.count)


@dataclass(frozen=True, slots=True)
class Hits:
    """All hits of all processes of one measurement. Negative indexes are warm-up."""

    indexes: array[int]
    started: array[float]
    sent: array[float]

    def latencies_s(self) -> list[float]:
        """From submit to start, ascending, without the warm-up."""
        triples = zip(self.indexes, self.started, self.sent, strict=True)
        return sorted(started - sent for index, started, sent in triples if index >= 0)

    def fault(self, wanted: Iterable[int]) -> str | None:
        """None if every wanted task, and no other, ran exactly once; otherwise the problem."""
        real, due = sorted(i for i in self.indexes if i >= 0), list(wanted)
        if real == due:
            return None
        distinct = set(real)
        return f"{len(due)} tasks, but {len(real)} runs of {len(distinct)} of them in the workers"


def count(folder: Path) -> int:
    """The number of hits so far; cheap enough to be called every few milliseconds."""
    total = 0
    for path in folder.glob("*.bin"):
        with path.open("rb") as file:
            total += _COUNT.unpack(file.read(_COUNT.size).ljust(_COUNT.size, b"\0"))[0]
    return total


def read(folder: Path) -> Hits:
    hits = Hits(array("q"), array("d"), array("d"))
    for path in folder.glob("*.bin"):
        data = path.read_bytes()
        used = _COUNT.size + _SLOT.size * _COUNT.unpack_from(data)[0]
        for index, started, sent in _SLOT.iter_unpack(memoryview(data)[_COUNT.size : used]):
            hits.indexes.append(index)
            hits.started.append(started)
            hits.sent.append(sent)
    return hits


def quantiles(ascending_s: list[float]) -> dict[str, float]:
    count = len(ascending_s)
    return {"p50_ms": 1e3 * ascending_s[count // 2], "p99_ms": 1e3 * ascending_s[int(count * 0.99)], "samples": count}
