"""Properties of kinds of effects. The rooms of contracts register their kinds, which the engine does not know."""

from __future__ import annotations

from collections.abc import Set

_repeatable: set[str] = set()
_detached: set[str] = set()


def register_effect(kind: str, *, repeatable: bool = False, detached: bool = False) -> None:
    """`repeatable`: two servers may carry it out at the same time without harm. `detached`: the attempt that decided it
    does not depend on it."""
    if repeatable:
        _repeatable.add(kind)
    if detached:
        _detached.add(kind)


def repeatable_effects() -> Set[str]:
    return _repeatable


def detached_effects() -> Set[str]:
    return _detached
