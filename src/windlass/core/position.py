"""Positions in lists. A list is ordered by a time that never changes, and by id where two times are the same: many ids
are not made in the order of time.
"""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from windlass.core.validation import check_instant
from windlass.errors import Invalid

Position = tuple[datetime, UUID]
NOWHERE = (None, None)  # makes a query begin at the first row


def check_position(field: str, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, tuple) or len(value) != 2 or not isinstance(value[1], UUID):
        raise Invalid("must be a time and an id", field=field)
    check_instant(field, value[0])
