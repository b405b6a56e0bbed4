"""What a Retry-After asks for: a number of seconds, or a moment by the clock of whoever asks."""

from __future__ import annotations

from datetime import datetime
from email.utils import parsedate_to_datetime


def retry_after_s(asked: str | None, now: datetime | str | None, *, most: float, otherwise: float = 0.0) -> float:
    """Within reason, and `otherwise` for nothing and for nonsense. `now` may be the text of a Date header."""
    text = asked or ""
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), most)
    try:
        said_at = parsedate_to_datetime(text)
        since = parsedate_to_datetime(now) if isinstance(now, str) else now
        return otherwise if since is None else min(max(0.0, (said_at - since).total_seconds()), most)
    except (ValueError, TypeError):
        return otherwise
