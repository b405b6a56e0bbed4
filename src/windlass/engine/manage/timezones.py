"""Time zones by their names in the IANA database: that of the machine, or of the package `tzdata`."""

from __future__ import annotations

from datetime import UTC, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

from windlass.errors import Invalid

_OF_THE_MACHINE = {"localtime", "posixrules", "Factory"}  # would mean something else on each server


@lru_cache(maxsize=1024)
def zone_of(name: str) -> tzinfo:
    """Raises Invalid where there is none of this name."""
    if name == "UTC":
        return UTC
    try:
        if name not in _OF_THE_MACHINE:
            return ZoneInfo(name)
    except (OSError, ValueError, KeyError):
        pass
    raise Invalid(f"there is no time zone {name!r}", field="timezone")
