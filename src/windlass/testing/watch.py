"""What happens on threads, and whoever waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Watch:
    """A lock for a record, and news of its changes."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.news = threading.Condition(self.lock)

    def until(self, holds: Callable[[], object], patience_s: float) -> bool:
        """Whether it came to hold in time."""
        with self.lock:
            return bool(self.news.wait_for(holds, patience_s))
