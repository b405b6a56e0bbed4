"""Hostile scripts in a worker of the stdio contract: each comes to its end, and its neighbours do not notice."""

from __future__ import annotations

from contextlib import suppress

import pytest
from tests.contracts.stdio.test_pool import ONCE, ended, pool, result, script, submit
from tests.kit.work import only_direct
from tests.kit.zoo import BEASTS, WILD
from tests.shape.source import ROOT

from windlass import Engine, State
from windlass.stdio import Service, TaskError

PATIENCE_S = 60.0
LET_OUT = "from tests.kit.zoo import let_out\nresult = let_out(name)"
WORDS = "from tests.kit.zoo import Slow, words_may_come\nraise Slow"


def test_whatever_a_script_does_its_task_ends_and_its_neighbours_do_not_notice() -> None:
    with Service(cwd=ROOT) as service:
        out = {name: service.task(LET_OUT, {"name": name}).start() for name in BEASTS}
        slow = service.task(WORDS).start()
        assert [service.task(f"{n} * 2").start().result(PATIENCE_S) for n in range(20)] == [2 * n for n in range(20)]
        service.task("from tests.kit.zoo import words_may_come\nwords_may_come.set()").wait_for(PATIENCE_S)
        with pytest.raises(TaskError, match="at last"):
            slow.wait_for(PATIENCE_S)
        for name, task in out.items():
            with suppress(TaskError):
                task.wait_for(PATIENCE_S)
            assert task.status == "COMPLETE" or task.error, name
        assert {name for name, task in out.items() if task.status == "CRASHED"} == set()


@only_direct
async def test_on_a_queue_too_and_what_kills_a_process_costs_its_own_task_alone(live_engine: Engine) -> None:
    wild = ["exits at once", "kills", "breaks the output", "leaves a thread", "is shallow"]
    handlers = {"out": script(LET_OUT), "near": script("n * 2")}
    async with pool(live_engine, handlers=handlers, cwd=str(ROOT), workers=2):
        names = [*BEASTS, *wild]
        assert set(wild) <= set(WILD)
        ids = [await submit(live_engine, "out", {"name": name}, policy=ONCE) for name in names]
        near = [await submit(live_engine, "near", {"n": n}) for n in range(20)]
        assert [await result(live_engine, task_id) for task_id in near] == [2 * n for n in range(20)]
        for name, task_id in zip(names, ids, strict=True):
            task = await ended(live_engine, task_id)
            fails = BEASTS[name][1] if name in BEASTS else name in wild[:2]
            assert fails is None or task.state is (State.FAILED if fails else State.SUCCEEDED), f"{name}: {task}"
