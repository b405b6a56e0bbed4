"""Ids are UUIDv7: they sort by the time they were made, so that indexes on them grow at one end.

Time and random bits are arguments, so that the simulation can make them from its seed.
"""

from __future__ import annotations

from uuid import UUID, SafeUUID, uuid5

_NAMESPACE = UUID("6f3d2c1e-5a47-5b0e-9a55-77696e646c61")
RANDOM_BITS = 74
_MS_END, _RANDOM_END, _LOW = 1 << 48, 1 << RANDOM_BITS, (1 << 62) - 1
_VERSION, _VARIANT = 7 << 76, 2 << 62
_new, _set, _UNKNOWN = object.__new__, object.__setattr__, SafeUUID.unknown


def uuid7(ms: int, random: int) -> UUID:
    """The id for this millisecond of the Unix epoch and these 74 random bits."""
    assert 0 <= ms < _MS_END, ms
    assert 0 <= random < _RANDOM_END, random
    # Not UUID(int=…), which spends most of its time on checking its arguments.
    made = _new(UUID)
    _set(made, "int", ms << 80 | _VERSION | random >> 62 << 64 | _VARIANT | random & _LOW)
    _set(made, "is_safe", _UNKNOWN)
    return made


def derived_id(*parts: object) -> UUID:
    """The id made from these parts, always the same: a repeated effect has the same id."""
    return uuid5(_NAMESPACE, ":".join(map(str, parts)))
