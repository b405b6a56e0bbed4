"""Shows whether a worker's handler runs: it calls a URL all the while, so a case can check that it stops."""

from __future__ import annotations

import threading
import time

from windlass.testing.conformance.kit import Broken


class Probe:
    """The calls of one handler. `name` is its name in reports."""

    def __init__(self, name: str) -> None:
        self._name, self._calls_s = name, list[float]()
        self._news = threading.Condition()

    def call(self) -> None:
        with self._news:
            self._calls_s.append(time.monotonic())
            self._news.notify_all()

    def wait(self, timeout_s: float) -> None:
        """Wait for the first call. Raises Broken if there is none in time."""
        with self._news:
            if not self._news.wait_for(lambda: bool(self._calls_s), timeout_s):
                raise Broken(f"{self._name} did not POST to its probe_url while it worked")

    def stops(self, since: str, *, quiet_s: float, limit_s: float) -> None:
        """Wait until there was no call for `quiet_s`. Raises Broken if that takes longer than `limit_s`."""
        until_s = time.monotonic() + limit_s + quiet_s
        with self._news:
            while (last_s := self._calls_s[-1]) + quiet_s > time.monotonic():
                if time.monotonic() > until_s:
                    raise Broken(f"{self._name} still worked {limit_s:g} s after {since}")
                self._news.wait(max(last_s + quiet_s - time.monotonic(), 0.001))
