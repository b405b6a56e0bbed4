"""What a machine says when it is done, and what is said by whoever is not that machine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from tests.contracts.machine.world import DONE, PI, SIZE, World, eventually, json_of, success_report, task_id_of
from tests.kit.processes import files_in

from windlass import State
from windlass.contracts.machine.sweeper import Machines
from windlass.contracts.machine.table import MachineTable
from windlass.contracts.machine.wire.signature import sign
from windlass.core.delivery import RetryForm

pytestmark = pytest.mark.slow

WAIT = "wait /never"


async def waiting(world: World) -> str:
    """An export whose machine has left its object and says nothing."""
    left = world.file("left")
    name = await world.export("upload", f"touch {left}", WAIT)
    await world.appears(left)
    left.unlink()
    return name


async def test_a_success_is_received_and_shown(world: World) -> None:
    name = await waiting(world)
    answer = await world.call_back(name, **success_report(name, metrics={"entities_exported": 72}))

    assert (answer.status_code, answer.json()) == (200, {"received": True})
    told = await world.status(name)
    assert (told["status"], told["output_file_size"], told["metrics"]) == ("success", SIZE, {"entities_exported": 72})


async def test_an_error_is_final(world: World) -> None:
    await world.queue(retry=RetryForm(max_attempts=3, max_losses=3))
    name = await waiting(world)
    text = f"Failed to fetch manifest for PI {PI}: 404 Not Found"

    assert (await world.call_back(name, status="error", error=text)).json() == {"received": True}
    assert (await world.status(name))["error"] == text
    assert (await world.task(name)).state is State.FAILED


async def test_an_error_that_does_not_say_why_is_one_all_the_same(world: World) -> None:
    name = await waiting(world)
    await world.call_back(name, status="error")

    assert (await world.status(name))["error"] == "the machine gave no reason"


async def test_the_signature_may_come_as_a_header(world: World) -> None:
    name = await waiting(world)
    path, _, signature = (await world.signed(name)).partition("?sig=")
    body = {"task_id": name, **success_report(name)}

    assert (await world.http.post(path, json=body)).status_code == 401
    answer = await world.http.post(path, json=body, headers={"X-Callback-Signature": signature})
    assert answer.json() == {"received": True}


async def test_a_queue_may_do_without_signatures_but_not_with_wrong_ones(world: World) -> None:
    await world.queue(callback_auth="optional")
    name = await waiting(world)

    assert (await world.call_back(name, f"/callback/{name}?sig=wrong", **success_report(name))).status_code == 401
    assert (await world.call_back(name, f"/callback/{name}", **success_report(name))).status_code == 200


async def test_the_same_again_is_received_and_a_different_one_is_409(world: World) -> None:
    name = await waiting(world)
    first = await world.call_back(name, **success_report(name))
    again = await world.call_back(name, **success_report(name))
    before = await world.status(name)
    error = await world.call_back(name, status="error", error="no")
    other = await world.call_back(name, **success_report(name, metrics={"x": 1}))

    assert [answer.status_code for answer in (first, again, error, other)] == [200, 200, 409, 409]
    assert error.json()["error"] == "attempt 1 has already ended as succeeded"
    assert await world.status(name) == before
    assert "refused" in await world.details(name)


async def test_an_error_and_then_a_success_stays_an_error(world: World) -> None:
    name = await waiting(world)
    await world.call_back(name, status="error", error="no")

    assert (await world.call_back(name, **success_report(name))).status_code == 409
    assert (await world.call_back(name, status="error", error="no")).status_code == 200
    assert (await world.status(name))["error"] == "no"


async def test_of_two_callbacks_at_once_one_counts(world: World) -> None:
    name = await waiting(world)
    good, bad = await asyncio.gather(
        world.call_back(name, **success_report(name)), world.call_back(name, status="error", error="no")
    )

    assert {good.status_code, bad.status_code} == {200, 409}
    assert (await world.status(name))["status"] == ("success" if good.status_code == 200 else "error")


async def test_a_callback_and_a_sweep_at_once_agree(world: World) -> None:
    name = await world.export("upload", "exit 0")
    await world.exited(name)
    answer, _ = await asyncio.gather(world.call_back(name, **success_report(name)), world.sweep())

    assert answer.status_code == 200
    assert (await world.status(name))["status"] == "success"


async def test_a_callback_and_a_cancel_at_once_agree(world: World) -> None:
    """Whichever comes first, what the machine was told and what is shown are the same."""
    name = await waiting(world)
    answer, _ = await asyncio.gather(
        world.call_back(name, **success_report(name)),
        world.engine.cancel(task_id_of(name), "not wanted", force=True),
        return_exceptions=True,
    )
    await world.sweep()

    assert isinstance(answer, httpx.Response)
    ended = (await world.task(name)).state
    assert (answer.status_code, ended) in [(200, State.SUCCEEDED), (409, State.CANCELLED)]


def deep(name: str, good: dict[str, Any], levels: int = 800) -> bytes:
    """What a decoder takes, and what walks through it afterwards does not."""
    head = json.dumps({**good, "task_id": name}).removesuffix("}")
    return f'{head}, "metrics": {{"a": {"[" * levels}{"]" * levels}}}}}'.encode()


async def bad_callbacks(world: World, name: str, other: str) -> dict[str, httpx.Response]:
    url, http = await world.signed(name), world.http
    path, good = f"/callback/{name}", {"task_id": name, **success_report(name)}
    elsewhere = (await world.signed(other)).partition("?sig=")[2]
    unsigned = {"Content-Type": "application/json"}
    return {
        "no signature": await http.post(path, json=good),
        "wrong signature": await http.post(f"{path}?sig={'0' * 64}", json=good),
        "signature of another task": await http.post(f"{path}?sig={elsewhere}", json=good),
        "signature that is no text": await http.post(f"{path}?sig=%ff%00", json=good),
        "other task in the body": await http.post(url, json=good | {"task_id": other}),
        "unknown task": await http.post("/callback/export_probe_1_00000000?sig=x", json=good),
        "unknown task, unsigned": await http.post("/callback/export_probe_1_00000000", json=good),
        "no task at all": await http.post("/callback/nonsense", json=good),
        "not JSON": await http.post(url, content=b"status=success", headers=unsigned),
        "empty": await http.post(url, content=b""),
        "a list": await http.post(url, json=[good]),
        "too deep": await http.post(url, content=b'{"metrics":' + b'{"a":' * 5000),
        "10 MB": await http.post(url, content=b" " * 10_000_000),
        "no status": await http.post(url, json={"task_id": name}),
        "unknown status": await http.post(url, json=good | {"status": "SUCCESS"}),
        "no key": await http.post(url, json={k: v for k, v in good.items() if k != "output_r2_key"}),
        "object of another task": await http.post(url, json=good | {"output_r2_key": f"exports/{other}/{PI}.xml"}),
        "object that is elsewhere": await http.post(url, json=good | {"output_r2_key": "../../etc/passwd"}),
        "way out": await http.post(url, json=good | {"output_r2_key": f"exports/{name}/../{other}/{PI}.xml"}),
        "another name": await http.post(url, json=good | {"output_file_name": "other.xml"}),
        "size that is none": await http.post(url, json=good | {"output_file_size": -1}),
        "size as text": await http.post(url, json=good | {"output_file_size": "12"}),
        "deep metrics": await http.post(url, content=deep(name, good)),
        "huge metrics": await http.post(url, json=good | {"metrics": {"x": "y" * 100_000}}),
        "GET": await http.get(url),
    }


EXPECTED = {
    "no signature": (401, "signature is required"),
    "wrong signature": (401, "not of this task"),
    "signature of another task": (401, "not of this task"),
    "signature that is no text": (401, "not of this task"),
    "other task in the body": (400, "task_id"),
    "unknown task": (404, "Task not found"),
    "unknown task, unsigned": (404, "Task not found"),
    "no task at all": (404, "Task not found"),
    "not JSON": (400, "not JSON"),
    "empty": (400, "not JSON"),
    "a list": (400, "Expected `object`"),
    "too deep": (400, ""),
    "10 MB": (413, "at most"),
    "no status": (400, "status"),
    "unknown status": (400, "status"),
    "no key": (400, "output_r2_key"),
    "object of another task": (400, "output_r2_key: must begin with"),
    "object that is elsewhere": (400, "output_r2_key"),
    "way out": (400, "output_r2_key"),
    "another name": (400, "output_file_name"),
    "size that is none": (400, "output_file_size"),
    "size as text": (400, "output_file_size"),
    "deep metrics": (400, "metrics: is nested more than 50 levels deep"),
    "huge metrics": (400, "metrics"),
    "GET": (405, "POST"),
}


async def test_bad_callbacks_change_nothing_and_say_why(world: World) -> None:
    name, other = await waiting(world), await waiting(world)
    before = await world.rows()
    answers = await bad_callbacks(world, name, other)

    assert answers.keys() == EXPECTED.keys()
    wrong = {
        what: (answer.status_code, answer.text)
        for what, answer in answers.items()
        if answer.status_code != EXPECTED[what][0] or EXPECTED[what][1] not in answer.json()["error"]
    }
    assert wrong == {}
    assert await world.rows() == before
    assert (await world.call_back(name, **success_report(name))).status_code == 200


async def test_unknown_fields_are_ignored(world: World) -> None:
    name = await waiting(world)

    assert (await world.call_back(name, **success_report(name, colour="blue"))).status_code == 200


async def test_hostile_text_is_kept_as_it_can_be(world: World) -> None:
    name = await waiting(world)
    odd = {"a\x00": ["b\x00", {"c": "\x00"}]}
    said = json.dumps({"task_id": name, "status": "error", "error": "nul \x00 and <script>", "metrics": odd})
    assert (await world.http.post(await world.signed(name), content=said)).status_code == 200
    good = await waiting(world)
    told = success_report(good, metrics=odd, batch_id="\x00")
    assert (await world.call_back(good, **told)).status_code == 200

    assert "<script>" in (await world.status(name))["error"]
    assert (await world.status(good))["metrics"] == odd
    assert (await world.http.get(f"/api/v1/tasks/{task_id_of(good)}")).status_code == 200


async def test_what_is_wrong_is_said_in_the_order_of_the_contract(world: World) -> None:
    name = await waiting(world)
    huge = b" " * 3_000_000

    assert (await world.http.post("/callback/export_probe_1_00000000?sig=no", content=huge)).status_code == 404
    assert (await world.http.post(f"/callback/{name}?sig=no", content=huge)).status_code == 401
    assert (await world.http.post(await world.signed(name), content=huge)).status_code == 413


async def test_an_object_that_is_not_there_or_has_another_size_fails_the_export(world: World) -> None:
    name = await world.export(WAIT)
    missing = await world.call_back(name, **success_report(name))
    lied = await waiting(world)
    await world.call_back(lied, **success_report(lied, size=7))

    assert missing.json() == {"received": True}
    assert (await world.status(name))["error"] == (
        f"the callback reported success, but there is no object exports/{name}/{PI}.xml"
    )
    assert (await world.status(lied))["error"].endswith(f"has {SIZE}")
    assert (await world.task(lied)).error.reason == "OBJECT_MISMATCH"  # type: ignore[union-attr]


async def test_a_superseded_machine_is_refused_and_changes_nothing(world: World) -> None:
    await world.queue(retry=RetryForm(max_attempts=2, max_losses=2, initial_ms=1))
    began = world.file("began")
    name = await world.export("upload", f"touch {began}", WAIT)
    await world.appears(began)
    old = await world.signed(name)
    await world.launcher.stop((await world.looked(name)).name, None, 0.0)  # type: ignore[union-attr]
    await world.sweep()
    await world.clock.advance(1)
    await world.send_out()
    before = await world.task(name)
    assert before.attempt == 2
    answer = await world.call_back(name, old, **success_report(name))

    assert answer.status_code == 409
    assert "attempt 1 is not the current one" in answer.json()["error"]
    assert await world.task(name) == before
    assert (await world.signed(name)) != old


async def test_a_signature_is_of_one_task_and_one_attempt(world: World) -> None:
    name = await waiting(world)
    key = (await world.engine.parts.token_keys.all())[0][1]

    assert (await world.signed(name)).endswith(f"?sig={sign(key, name, 1)}")
    forged = f"/callback/{name}?sig={sign(b'another key', name, 1)}"
    assert (await world.call_back(name, forged, **success_report(name))).status_code == 401
    ahead = f"/callback/{name}?sig={sign(key, name, 2)}"
    assert (await world.call_back(name, ahead, **success_report(name))).status_code == 401


async def test_a_key_that_was_rotated_still_opens_for_machines_that_run(world: World) -> None:
    name = await waiting(world)
    await world.engine.parts.token_keys.rotate()
    await world.clock.advance(60)

    assert (await world.call_back(name, **success_report(name))).status_code == 200


# --------------------------------------------------------------------------------------------- uploads


async def test_uploads_are_for_the_machine_of_the_task_only(world: World) -> None:
    name, other = await world.export(WAIT), await world.export(WAIT)
    url = next(o.env["UPLOAD_URL"] for o in world.launcher.orders if o.env["TASK_ID"] == name)
    head, _, query = url.partition("?")
    before = await world.objects()

    async def put(path: str, content: bytes = b"x") -> int:
        return (await world.http.put(path, content=content)).status_code

    assert await put(f"{head}a.xml") == 401
    assert await put(f"{head}a.xml?sig=no") == 401
    assert await put(f"/upload/{other}/a.xml?{query}") == 401
    assert await put(f"{head}..?{query}") in (400, 404)
    assert await put(f"{head}..%2f..%2fetc?{query}") in (400, 404)
    assert await put(f"{head}?{query}") == 404
    assert await world.objects() == before
    assert await put(f"{head}a.xml?{query}", b"x" * 3_000_000) == 200
    assert await (await world.blobs()).size(f"exports/{name}/a.xml") == 3_000_000


async def upload_url(world: World, name: str) -> str:
    head, _, query = next(o.env["UPLOAD_URL"] for o in world.launcher.orders if o.env["TASK_ID"] == name).partition("?")
    return f"{head}{PI}.xml?{query}"


class Body:
    """Comes piece by piece, and ends when it may."""

    def __init__(self, content: bytes = b"x" * 100_000) -> None:
        self.content, self.begun, self.go = content, asyncio.Event(), asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self.content
        self.begun.set()
        await self.go.wait()


async def arrived(world: World) -> None:
    """Until something of an upload is being written."""

    async def there() -> bool:
        return any("#" in file.name for file in files_in(world.folder / "blobs"))

    await eventually(there)


async def test_what_arrives_after_the_attempt_was_over_is_refused_and_does_not_stay(world: World) -> None:
    """Its objects had been cleared away when it was still on its way."""
    name, body = await world.export(WAIT), Body()
    sending = asyncio.create_task(world.http.put(await upload_url(world, name), content=body))
    await arrived(world)
    await world.engine.cancel(task_id_of(name), "now", force=True)
    await world.sweep()
    async with world.engine.store.begin() as tx:  # as another server does, which does not know of the upload
        await MachineTable(tx.session).forget_objects([task_id_of(name)])
    body.go.set()

    answer = await sending
    assert (answer.status_code, answer.json()["error"]) == (409, "attempt 1 has ended")
    await world.unread()
    await world.engine.service(Machines).object_tick()
    assert await world.objects() == []


async def test_objects_stay_while_one_of_them_is_written(world: World) -> None:
    name, body = await world.export(WAIT), Body()
    sending = asyncio.create_task(world.http.put(await upload_url(world, name), content=body))
    await arrived(world)
    await world.engine.cancel(task_id_of(name), "now", force=True)
    await world.sweep()
    await world.engine.service(Machines).object_tick()
    body.go.set()
    assert (await sending).status_code == 409
    await world.unread()
    await world.engine.service(Machines).object_tick()

    assert await world.objects() == []
    assert files_in(world.folder / "blobs" / "exports") == []


async def test_of_two_uploads_of_one_object_the_later_one_counts(world: World) -> None:
    """The first one's connection is broken, and nobody has told the server."""
    name, stuck = await world.export(WAIT), Body()
    url = await upload_url(world, name)
    first = asyncio.create_task(world.http.put(url, content=stuck))
    await arrived(world)
    second = await world.http.put(url, content=b"second")
    stuck.go.set()

    assert (second.status_code, second.json()) == (200, {"size": 6})
    assert (await first).status_code == 409
    assert await (await (await world.blobs()).get(f"exports/{name}/{PI}.xml")).read() == b"second"


async def test_an_upload_that_takes_too_long_is_given_up(world: World) -> None:
    await world.queue(upload_timeout_ms=300)
    name = await world.export(WAIT)
    where = urlsplit(await upload_url(world, name))
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    head = f"PUT {where.path}?{where.query} HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n"
    writer.write(head.encode() + b"and no more")
    answer = await reader.readuntil(b"}")
    writer.close()
    await writer.wait_closed()

    assert answer.startswith(b"HTTP/1.1 503 ")
    assert answer.endswith(b'{"error":"the upload took longer than 0.3 s"}')
    assert await world.objects() == []


async def test_a_machine_whose_attempt_is_over_uploads_nothing(world: World) -> None:
    name = await waiting(world)
    url = next(o.env["UPLOAD_URL"] for o in world.launcher.orders if o.env["TASK_ID"] == name)
    head, _, query = url.partition("?")
    await world.call_back(name, **success_report(name))

    assert (await world.http.put(f"{head}{PI}.xml?{query}", content=b"other")).status_code == 409
    assert await (await world.blobs()).size(f"exports/{name}/{PI}.xml") == SIZE


async def test_a_long_payload_is_fetched(world: World) -> None:
    told = world.file("told")
    long = ["say " + "x" * 40_000, f"environment {told}", WAIT]
    answer = await world.http.post("/export/probe", json={"pi": PI, "options": {"steps": long}})
    assert answer.status_code == 400  # more than options may have
    payload: dict[str, Any] = {"pi": PI, "options": {"steps": [f"environment {told}", WAIT]}, "rest": "x" * 300_000}
    made = await world.http.post("/api/v1/tasks", json={"kind": "probe", "queue": "probe", "payload": payload})
    await world.send_out()
    env = json_of((await world.appears(told)).encode())

    assert env["TASK_ID"] == made.json()["id"]
    assert "PAYLOAD" not in env
    assert (await world.http.get(env["PAYLOAD_URL"])).json() == payload
    assert (await world.http.get(env["PAYLOAD_URL"].partition("?")[0])).status_code == 401


async def test_any_kind_runs_on_a_machine(world: World, tmp_path: Path) -> None:
    """A task that knows nothing of exports: its payload is told as it is, its kind as the format."""
    told = tmp_path / "told"
    await world.queue("other", command=["/bin/sh", "-c", f'echo "$PAYLOAD|$EXPORT_FORMAT|$TASK_KIND" > {told}'])
    made = await world.http.post("/api/v1/tasks", json={"kind": "count", "queue": "other", "payload": [1, 2]})
    await world.send_out()

    assert (await world.appears(told)).strip() == "[1,2]|count|count"
    assert (await world.status(made.json()["id"]))["status"] in ("processing", "error")


async def test_done_again_by_hand_is_the_same(world: World) -> None:
    name = await world.finished(*DONE)
    assert task_id_of(name) == (await world.task(name)).id
    assert world.machines() == []
