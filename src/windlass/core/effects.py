"""What the engine has to know of kinds of effects that it does not know by name.

A room registers its kinds beside their names. A process that carries out a kind has imported that room.
"""

from __future__ import annotations

from collections.abc import Set

_repeatable: set[str] = set()
_detached: set[str] = set()


def register_effect(kind: str, *, repeatable: bool = False, detached: bool = False) -> None:
    """`repeatable`: it does no harm if two servers carry it out at the same time. `detached`: the attempt that decided
    it goes on without it."""
    if repeatable:
        _repeatable.add(kind)
    if detached:
        _detached.add(kind)


def repeatable_effects() -> Set[str]:
    return _repeatable


def detached_effects() -> Set[str]:
    return _detached
