"""Connections that rest between two requests, for many threads: a second request need not begin with a handshake."""

from __future__ import annotations

import threading
from http.client import HTTPConnection

Server = tuple[str, str]  # scheme, and HOST:PORT


class Resting:
    """At most so many to each server."""

    def __init__(self, most: int) -> None:
        self._most, self._closed = most, False
        self._resting: dict[Server, list[HTTPConnection]] = {}
        self._lock = threading.Lock()

    def take(self, server: Server) -> HTTPConnection | None:
        """The one that rested last; it may have been closed by the other side meanwhile."""
        with self._lock:
            resting = self._resting.get(server)
            return resting.pop() if resting else None

    def keep(self, server: Server, connection: HTTPConnection) -> None:
        """Until somebody takes it. One too many is closed, and so are those that come after the end."""
        with self._lock:
            resting = self._resting.setdefault(server, [])
            if len(resting) < self._most and not self._closed:
                resting.append(connection)
                return
        connection.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            resting, self._resting = self._resting, {}
        for connections in resting.values():
            for connection in connections:
                connection.close()
