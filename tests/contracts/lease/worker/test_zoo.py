"""Hostile operators, as functions in the wrapper and in processes of their own: each is reported, and its neighbours do
not notice."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest
from tests.contracts.lease.worker.conftest import Bench
from tests.kit import zoo
from tests.shape.source import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")]
WILD = ("exits at once", "kills", "closes files", "leaves a thread", "breaks the output")


@pytest.mark.parametrize("kind", ["async function", "function", "program"])
async def test_whatever_an_operator_does_it_is_reported_and_the_wrapper_goes_on(world: Bench, kind: str) -> None:
    target = "let_out_async" if kind == "async function" else "let_out"
    operator = {"function": f"tests.contracts.lease.worker.operators:{target}"}
    names = [*zoo.BEASTS, *(WILD if kind == "program" else ())]
    if kind == "program":
        names = names[::4] if len(names) > 40 else names  # each is a process
        names = [*names, *[name for name in WILD if name not in names], "words that raise", "NaN", "sys.exit"]
        operator |= {"process": True, "read": [ROOT]}
    ids = {str(uuid4()): name for name in names}
    near = {str(uuid4()): number for number in range(10)}
    world.dispatcher.config_of = lambda task_id: {"name": ids[task_id]} if task_id in ids else {"n": near[task_id]}
    world.start(concurrency=8, **operator)
    for task_id in (*ids, *near):
        world.carrier.put(UUID(task_id))
    await world.does(len(ids) + len(near))
    reports = {heard.body["task_id"]: heard.body for heard in world.dispatcher.requests_for("task-complete")}
    assert {reports[task_id]["result"] for task_id in near} == {2 * number for number in range(10)}
    for task_id, name in ids.items():
        fails = zoo.BEASTS[name][1] if name in zoo.BEASTS else name in WILD[:3]
        report = reports[task_id]
        assert fails is None or (report["status"] == "Failed") is fails, f"{name}: {report}"
        if report["status"] == "Failed":
            assert report["error_message"], name
            assert len(report["error_message"]) <= 4000, name
