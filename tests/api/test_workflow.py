"""Workflows over HTTP: signals, steps, forks."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests.api.conftest import NewClient, problem
from tests.api.test_task import submit
from tests.kernel.engine.test_workflow import done, sleep, wait_for
from tests.kit.work import worker

from windlass import Claimed, Engine
from windlass.core.step import StepState


@pytest.fixture
async def workflow(api: httpx.AsyncClient, engine: Engine) -> Claimed:
    """One that has done a step and waits for the signal `approval`."""
    await submit(api)
    [claimed] = await engine.claim(await worker(engine, "mail"))
    await done(engine, claimed, "charge", b'{"paid": true}')
    await wait_for(engine, claimed, "approval", position=1)
    await sleep(engine, claimed, "approval")
    return claimed


async def test_a_signal_wakes_the_workflow_that_waits_for_it_and_counts_once(
    api: httpx.AsyncClient, engine: Engine, workflow: Claimed
) -> None:
    path = f"/api/v1/tasks/{workflow.task.id}/signals/approval"
    headers = {"Idempotency-Key": "k"}

    first = await api.post(path, json={"payload": {"by": "ada"}}, headers=headers)
    again = await api.post(path, json={"payload": {"by": "ada"}}, headers=headers)

    assert (first.status_code, first.json()["state"]) == (200, "queued")
    assert again.status_code == 200
    [claimed] = await engine.claim(await worker(engine, "mail"))
    step = await wait_for(engine, claimed, "approval", position=1)
    assert (step.state, step.result) == (StepState.SUCCEEDED, b'{"by":"ada"}')
    second = await wait_for(engine, claimed, "approval", position=2)
    assert second.state is StepState.WAITING, "the same signal sent twice is one"


async def test_steps_are_listed_as_they_are_recorded(api: httpx.AsyncClient, workflow: Claimed) -> None:
    steps = (await api.get(f"/api/v1/tasks/{workflow.task.id}/steps")).json()["items"]

    told = [(step["name"], step["kind"], step["state"], step["result"]) for step in steps]
    assert told == [
        ("charge", "step", "succeeded", {"paid": True}),
        ("signal:approval", "signal", "waiting", None),
    ]


async def test_a_workflow_is_forked_from_a_step(api: httpx.AsyncClient, workflow: Claimed) -> None:
    path = f"/api/v1/tasks/{workflow.task.id}/fork"

    forked = await api.post(path, json={"from_step": "signal:approval", "occurrence": 2})
    assert forked.status_code == 201, forked.text
    steps = (await api.get(f"/api/v1/tasks/{forked.json()['id']}/steps")).json()["items"]
    assert [step["name"] for step in steps if step["kind"] == "step"] == ["charge"]
    assert problem(await api.post(path, json={"from_step": "never"}), 404, "not_found")


async def test_a_signal_that_is_sent_again_after_the_end_gets_the_answer_of_the_first(
    api: httpx.AsyncClient, engine: Engine, workflow: Claimed
) -> None:
    path = f"/api/v1/tasks/{workflow.task.id}/signals/approval"
    order: dict[str, Any] = {"json": {"payload": 1}, "headers": {"Idempotency-Key": "k"}}
    assert (await api.post(path, **order)).status_code == 200
    await engine.cancel(workflow.task.id, force=True)

    again = await api.post(path, **order)

    assert (again.status_code, again.json()["state"]) == (200, "cancelled")
    problem(await api.post(path, json={"payload": 1}, headers={"Idempotency-Key": "other"}), 409, "invalid_state")
    problem(await api.post(path, json={"payload": 1}), 409, "invalid_state")


async def test_signals_to_nobody_and_elsewhere_are_refused(
    api: httpx.AsyncClient, as_role: NewClient, engine: Engine, workflow: Claimed
) -> None:
    path = f"/api/v1/tasks/{workflow.task.id}/signals/approval"

    problem(await (await as_role("admin", "theirs")).post(path, json={}), 403, "forbidden")
    problem(await api.post(path.replace("approval", "a%00"), json={}), 422, "invalid")
    await engine.cancel(workflow.task.id)
    problem(await api.post(path, json={}), 409, "invalid_state")
