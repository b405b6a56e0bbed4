"""What a machine made: downloaded as a stream, and gone when nobody needs it any more."""

from __future__ import annotations

import resource
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.contracts.machine.world import DONE, PI, SIZE, World, success_report, task_id_of

from windlass.contracts.machine.server import service
from windlass.contracts.machine.sweeper import Machines

pytestmark = pytest.mark.slow


async def test_what_is_not_ready_is_400_and_says_so(world: World) -> None:
    gate = world.file("gate")
    name = await world.export(f"wait {gate}", "error no", "exit 1")
    answer = await world.http.get(f"/download/{name}")
    assert (answer.status_code, answer.text) == (400, "Export not ready or failed. Status: processing")
    world.release(gate)
    await world.exited(name)

    answer = await world.http.get(f"/download/{name}")
    assert (answer.status_code, answer.text) == (400, "Export not ready or failed. Status: error")
    assert (await world.http.get("/download/export_probe_1_00000000")).status_code == 404


async def test_an_object_goes_when_it_was_downloaded(world: World) -> None:
    name = await world.finished(*DONE)
    await world.engine.service(Machines).object_tick()
    assert await world.objects() == [f"exports/{name}/{PI}.xml"]
    assert (await world.http.head(f"/download/{name}")).headers["content-length"] == str(SIZE)
    await world.engine.service(Machines).object_tick()
    assert len(await world.objects()) == 1  # whoever only looks has not got it

    assert len((await world.http.get(f"/download/{name}")).content) == SIZE
    await world.unread()
    await world.engine.service(Machines).object_tick()
    assert await world.objects() == []
    again = await world.http.get(f"/download/{name}")
    assert (again.status_code, again.text) == (404, "File not found in R2")
    assert (await world.status(name))["status"] == "success"


async def test_an_object_that_nobody_fetches_goes_after_a_day(world: World) -> None:
    await world.finished(*DONE)
    await world.clock.advance(86_390)
    await world.engine.service(Machines).object_tick()
    assert len(await world.objects()) == 1
    await world.clock.advance(20)
    await world.engine.service(Machines).object_tick()

    assert await world.objects() == []


async def test_what_a_failed_export_left_goes_at_once(world: World) -> None:
    name = await world.finished("upload", "error too late", "exit 1")
    assert len(await world.objects()) == 1
    await world.engine.service(Machines).object_tick()

    assert await world.objects() == []
    assert (await world.status(name))["status"] == "error"


async def test_state_is_kept_for_a_day_after_the_end_and_as_long_as_it_runs(world: World) -> None:
    await world.queue(run_timeout_ms=400_000_000)
    gate = world.file("gate")
    running = await world.export(f"wait {gate}", *DONE)
    await world.clock.advance(200_000)
    assert (await world.status(running))["status"] == "processing"
    world.release(gate)
    await world.exited(running)
    assert (await world.status(running))["status"] == "success"
    await world.clock.advance(86_390)
    assert (await world.status(running))["status"] == "success"
    await world.clock.advance(20)

    for path in (f"/status/{running}", f"/download/{running}"):
        assert (await world.http.get(path)).status_code == 404
    assert (await world.http.get(f"/api/v1/tasks/{task_id_of(running)}")).status_code == 200


async def large(world: World) -> str:
    """An export whose object has 40 MB."""
    name = await world.finished(*DONE)
    key = f"exports/{name}/{PI}.xml"

    async def pieces() -> AsyncIterator[bytes]:
        for number in range(40):
            yield bytes([number]) * 1_000_000

    await (await world.blobs()).put(key, pieces())
    return name


async def test_a_download_that_breaks_off_leaves_the_object(world: World) -> None:
    name = await large(world)
    async with world.http.stream("GET", f"/download/{name}") as answer:
        async for _ in answer.aiter_bytes():
            break
    await world.unread()
    await world.engine.service(Machines).object_tick()
    assert len(await world.objects()) == 1

    assert len((await world.http.get(f"/download/{name}")).content) == 40_000_000
    await world.unread()
    await world.engine.service(Machines).object_tick()
    assert await world.objects() == []


async def test_who_still_reads_is_waited_for(world: World) -> None:
    name = await large(world)
    async with world.http.stream("GET", f"/download/{name}") as slow:
        pieces = slow.aiter_bytes()
        got = len(await anext(pieces))
        assert len((await world.http.get(f"/download/{name}")).content) == 40_000_000
        await world.engine.service(Machines).object_tick()
        assert len(await world.objects()) == 1
        async for piece in pieces:
            got += len(piece)
    assert got == 40_000_000
    await world.unread()
    await world.engine.service(Machines).object_tick()
    assert await world.objects() == []


async def test_who_does_not_read_on_is_cut_off_and_the_object_goes_in_its_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = await large(world)
    monkeypatch.setattr(service, "PIECE_S", 0.2)
    async with world.http.stream("GET", f"/download/{name}") as slow:
        await anext(slow.aiter_bytes())
        await world.clock.advance(86_500)
        await world.unread()
        await world.engine.service(Machines).object_tick()

    assert await world.objects() == []


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


async def test_neither_upload_nor_download_holds_the_object(world: World) -> None:
    """A file of 120 MB goes through the server both ways, and the server grows by less than half of that."""
    name = await world.export("wait /never")
    url = next(order.env["UPLOAD_URL"] for order in world.launcher.orders if order.env["TASK_ID"] == name)
    head, _, query = url.partition("?")
    most, piece = [resident_mb()], b"x" * 1_000_000

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(120):
            most.append(resident_mb())
            yield piece

    assert (await world.http.put(f"{head}{PI}.xml?{query}", content=pieces())).json() == {"size": 120_000_000}
    assert (await world.call_back(name, **success_report(name, size=120_000_000))).status_code == 200
    got = 0
    async with world.http.stream("GET", f"/download/{name}") as answer:
        async for part in answer.aiter_bytes():
            got += len(part)
            most.append(resident_mb())

    assert got == 120_000_000
    assert max(most) - most[0] < 50, most[0]
