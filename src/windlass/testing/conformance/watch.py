"""A lock with a condition, for records that several threads change and wait for."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Watch:
    """A lock for a record, and a condition that is notified of its changes."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.news = threading.Condition(self.lock)

    def until(self, holds: Callable[[], object], timeout_s: float) -> bool:
        """Wait until the condition holds; False if it does not in time."""
        with self.lock:
            return bool(self.news.wait_for(holds, timeout_s))
