"""Shows whether the code of a worker runs: it calls a URL while it does, so a case can check that it stops."""

from __future__ import annotations

import threading
import time

from windlass.testing.conformance.kit import Broken


class Probe:
    """The calls of one handler. `who` names it in reports."""

    def __init__(self, who: str) -> None:
        self._who, self._calls_s = who, list[float]()
        self._news = threading.Condition()

    def call(self) -> None:
        with self._news:
            self._calls_s.append(time.monotonic())
            self._news.notify_all()

    def wait(self, timeout_s: float) -> None:
        """Until it works. Raises Broken."""
        with self._news:
            if not self._news.wait_for(lambda: bool(self._calls_s), timeout_s):
                raise Broken(f"{self._who} did not POST to its probe_url while it worked")

    def stops(self, since: str, *, quiet_s: float, limit_s: float) -> None:
        """It calls no more: not for `quiet_s`, after at most `limit_s`. Raises Broken."""
        until_s = time.monotonic() + limit_s + quiet_s
        with self._news:
            while (last_s := self._calls_s[-1]) + quiet_s > time.monotonic():
                if time.monotonic() > until_s:
                    raise Broken(f"{self._who} still worked {limit_s:g} s after {since}")
                self._news.wait(max(last_s + quiet_s - time.monotonic(), 0.001))
