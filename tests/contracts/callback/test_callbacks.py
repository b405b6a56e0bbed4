"""What a worker of the callback contract says, and what it is answered: through real HTTP."""

from __future__ import annotations

from tests.contracts.callback.world import World, refused

from windlass import State


async def test_a_task_is_pushed_started_and_completed(world: World) -> None:
    attempt = await world.dispatched(payload=b'{"table": "orders"}')
    assert attempt.envelope["payload"] == {"table": "orders"}
    assert (await world.task(attempt)).state is State.RUNNING

    started = await attempt.call("started", startedAt="2025-01-15T10:00:00Z")
    beaten = await attempt.heartbeat(progressPct=45, message="Processing partition 5 of 10")
    done = await attempt.completed(output={"rowCount": 1_000_000})

    assert started.json() == {"acknowledged": True, "serverTime": started.json()["serverTime"]}
    assert beaten.json() == {"acknowledged": True, "shouldCancel": False, "serverTime": beaten.json()["serverTime"]}
    assert done.json() == {
        "acknowledged": True, "finalState": "SUCCEEDED", "serverTime": done.json()["serverTime"],
    }  # fmt: skip
    task = await world.task(attempt)
    assert (task.state, task.worker, task.result) == (State.SUCCEEDED, "worker-abc123", b'{"rowCount":1000000}')


async def test_a_cancelled_task_is_refused(world: World) -> None:
    attempt = await world.dispatched()
    await world.engine.cancel(attempt.task_id, "not wanted")

    assert refused(await attempt.call("started"), 409, "task_already_terminal")["state"] == "CANCELLED"
