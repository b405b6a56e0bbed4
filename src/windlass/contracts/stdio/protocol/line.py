"""Writes whole lines to a descriptor from any number of threads, and reads lines from one.

Knows bytes and newlines, not messages. Runs in workers of any environment: standard library only.
"""

from __future__ import annotations

import os
import select
from collections import deque
from contextlib import suppress
from threading import Lock, Thread

CHUNK = 1 << 16
WAITING_MAX = 1 << 20  # bytes that may wait for a slow reader before writers wait too
LINE_MAX = 256 << 20


class LineWriter:
    """Threads add lines; the one that finds the descriptor free writes all that wait. No line is split by another, and
    many threads share one system call.

    With `nonblocking`, no writer waits for the reader: a separate thread does, once the pipe is full.
    """

    def __init__(self, descriptor: int, *, nonblocking: bool = False) -> None:
        self._descriptor, self._nonblocking = descriptor, nonblocking
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._writing = Lock()
        self._closing = False
        self._closed = Lock()  # held by the thread that closes
        self.broken = False
        if nonblocking:
            os.set_blocking(descriptor, False)

    def write(self, line: bytes) -> None:
        """`line` ends with its only newline. Raises BrokenPipeError if the reader has closed the pipe, or we have."""
        if self.broken:
            raise BrokenPipeError("the pipe is closed")
        self._waiting.append(line)
        self._size += len(line)  # a hint only: two threads may miscount
        self._drain(wait=self._size > WAITING_MAX and not self._nonblocking)

    def flush(self) -> None:
        """Wait until all lines are written."""
        with self._writing:
            self._write_all(self._take_waiting())

    def close(self) -> None:
        """Accept no more lines; when all that wait are written, the reader sees the end. Does not wait."""
        if self._closed.acquire(blocking=False):
            self._closing = self.broken = True
            self._drain(wait=False)

    def _drain(self, *, wait: bool) -> None:
        while self._waiting or self._closing:
            if not self._writing.acquire(blocking=wait):
                return  # the thread that holds it checks again after releasing it
            rest = self._take_waiting()
            try:
                rest = self._write_all(rest)
            except OSError:
                self.broken = True
                self._waiting.clear()
                rest = memoryview(b"")
                if not self._closing:
                    self._writing.release()
                    raise
            if rest:  # the thread that waits for the reader releases the lock
                Thread(target=self._write_later, args=(rest,), name="windlass-write", daemon=True).start()
                return
            if self._closing and not self._waiting:
                self._closing = False
                os.close(self._descriptor)
                self._descriptor = -1  # so that a late writer does not write to another file with the same number
            self._writing.release()

    def _take_waiting(self) -> memoryview:
        lines = []
        while self._waiting:
            lines.append(self._waiting.popleft())
        self._size = 0
        return memoryview(lines[0] if len(lines) == 1 else b"".join(lines))

    def _write_all(self, rest: memoryview) -> memoryview:
        """Returns what could not be written without waiting; always empty unless `nonblocking`."""
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
            self._drain(wait=False)


class TooLong(Exception):
    """A line beyond the limit; `head` is its beginning, `tail` its end, the rest was dropped."""

    def __init__(self, head: bytes, tail: bytes = b"") -> None:
        super().__init__("the line is too long")
        self.head, self.tail = head, tail


class LineReader:
    """Lines of a descriptor, without their newlines. One thread at a time."""

    def __init__(self, descriptor: int, longest: int = LINE_MAX) -> None:
        self._descriptor, self._longest = descriptor, longest
        self._lines: deque[bytes] = deque()
        self._parts: list[bytes] = []  # of the line that is being read
        self._size = 0
        self._tail = b""  # of a line that is too long

    def read(self) -> bytes | None:
        """The next line; None at the end. Raises TooLong for a line beyond the limit."""
        while not self._lines:
            chunk = os.read(self._descriptor, CHUNK)
            if chunk:
                self._take(chunk)
            elif self._parts:
                self._take(b"\n")  # a last line without its newline counts: it may be complete
            else:
                return None
        return self._lines.popleft()

    def put_back(self, lines: list[bytes]) -> None:
        """Read these lines next."""
        self._lines.extendleft(reversed(lines))

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
            del self._parts[1:]  # keep only its beginning and its end from here on
            self._tail = (self._tail + part)[-CHUNK:]
            return
        self._parts.append(part)
