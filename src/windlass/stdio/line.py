"""One message per line: whole lines into a descriptor from any number of threads, and lines out of one.

Knows bytes and newlines, nothing of what they say. Runs in workers of any environment: standard library only.
"""

from __future__ import annotations

import os
import select
from collections import deque
from contextlib import suppress
from threading import Lock, Thread

CHUNK = 1 << 16
WAITING_MAX = 1 << 20  # bytes that may wait behind a slow reader before those who write wait for it too
LINE_MAX = 256 << 20


class LineWriter:
    """Threads leave lines; one of them, whoever finds the descriptor free, writes all that wait. No line is ever split
    by another, and a crowd shares one system call.

    With `patient`, nobody who writes waits for a reader: a thread of its own does, once the pipe is full.
    """

    def __init__(self, descriptor: int, *, patient: bool = False) -> None:
        self._descriptor, self._patient = descriptor, patient
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._writing = Lock()
        self._closing = False
        self._closed = Lock()  # taken by the one who closes
        self.broken = False
        if patient:
            os.set_blocking(descriptor, False)

    def write(self, line: bytes) -> None:
        """`line` ends with its only newline. Raises BrokenPipeError when nobody reads any more, or it was closed."""
        if self.broken:
            raise BrokenPipeError("nobody reads")
        self._waiting.append(line)
        self._size += len(line)  # read as a hint only: two threads may miscount
        self._attend(wait=self._size > WAITING_MAX and not self._patient)

    def flush(self) -> None:
        """Wait until all that was left is written."""
        with self._writing:
            self._write_all(self._taken())

    def close(self) -> None:
        """Nothing more is taken; when all that waits is written, the reader sees the end. Does not wait."""
        if self._closed.acquire(blocking=False):
            self._closing = self.broken = True
            self._attend(wait=False)

    def _attend(self, *, wait: bool) -> None:
        while self._waiting or self._closing:
            if not self._writing.acquire(blocking=wait):
                return  # whoever holds it looks again after letting go
            rest = self._taken()
            try:
                rest = self._write_all(rest)
            except OSError:
                self.broken = True
                self._waiting.clear()
                rest = memoryview(b"")
                if not self._closing:
                    self._writing.release()
                    raise
            if rest:  # the lock goes to the thread that waits for the reader
                Thread(target=self._write_later, args=(rest,), name="windlass-write", daemon=True).start()
                return
            if self._closing and not self._waiting:
                self._closing = False
                os.close(self._descriptor)
                self._descriptor = -1  # so that who comes late does not write into whatever has its number next
            self._writing.release()

    def _taken(self) -> memoryview:
        lines = []
        while self._waiting:
            lines.append(self._waiting.popleft())
        self._size = 0
        return memoryview(lines[0] if len(lines) == 1 else b"".join(lines))

    def _write_all(self, rest: memoryview) -> memoryview:
        """What could not be written without waiting; nothing unless `patient`."""
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:
                return rest
        return rest

    def _write_later(self, rest: memoryview) -> None:
        try:
            while rest:
                select.select([], [self._descriptor], [])
                rest = self._write_all(rest)
        except (OSError, ValueError):
            self.broken = True
            self._waiting.clear()
        finally:
            self._writing.release()
        with suppress(OSError):
            self._attend(wait=False)


class TooLong(Exception):
    """A line beyond what is kept; `head` is how it began, `tail` how it ended, the rest was thrown away."""

    def __init__(self, head: bytes, tail: bytes = b"") -> None:
        super().__init__("the line is too long")
        self.head, self.tail = head, tail


class LineReader:
    """Lines of a descriptor, without their newlines. One thread at a time."""

    def __init__(self, descriptor: int, longest: int = LINE_MAX) -> None:
        self._descriptor, self._longest = descriptor, longest
        self._lines: deque[bytes] = deque()
        self._parts: list[bytes] = []  # of the line that has begun
        self._size = 0
        self._tail = b""  # of a line that is too long

    def read(self) -> bytes | None:
        """The next line; None at the end. Raises TooLong for a line that was not kept."""
        while not self._lines:
            chunk = os.read(self._descriptor, CHUNK)
            if chunk:
                self._take(chunk)
            elif self._parts:
                self._take(b"\n")  # a last line without its newline counts: it may well be whole
            else:
                return None
        return self._lines.popleft()

    def put_back(self, lines: list[bytes]) -> None:
        """To be read next."""
        self._lines.extendleft(reversed(lines))

    @property
    def ready(self) -> bool:
        """Whether the next line is here already."""
        return bool(self._lines)

    def _take(self, chunk: bytes) -> None:
        head, newline, rest = chunk.partition(b"\n")
        self._add(head)
        if not newline:
            return
        line, too_long = b"".join(self._parts), self._size > self._longest
        tail, self._parts, self._size, self._tail = self._tail, [], 0, b""
        *lines, rest = rest.split(b"\n")
        self._lines.extend(lines)
        self._add(rest)
        if too_long:
            raise TooLong(line, tail)
        self._lines.appendleft(line)

    def _add(self, part: bytes) -> None:
        if not part:
            return
        self._size += len(part)
        if self._size > self._longest and self._parts:
            del self._parts[1:]  # only its beginning and its end are of interest from here on
            self._tail = (self._tail + part)[-CHUNK:]
            return
        self._parts.append(part)
