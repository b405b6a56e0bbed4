"""Identity. Ids are UUIDv7: they sort by the time they were made, so that indexes on them grow at one end.

Time and chance are arguments; the engine supplies them (and the simulation supplies them from its seed).
"""

from __future__ import annotations

from uuid import UUID, SafeUUID, uuid5

_NAMESPACE = UUID("6f3d2c1e-5a47-5b0e-9a55-77696e646c61")
RANDOM_BITS = 74


def uuid7(ms: int, random: int) -> UUID:
    """The id for this millisecond of the Unix epoch and these 74 bits of chance."""
    assert 0 <= ms < 1 << 48, ms
    assert 0 <= random < 1 << RANDOM_BITS, random
    high, low = random >> 62, random & ((1 << 62) - 1)
    return _uuid(ms << 80 | 7 << 76 | high << 64 | 2 << 62 | low)


def _uuid(value: int) -> UUID:
    """UUID(int=value), which spends most of its time on checking arguments that we know."""
    made = object.__new__(UUID)
    object.__setattr__(made, "int", value)
    object.__setattr__(made, "is_safe", SafeUUID.unknown)
    return made


def derived_id(*parts: object) -> UUID:
    """An id that anybody who knows the parts can make again: the same effect twice has the same id."""
    return uuid5(_NAMESPACE, ":".join(map(str, parts)))
