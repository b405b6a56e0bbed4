"""The signature in the URLs of a machine, over its task and attempt. It proves which attempt a request belongs to."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

ATTEMPTS_TRIED = 1000


def sign(key: bytes, task: str, attempt: int) -> str:
    """HMAC-SHA256 over task id and attempt, in hex."""
    return hmac.new(key, f"windlass.machine:{task}:{attempt}".encode(), hashlib.sha256).hexdigest()


def signed_attempt(keys: Sequence[bytes], task: str, newest: int, given: str) -> int | None:
    """The attempt that a signature belongs to, or None if it is not valid. Tries the newest attempt first."""
    received = given.encode("utf-8", "replace")
    for attempt in range(newest, max(0, newest - ATTEMPTS_TRIED), -1):
        for key in keys:
            if hmac.compare_digest(sign(key, task, attempt).encode(), received):
                return attempt
    return None
