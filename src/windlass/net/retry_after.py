"""The header Retry-After: a number of seconds, or a date by the clock of the server."""

from __future__ import annotations

from datetime import datetime
from email.utils import parsedate_to_datetime


def retry_after_s(header: str | None, now: datetime | str | None, *, most: float, otherwise: float = 0.0) -> float:
    """At most `most`; `otherwise` if the header is missing or invalid. `now` may be the text of a Date header."""
    text = header or ""
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), most)
    try:
        retry_at = parsedate_to_datetime(text)
        since = parsedate_to_datetime(now) if isinstance(now, str) else now
        return otherwise if since is None else min(max(0.0, (retry_at - since).total_seconds()), most)
    except (ValueError, TypeError):
        return otherwise
