"""What workers declare for their kinds is what tasks get that are submitted by name."""

from __future__ import annotations

import pytest
from tests.conftest import NewEngine
from tests.kernel.engine.test_schedule import at_noon, spec, tick

from windlass import Engine, Invalid, Policy
from windlass.testing.clock import VirtualClock

FEW, MANY = Policy(max_attempts=2), Policy(max_attempts=9, timeout_s=5.0)


async def test_what_was_declared_last_is_what_is_known(engine: Engine) -> None:
    await engine.declare_kinds("shop", {"a": FEW, "b": None, "c": MANY})
    asked = [("default", kind) for kind in "abcd"] + [("other", "a")]
    assert await engine.parts.kinds.policies(asked) == {("default", "a"): FEW, ("default", "c"): MANY}
    await engine.declare_kinds("shop", {"a": None, "b": MANY})
    assert await engine.parts.kinds.policies(asked) == {("default", "b"): MANY}
    await engine.declare_kinds("other", {"c": FEW})
    await engine.declare_kinds("shop", {})
    assert await engine.parts.kinds.policies(asked) == {("default", "c"): FEW}
    for wrong in ({"a": Policy(max_attempts=0)}, {"": FEW}, {"a": 7}, 7):
        with pytest.raises(Invalid):
            await engine.declare_kinds("shop", wrong)  # type: ignore[arg-type]


async def test_another_engine_knows_it_within_a_second(new_engine: NewEngine, clock: VirtualClock) -> None:
    one, other = await new_engine(), await new_engine()
    await one.declare_kinds("shop", {"a": FEW})
    assert await other.parts.kinds.policies([("default", "a")]) == {("default", "a"): FEW}
    await one.declare_kinds("shop", {"a": MANY})
    assert await other.parts.kinds.policies([("default", "a")]) == {("default", "a"): FEW}
    await clock.advance(1)
    assert await other.parts.kinds.policies([("default", "a")]) == {("default", "a"): MANY}


async def test_a_schedule_that_asks_for_nothing_gets_it_too(engine: Engine, clock: VirtualClock) -> None:
    await at_noon(clock)
    await engine.declare_kinds("shop", {"job": FEW})
    plain, own = await engine.schedules.create(spec()), await engine.schedules.create(spec(policy=MANY))
    await clock.advance(60)
    await tick(engine)
    for schedule, policy in ((plain, FEW), (own, MANY)):
        ids = [id_ for _, id_ in await engine.schedules.task_page(schedule.id)]
        ids.append(await engine.schedules.trigger(schedule.id))
        assert [view.task.policy for view in await engine.tasks.get_many(ids)] == [policy, policy]
