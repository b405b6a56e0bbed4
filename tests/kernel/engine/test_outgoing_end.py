"""Who carries attempts may end at any moment, also between two looks for silence."""

from __future__ import annotations

from windlass import Engine
from windlass.core.states import Effect


async def _nowhere(_effect: Effect) -> None:
    """Nothing is carried out in this test."""


async def test_a_look_that_was_due_when_the_last_carrier_went_sees_nothing(engine: Engine) -> None:
    async with engine.parts.outgoing.carrying("push", _nowhere):
        pass

    assert await engine.parts.outgoing._check_silence() == 0
