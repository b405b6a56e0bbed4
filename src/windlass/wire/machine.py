"""How a machine proves that it is the one that was launched: a signature over its task and attempt, in its URLs."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

ATTEMPTS_TRIED = 1000


def sign(key: bytes, task: str, attempt: int) -> str:
    """HMAC-SHA256 over task id and attempt, in hex."""
    return hmac.new(key, f"windlass.machine:{task}:{attempt}".encode(), hashlib.sha256).hexdigest()


def signed_attempt(keys: Sequence[bytes], task: str, newest: int, given: str) -> int | None:
    """Which attempt of a task this is the signature of, the newest first; None for one that is not ours."""
    said = given.encode("utf-8", "replace")
    for attempt in range(newest, max(0, newest - ATTEMPTS_TRIED), -1):
        for key in keys:
            if hmac.compare_digest(sign(key, task, attempt).encode(), said):
                return attempt
    return None
