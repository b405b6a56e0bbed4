"""Machines held against the attempts that run: what ends without a word, what vanishes, what belongs to nobody; and
whoever dies at each step of the flow, with nothing left behind."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.contracts.machine.world import (
    DONE,
    PI,
    SIZE,
    World,
    eventually,
    json_of,
    open_world,
    success_report,
    task_id_of,
)
from tests.kit.processes import alive, gone
from tests.kit.work import SOON_S

from windlass import State
from windlass.contracts.machine.launchers.port import LauncherUnavailable, Order
from windlass.contracts.machine.launchers.process import ProcessLauncher
from windlass.contracts.machine.rules import machine_name, read_machine_name
from windlass.contracts.machine.sweeper import Machines
from windlass.core.delivery import RetryForm
from windlass.errors import Unavailable
from windlass.testing.clock import VirtualClock

pytestmark = pytest.mark.slow

WAIT = "wait /never"


async def nothing_is_left(world: World, *, objects: int = 0) -> None:
    """After one sweep: no machine, no process, no temporary file, and only the objects that somebody may want."""
    await world.unread()
    await world.sweep()
    await world.engine.service(Machines).object_tick()
    assert world.machines() == []
    assert len(await world.objects()) == objects
    async with world.engine.store.begin() as tx:
        count = await tx.session.connection.fetchval("select count(*) from windlass.machine where ended_at is null")
    assert count == 0


# --------------------------------------------------------------------------------------------- how a machine ends


async def test_exit_0_with_its_object_is_a_success_though_the_callback_was_lost(world: World) -> None:
    name = await world.finished("upload", "exit 0")

    told = await world.status(name)
    assert (told["status"], told["output_file_size"]) == ("success", SIZE)
    assert json_of((await world.task(name)).result)["observed"] is True
    assert (await world.details(name))["machine_ended"]["exit_code"] == 0
    assert len((await world.http.get(f"/download/{name}")).content) == SIZE
    await nothing_is_left(world)


async def test_a_callback_that_comes_after_its_success_was_seen_is_received(world: World) -> None:
    name = await world.finished("upload", "exit 0")
    late = await world.call_back(name, **success_report(name, metrics={"entities_exported": 1}))
    other = await world.call_back(name, **success_report(name, size=5))

    assert (late.status_code, other.status_code) == (200, 409)


@pytest.mark.parametrize(
    ("steps", "reason", "says"),
    [
        (["exit 0"], "NO_OBJECT", "exit code 0 and left no object"),
        (["say first", "say no entity has this id", "exit 1"], "EXIT_CODE", "exit code 1: no entity has this id"),
        (["upload", "exit 3"], "EXIT_CODE", "exit code 3"),
        (["say a\x00b", "exit 4"], "EXIT_CODE", "exit code 4"),
        (["signal 15"], "MACHINE_KILLED", "signal 15"),
        (["upload", "signal 9"], "MACHINE_KILLED", "signal 9"),
    ],
)
async def test_any_other_end_is_an_error_with_code_and_reason(
    world: World, steps: list[str], reason: str, says: str
) -> None:
    name = await world.finished(*steps)

    task, told = await world.task(name), await world.status(name)
    assert told["status"] == "error"
    assert says in told["error"]
    assert (task.state, task.error.reason) == (State.FAILED, reason)  # type: ignore[union-attr]
    await nothing_is_left(world)


async def test_out_of_memory_is_told(world: World) -> None:
    await world.queue(memory_mb=64)
    name = await world.finished("hog 90")

    assert (await world.status(name))["error"] == "the machine ran out of memory"
    assert (await world.task(name)).error.reason == "OUT_OF_MEMORY"  # type: ignore[union-attr]
    [row] = await world.engine.service(Machines).of_task(task_id_of(name))
    assert (row.exit_code, row.reason) == (-9, "out_of_memory")
    await nothing_is_left(world)


async def test_a_machine_that_vanishes_is_a_loss(world: World) -> None:
    name = await world.export(WAIT)
    await world.launcher.stop(machine_name(task_id_of(name), 1), None, 0.0)
    await world.sweep()

    assert (await world.status(name))["error"] == "the machine vanished"
    assert (await world.task(name)).error.reason == "MACHINE_VANISHED"  # type: ignore[union-attr]


async def test_a_supervisor_that_is_killed_takes_its_machine_along(world: World) -> None:
    began, child = world.file("began"), world.file("child")
    name = await world.export(f"child {child}", f"touch {began}", WAIT)
    pids = [int(await world.appears(file)) for file in (began, child)]
    supervisor = next((world.folder / "machines").glob(f"*/{machine_name(task_id_of(name), 1)}/begun"))
    os.kill(int(supervisor.read_text()), 9)
    await world.exited(name)
    await world.sweep()

    assert (await world.task(name)).state is State.FAILED
    await gone(*pids)
    await nothing_is_left(world)


async def test_a_machine_that_never_calls_is_stopped_when_its_time_is_over(world: World) -> None:
    began = world.file("began")
    name = await world.export(f"touch {began}", WAIT)
    pid = int(await world.appears(began))
    await world.clock.advance(599)
    await world.sweep()
    assert (await world.status(name))["status"] == "processing"
    await world.clock.advance(2)
    await world.sweep()

    assert (await world.status(name))["error"] == "no callback within 600 s"
    assert (await world.task(name)).error.reason == "CALLBACK_TIMEOUT"  # type: ignore[union-attr]
    await gone(pid)
    await nothing_is_left(world)


async def test_the_timeout_is_a_setting_of_the_queue(world: World) -> None:
    await world.queue(run_timeout_ms=5000)
    name = await world.export(WAIT)
    await world.clock.advance(6)
    await world.sweep()

    assert (await world.status(name))["error"] == "no callback within 5 s"


async def test_one_that_ended_in_time_and_is_looked_at_late_is_a_success(world: World) -> None:
    name = await world.export("upload", "exit 0")
    await world.exited(name)
    await world.clock.advance(700)
    await world.sweep()

    assert (await world.status(name))["status"] == "success"


async def test_a_server_that_nobody_replaces_is_noticed_by_any_other(world: World) -> None:
    """Whoever can see the machine is gone: the lease ends it all the same, a little after its time."""
    name = await world.export(WAIT)
    world.engine.service(Machines).launchers = {}
    await world.clock.advance(725)
    await world.engine.parts.outgoing.silence_tick()

    assert (await world.status(name))["status"] == "error"
    world.engine.service(Machines).launchers = {"process": world.launcher}
    await nothing_is_left(world)


# --------------------------------------------------------------------------------------------- launches


async def test_a_launcher_that_answers_too_late_has_launched_all_the_same(world: World, pace: float) -> None:
    async def never() -> None:
        await asyncio.sleep(60)

    world.launcher.after = never
    await world.queue(spawn_timeout_ms=int(600 * pace))
    name = await world.export(*DONE)
    await world.exited(name)

    assert (await world.status(name))["status"] == "success"
    assert len(world.launcher.orders) == 1
    await nothing_is_left(world, objects=1)


async def test_a_launcher_that_never_answers_is_500_after_the_spawn_timeout(world: World) -> None:
    async def never() -> None:
        await world.clock.advance(1)
        await asyncio.sleep(60)

    world.launcher.before = never
    await world.queue(spawn_timeout_ms=300)
    answer = await world.post(DONE)

    assert answer.status_code == 500
    assert answer.json()["error"] == "machine spawn failed: no answer within 0.3 s (spawn timeout 0.3 s)"
    await nothing_is_left(world)


async def test_a_machine_that_appears_after_its_launch_was_given_up_is_removed(world: World) -> None:
    order: list[Order] = []

    async def give_up() -> None:
        await world.clock.advance(1)
        order.append(world.launcher.orders[-1])
        raise LauncherUnavailable("the connection was lost")

    world.launcher.before = give_up
    await world.queue(spawn_timeout_ms=300)
    assert (await world.post([WAIT])).status_code == 500
    await ProcessLauncher.start(world.launcher, order[0])  # what was lost arrives now
    assert len(world.machines()) > 0

    await nothing_is_left(world)


async def test_a_launcher_that_is_away_is_asked_again(world: World) -> None:
    tries: list[int] = []

    async def away() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise LauncherUnavailable("503 try later")

    world.launcher.before = away
    asking = asyncio.create_task(world.http.post("/export/probe", json={"pi": PI, "options": {"steps": DONE}}))
    while not asking.done():
        await world.send_out()
        await world.clock.advance(0.5)
    name = (await asking).json()["task_id"]
    await world.exited(name)

    assert (await world.status(name))["status"] == "success"
    assert len(tries) == 3


async def test_a_callback_before_the_launch_call_returns_counts(world: World) -> None:
    """The machine is quicker than its launcher's answer."""

    async def until_it_called() -> None:
        name = world.launcher.orders[-1].env["TASK_ID"]
        await world.exited(name)
        assert (await world.task(name)).state is State.SUCCEEDED

    world.launcher.after = until_it_called
    name = await world.export(*DONE)

    told = await world.status(name)
    assert told["status"] == "success"
    assert told["machineId"] == machine_name(task_id_of(name), 1)
    await nothing_is_left(world, objects=1)


async def test_an_export_whose_queue_is_paused_is_taken_and_waits(world: World, pace: float) -> None:
    await world.engine.pause_queue("probe")
    await world.queue(spawn_timeout_ms=int(200 * pace))
    await world.engine.pause_queue("probe")
    answer = await world.post(DONE)
    name = answer.json()["task_id"]

    assert (answer.status_code, (await world.task(name)).state) == (200, State.QUEUED)
    await world.engine.pause_queue("probe", paused=False)
    await world.send_out()
    await world.exited(name)
    assert (await world.status(name))["status"] == "success"


async def test_a_launcher_that_this_server_does_not_have_is_left_to_others(world: World) -> None:
    world.engine.service(Machines).launchers = {}
    asking = asyncio.create_task(world.http.post("/export/probe", json={"pi": PI, "options": {"steps": DONE}}))
    for _ in range(3):
        await world.send_out()
        await world.clock.advance(1.5)
    world.engine.service(Machines).launchers = {"process": world.launcher}
    while not asking.done():
        await world.send_out()
        await asyncio.sleep(0.01)

    assert (await asking).status_code == 200


# --------------------------------------------------------------------------------------------- who belongs to whom


async def test_a_machine_that_belongs_to_no_task_is_removed(world: World) -> None:
    installation = await world.engine.service(Machines).installation()
    order = Order(name=machine_name(uuid4(), 1), env={}, installation=installation, command=("/bin/sleep", "600"))
    await world.launcher.start(order)
    kept = await world.export(WAIT)
    await world.sweep()

    left = {
        read_machine_name(path) for path in {part.split("/")[2] for part in world.machines() if part.count("/") > 1}
    }
    assert left == {(task_id_of(kept), 1)}


async def test_machines_of_another_installation_are_left_alone(world: World) -> None:
    order = Order(name=machine_name(uuid4(), 1), env={}, installation="other", command=("/bin/sleep", "600"))
    await world.launcher.start(order)
    await world.sweep()

    assert len(await world.launcher.machines("other")) == 1
    await world.launcher.stop(order.name, None, 0.0)


async def test_a_task_that_was_ended_by_force_loses_its_machine(world: World) -> None:
    began = world.file("began")
    name = await world.export(f"touch {began}", WAIT)
    pid = int(await world.appears(began))
    await world.engine.cancel(task_id_of(name), "now", force=True)
    await world.sweep()

    await gone(pid)
    await nothing_is_left(world)


async def test_a_machine_that_has_reported_is_left_to_tidy_up_for_a_while(world: World) -> None:
    gate, began = world.file("gate"), world.file("began")
    name = await world.export("upload", "success", f"touch {began}", f"wait {gate}", "exit 0")
    pid = int(await world.appears(began))
    await world.sweep()
    assert alive(pid)
    await world.clock.advance(11)
    await world.sweep()

    await gone(pid)
    assert (await world.status(name))["status"] == "success"
    await nothing_is_left(world, objects=1)


async def test_a_machine_that_does_not_want_to_end_holds_up_no_sweep(world: World) -> None:
    await world.queue(cancel_grace_period_ms=600_000)
    began = world.file("began")
    deaf = await world.export("deaf", f"touch {began}", WAIT)
    pid = int(await world.appears(began))
    await world.engine.cancel(task_id_of(deaf), "not wanted")
    await world.engine.service(Machines).tick(0.1)  # asked, and not waited for
    other = await world.export("upload", "exit 0")
    await world.exited(other)
    await world.engine.service(Machines).tick(SOON_S)

    assert (await world.status(other))["status"] == "success"
    assert (await world.status(deaf))["status"] == "processing"
    assert alive(pid)
    await world.engine.service(Machines).stop_handling()


async def test_before_another_attempt_the_old_machine_is_stopped(world: World) -> None:
    await world.queue(retry=RetryForm(max_attempts=2, max_losses=2, initial_ms=1))
    began = world.file("began")
    name = await world.export(f"touch {began}", WAIT)
    pid = int(await world.appears(began))
    async with world.engine.store.begin() as tx:  # its lease is lost while the machine goes on
        await tx.session.connection.execute("update windlass.heartbeat set expires_at = windlass.now()")
    await world.engine.parts.outgoing.silence_tick()
    assert (await world.task(name)).state is State.QUEUED
    await world.clock.advance(1)
    await world.send_out()

    assert (await world.task(name)).attempt == 2
    await gone(pid)


async def test_temporary_files_and_children_go_with_the_machine(world: World) -> None:
    child = world.file("child")
    name = await world.finished("temp", f"child {child}", *DONE)

    await gone(int(child.read_text()))
    assert (await world.status(name))["status"] == "success"
    await nothing_is_left(world, objects=1)


# --------------------------------------------------------------------------------------------- whoever dies, and when


@asynccontextmanager
async def next_server(database: str, clock: VirtualClock, world: World) -> AsyncIterator[World]:
    """Another server on the same database and folder, after the first one is gone."""
    world.launcher.close()
    async with open_world(database, clock, world.folder) as heir:
        heir.launcher.orders = world.launcher.orders
        yield heir


async def test_a_server_that_dies_after_it_took_the_request_leaves_it_to_the_next(
    world: World, database: str, clock: VirtualClock
) -> None:
    """Step 2, before the machine is spawned."""
    asking = asyncio.create_task(world.http.post("/export/probe", json={"pi": PI, "options": {"steps": DONE}}))

    async def taken() -> bool:
        return bool((await world.http.get("/api/v1/tasks", params={"queue": "probe"})).json()["items"])

    await eventually(taken)
    asking.cancel()
    async with next_server(database, clock, world) as heir:
        [task] = (await heir.http.get("/api/v1/tasks", params={"queue": "probe"})).json()["items"]
        await heir.send_out()
        await heir.exited(task["id"])
        assert (await heir.status(task["id"]))["status"] == "success"
        await nothing_is_left(heir, objects=1)


async def test_a_server_that_dies_between_the_launch_and_writing_it_down_launches_nothing_twice(
    world: World, database: str, clock: VirtualClock
) -> None:
    """Step 2, after the machine is spawned."""
    gate, began = world.file("gate"), world.file("began")

    async def die() -> None:
        raise asyncio.CancelledError

    world.launcher.after = die
    asking = asyncio.create_task(
        world.http.post(
            "/export/probe", json={"pi": PI, "options": {"steps": [f"touch {began}", f"wait {gate}", *DONE]}}
        )
    )
    while not began.exists():
        await world.engine.parts.outgoing.dispatch_tick()
        await asyncio.gather(world.engine.loops.effects_tick(), return_exceptions=True)
        await asyncio.sleep(0.01)
    asking.cancel()
    pid = int(await world.appears(began))
    began.unlink()
    async with next_server(database, clock, world) as heir:
        await heir.sweep()
        await clock.advance(61)  # what the dead server had in its hands is free again
        await heir.send_out()
        name = world.launcher.orders[0].env["TASK_ID"]
        assert (await heir.status(name))["machineId"] == machine_name(task_id_of(name), 1)
        assert alive(pid)
        assert not began.exists()
        heir.release(gate)
        await heir.exited(name)
        await heir.sweep()
        assert (await heir.status(name))["status"] == "success"
        await nothing_is_left(heir, objects=1)


async def test_a_machine_that_finishes_while_no_server_is_there_has_succeeded(
    database: str, clock: VirtualClock, tmp_path: Path
) -> None:
    """Step 4: uploaded, and nobody heard the callback."""
    gate, left = tmp_path / "gate", tmp_path / "left"
    async with open_world(database, clock, tmp_path) as world:
        name = await world.export("upload", f"touch {left}", f"wait {gate}", "success", "exit 0")
        await world.appears(left)
        machines = (world.folder / "machines").rename(tmp_path / "kept")  # so that nobody tidies it up
    (tmp_path / "kept").rename(tmp_path / "machines")
    assert machines
    gate.write_text("now")
    async with open_world(database, clock, tmp_path) as heir:
        await heir.exited(name)
        await heir.sweep()
        assert (await heir.status(name))["status"] == "success"
        assert (await heir.http.get(f"/download/{name}")).status_code == 200
        await nothing_is_left(heir)


@pytest.mark.parametrize(
    ("before", "status"),
    [([], "error"), (["temp"], "error"), (["upload"], "error"), (["upload", "success"], "success")],
    ids=["before it exports", "while it exports", "before it calls back", "after it called back"],
)
async def test_a_machine_that_is_killed_at_each_step_ends_as_documented(
    world: World, before: list[str], status: str
) -> None:
    """Step 4, from its first line to its last."""
    reached = world.file("reached")
    name = await world.export(*before, f"touch {reached}", WAIT)
    os.kill(int(await world.appears(reached)), 9)
    await world.exited(name)
    await world.sweep()

    assert (await world.status(name))["status"] == status
    await nothing_is_left(world, objects=int(status == "success"))


class Away:
    """A store that does not answer."""

    url = "away://"

    def __getattr__(self, name: str) -> Any:
        async def away(*_: object, **__: object) -> None:
            raise Unavailable("the store is away")

        async def nothing(*_: object, **__: object) -> AsyncIterator[None]:
            raise Unavailable("the store is away")
            yield

        return nothing if name == "list" else away


async def test_a_store_that_is_away_for_the_upload_fails_the_export(world: World) -> None:
    opened, world.engine.service(Machines).blobs = world.engine.service(Machines).blobs, _away
    name = await world.export(*DONE)
    await world.exited(name)
    await world.sweep()
    world.engine.service(Machines).blobs = opened

    assert (await world.status(name))["status"] == "error"
    assert "the upload was answered 503" in (await world.status(name))["error"]
    await nothing_is_left(world)


async def test_a_store_that_is_away_for_the_callback_is_asked_again(world: World) -> None:
    gate, left = world.file("gate"), world.file("left")
    name = await world.export("upload", f"touch {left}", f"wait {gate}", "success", "exit 0")
    await world.appears(left)
    opened, world.engine.service(Machines).blobs = world.engine.service(Machines).blobs, _away
    world.release(gate)
    await world.exited(name)
    await world.sweep()
    assert (await world.status(name))["status"] == "processing"
    world.engine.service(Machines).blobs = opened
    await world.sweep()

    assert (await world.status(name))["status"] == "success"
    await nothing_is_left(world, objects=1)


async def test_a_store_that_stays_away_ends_the_export_when_its_time_is_over(world: World) -> None:
    name = await world.export("upload", "exit 0")
    await world.exited(name)
    opened, world.engine.service(Machines).blobs = world.engine.service(Machines).blobs, _away
    await world.clock.advance(601)
    await world.sweep()

    assert "could not be checked for the object: the store is away" in (await world.status(name))["error"]
    world.engine.service(Machines).blobs = opened
    await nothing_is_left(world)


async def test_a_store_that_is_away_for_the_download_is_503_and_keeps_the_object(world: World) -> None:
    name = await world.finished(*DONE)
    opened, world.engine.service(Machines).blobs = world.engine.service(Machines).blobs, _away
    answer = await world.http.get(f"/download/{name}")
    assert (answer.status_code, answer.json()) == (503, {"error": "the store is away"})
    world.engine.service(Machines).blobs = opened

    assert (await world.http.get(f"/download/{name}")).status_code == 200


async def test_a_store_that_is_away_for_the_deletion_is_asked_again(world: World) -> None:
    name = await world.finished(*DONE)
    await world.http.get(f"/download/{name}")
    await world.unread()
    opened, world.engine.service(Machines).blobs = world.engine.service(Machines).blobs, _away
    with pytest.raises(Unavailable):  # and the loop comes back soon
        await world.engine.service(Machines).object_tick()
    world.engine.service(Machines).blobs = opened
    assert len(await world.objects()) == 1
    await nothing_is_left(world)


async def _away() -> Any:
    return Away()
