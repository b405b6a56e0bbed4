"""What a client of the machine contract asks for, and what it is answered: through real HTTP and real processes."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import httpx
import pytest
from tests.contracts.machine.world import DONE, FORMAT, PI, SIZE, World, open_world, task_id_of
from tests.kit.processes import gone
from tests.kit.world import ROOT

from windlass import State
from windlass.contracts.machine.delivery import Machine
from windlass.contracts.machine.launchers.port import LauncherUnavailable, LaunchRefused
from windlass.core.access import Role
from windlass.core.delivery import RetryForm
from windlass.testing.clock import VirtualClock

pytestmark = pytest.mark.slow


async def test_an_export_runs_from_the_request_to_the_download(world: World) -> None:
    answer = await world.post(DONE)
    name = answer.json()["task_id"]
    assert answer.json() == {
        "task_id": name, "status": "processing",
        "message": "Export job started. Use task_id to check status or poll /status/:task_id",
    }  # fmt: skip
    await world.exited(name)

    told = await world.status(name)
    assert (told["status"], told["pi"], told["output_file_size"]) == ("success", PI, SIZE)
    got = await world.http.get(f"/download/{name}")
    assert got.status_code == 200
    assert got.content.startswith(b"<mods>")
    assert got.headers["content-type"] == "application/xml"
    assert got.headers["content-disposition"] == f'attachment; filename="{PI}.xml"'
    assert got.headers["content-length"] == str(SIZE)


async def test_a_task_id_is_export_format_time_and_eight_hex_digits(world: World) -> None:
    names = [await world.export("exit 0") for _ in range(2)]

    assert all(re.fullmatch(r"export_probe_\d{13}_[0-9a-f]{8}", name) for name in names)
    assert len(set(names)) == 2


async def test_it_is_an_ordinary_task_that_is_listed_and_has_a_timeline(world: World) -> None:
    name = await world.finished(*DONE)
    task = await world.task(name)

    listed = (await world.http.get("/api/v1/tasks", params={"queue": FORMAT})).json()["items"]
    assert [item["id"] for item in listed] == [str(task.id)]
    assert listed[0]["result"]["object_key"] == f"exports/{name}/{PI}.xml"
    assert {"launched", "reported"} <= (await world.details(name)).keys()
    assert (await world.status(str(task.id)))["status"] == "success"


async def test_status_has_the_names_of_the_document_and_those_of_the_callback(world: World) -> None:
    gate = world.file("gate")
    name = await world.export(f"wait {gate}", *DONE)
    before = await world.status(name)
    world.release(gate)
    await world.exited(name)
    after = await world.status(name)

    for told in (before, after):
        assert told["createdAt"] == told["created_at"]
        assert told["machineId"] == told["machine_id"] == (await world.task(name)).worker
        assert told["options"] == {"steps": [f"wait {gate}", *DONE]}
    assert before["status"] == "processing"
    assert "completedAt" not in before
    assert after["completedAt"] == after["completed_at"] >= after["createdAt"]
    assert after["output_r2_key"] == f"exports/{name}/{PI}.xml"
    assert after["metrics"] == {"total_time_ms": 5, "entities_exported": 1}


BAD: list[tuple[object, str]] = [
    ({}, "Missing required field: pi"),
    ({"pi": ""}, "Missing required field: pi"),
    ({"pi": 7}, "pi: must be"),
    ({"pi": "01K9XVBAQZF9EHDRXGBEADTZY"}, "pi: must be a ULID"),
    ({"pi": "01K9XVBAQZF9EHDRXGBEADTZYI"}, "pi: must be a ULID"),
    ({"pi": PI, "options": []}, "options: must be an object"),
    ({"pi": PI, "options": {"recursive": "yes"}}, "options.recursive"),
    ({"pi": PI, "options": {"maxDepth": -1}}, "options.maxDepth"),
    ({"pi": PI, "options": {"maxDepth": 2.5}}, "options.maxDepth"),
    ({"pi": PI, "options": {"parallelBatchSize": 0}}, "options.parallelBatchSize"),
    ({"pi": PI, "options": {"cheimarrosMode": "most"}}, "options.cheimarrosMode"),
    ({"pi": PI, "options": {"includeOcr": None}}, "options.includeOcr"),
    ({"pi": PI, "batch_id": 3}, "batch_id"),
]


async def test_bad_input_is_400_names_the_field_and_writes_nothing(world: World) -> None:
    await world.queue("mods")
    before = await world.rows()
    for body, says in BAD:
        answer = await world.http.post("/export/mods", json=body)
        assert answer.status_code == 400, body
        assert says in answer.json()["error"], body

    assert await world.rows() == before


async def test_what_is_no_json_object_is_400(world: World) -> None:
    for body in (b"", b"{", b"[]", b"\xff", b'"x"', b"[" * 100_000):
        answer = await world.http.post("/export/probe", content=body)
        assert answer.status_code == 400, body[:10]
        assert answer.json()["error"]


async def test_a_body_over_two_mebibytes_is_413(world: World) -> None:
    assert (await world.http.post("/export/probe", content=b"x" * (2 * 1024 * 1024 + 1))).status_code == 413


async def test_an_unknown_format_is_404_and_says_how_to_register_one(world: World) -> None:
    for format_ in ("nothing", "..", "Mods", "a" * 100):
        answer = await world.http.post(f"/export/{format_}", json={"pi": PI})
        assert answer.status_code == 404, format_
    assert "delivery machine" in (await world.http.post("/export/nothing", json={"pi": PI})).json()["error"]


async def test_mods_needs_no_setup(world: World) -> None:
    answer = await world.post([], "mods", options={"recursive": True})

    settings = (await world.engine.queues.settings("default", ["mods"]))["mods"]
    assert isinstance(settings.delivery, Machine)
    assert settings.delivery.command == ["windlass-export-mods"]
    assert (settings.policy.max_attempts, settings.policy.max_losses) == (1, 0)
    assert answer.status_code in (200, 500)  # whether the exporter is installed is for its own tests


async def test_the_same_idempotency_key_is_the_same_export(world: World) -> None:
    gate = world.file("gate")
    first = await world.export(f"wait {gate}")
    body = {"pi": PI, "options": {"steps": [f"wait {gate}"]}}
    keyed = {"Idempotency-Key": "one"}
    world.http.headers.update(keyed)
    second = await world.export(f"wait {gate}")
    third = await world.http.post("/export/probe", json=body)
    other = await world.http.post("/export/probe", json={**body, "pi": PI[::-1]})

    assert first != second == third.json()["task_id"]
    assert other.status_code == 409


# --------------------------------------------------------------------------------------------- keys


async def test_nobody_without_a_key_gets_anything(world: World) -> None:
    name = await world.finished(*DONE)
    bare = httpx.AsyncClient(base_url=world.http.base_url, timeout=60)
    async with bare:
        for method, path in (("POST", "/export/probe"), ("GET", f"/status/{name}"), ("GET", f"/download/{name}")):
            assert (await bare.request(method, path)).status_code == 401
            wrong = {"Authorization": "Bearer wl_wrong"}
            assert (await bare.request(method, path, headers=wrong)).status_code == 401


async def test_a_viewer_sees_and_a_submitter_of_another_namespace_does_not(world: World) -> None:
    name = await world.finished(*DONE)
    _, viewer = await world.engine.keys.create_key(name="v", role=Role.VIEWER, namespace=None)
    _, stranger = await world.engine.keys.create_key(name="s", role=Role.ADMIN, namespace="elsewhere")

    def by(key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {key}"}

    assert (await world.http.get(f"/status/{name}", headers=by(viewer))).status_code == 200
    assert (await world.http.post("/export/probe", json={"pi": PI}, headers=by(viewer))).status_code == 403
    for path in (f"/status/{name}", f"/download/{name}"):
        assert (await world.http.get(path, headers=by(stranger))).status_code == 404


async def test_opened_on_loopback_clients_need_no_key(database: str, clock: VirtualClock, tmp_path: Path) -> None:
    async with open_world(database, clock, tmp_path, open=True) as world:
        assert "authorization" not in world.http.headers
        name = await world.finished(*DONE)
        assert (await world.status(name))["status"] == "success"


async def test_a_task_that_no_machine_runs_is_not_found_here(world: World) -> None:
    made = await world.http.post("/api/v1/tasks", json={"kind": "other", "queue": "plain"})

    assert (await world.http.get(f"/status/{made.json()['id']}")).status_code == 404
    for name in ("export_probe_1704857234567_a3f8c2d1", "nonsense", "export_probe_99999999999999999_a3f8c2d1", "%00"):
        assert (await world.http.get(f"/status/{name}")).json() == {"error": "Task not found"}


# --------------------------------------------------------------------------------------------- launching


async def test_a_machine_that_cannot_be_started_is_500_and_the_task_has_failed(world: World) -> None:
    await world.queue("broken", command=["/no/such/program"])
    answer = await world.post([], "broken")

    assert answer.status_code == 500
    assert answer.json() == {"error": "machine spawn failed: /no/such/program: No such file or directory"}
    listed = (await world.http.get("/api/v1/tasks", params={"queue": "broken"})).json()["items"]
    assert [(item["state"], item["reason"]) for item in listed] == [("failed", "LAUNCH_FAILED")]
    await world.sweep()
    assert world.machines() == []


async def test_the_environment_is_the_documented_one(database: str, clock: VirtualClock, tmp_path: Path) -> None:
    storage = {
        "R2_ACCOUNT_ID": "acc",
        "R2_ACCESS_KEY_ID": "id",
        "R2_SECRET_ACCESS_KEY": "s3cret-s3cret",
        "R2_BUCKET": "b",
    }
    variables = {"OTHER_SECRET": "hunter2-hunter2", "NOT_NAMED": "x"}
    mods = {"WINDLASS_MODS_API_URL": "http://entities"}
    async with open_world(database, clock, tmp_path, storage=storage, variables=variables, common_env=mods) as world:
        await world.queue(env={"COLOUR": "blue"}, secrets=["OTHER_SECRET"])
        told = world.file("told")
        name = await world.export(f"environment {told}", batch_id="b7")
        env = json.loads(await world.appears(told))

        assert env["TASK_ID"] == name
        assert (env["PI"], env["EXPORT_FORMAT"], env["BATCH_ID"]) == (PI, FORMAT, "b7")
        assert env["EXPORT_OPTIONS"] == f'{{"steps":["environment {told}"]}}'
        assert {name: env[name] for name in storage} == storage
        assert env["CALLBACK_URL"].startswith(f"{str(world.http.base_url).rstrip('/')}/callback/{name}?sig=")
        assert (env["COLOUR"], env["OTHER_SECRET"], env["WINDLASS_MODS_API_URL"]) == (
            "blue", "hunter2-hunter2", "http://entities",
        )  # fmt: skip
        assert "NOT_NAMED" not in env
        assert ROOT not in env.values()
        assert (env["RUN_TIMEOUT_MS"], env["UPLOAD_TIMEOUT_MS"], env["CALLBACK_TIMEOUT_MS"]) == (
            "600000", "120000", "10000",
        )  # fmt: skip


async def test_a_secret_that_the_server_does_not_have_is_said(world: World) -> None:
    await world.queue("wanting", secrets=["NOT_THERE"])

    assert "NOT_THERE" in (await world.post([], "wanting")).json()["error"]


async def test_secrets_are_in_no_answer_no_row_and_no_log(
    database: str, clock: VirtualClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    storage = {"R2_ACCESS_KEY_ID": "key-id-key-id", "R2_SECRET_ACCESS_KEY": "s3cret-s3cret"}
    variables = {"TOKEN": "hunter2-hunter2"}
    async with open_world(database, clock, tmp_path, storage=storage, variables=variables) as world:
        await world.queue(secrets=["TOKEN"], env={"PASSWORD": "open-sesame"})
        name = await world.finished(
            "tell TOKEN", *(f"tell {variable}" for variable in storage), "tell PASSWORD", "tell CALLBACK_URL", "exit 3"
        )
        task_id = task_id_of(name)
        _, viewer = await world.engine.keys.create_key(name="v", role=Role.VIEWER, namespace=None)
        by = {"Authorization": f"Bearer {viewer}"}
        signature = (await world.signed(name)).partition("sig=")[2]
        shown = [
            (await world.http.get(path, headers=by)).text
            for path in (
                f"/status/{name}", f"/api/v1/tasks/{task_id}", f"/api/v1/tasks/{task_id}/history",
                "/api/v1/queues/probe", "/api/v1/outbox", "/metrics",
            )
        ]  # fmt: skip
        rows = str([row for table in await world.rows() for row in table])

        for secret in ("hunter2-hunter2", "s3cret-s3cret", "key-id-key-id", "open-sesame", signature):
            assert not any(secret in text for text in (*shown, rows, caplog.text)), secret
        assert "***" in (await world.task(name)).error.trace  # type: ignore[union-attr]


@pytest.mark.parametrize("failure", [LaunchRefused, LauncherUnavailable])
async def test_what_a_vendor_repeats_is_told_without_secrets(world: World, failure: type[Exception]) -> None:
    world.options.variables["TOKEN"] = "hunter2-hunter2"  # type: ignore[index]
    await world.queue(secrets=["TOKEN"], spawn_timeout_ms=300)

    async def refuse() -> None:
        await world.clock.advance(1)
        raise failure(f"cannot start with {dict(world.launcher.orders[-1].env)}")

    world.launcher.before = refuse
    answer = await world.post(DONE)
    signature = world.launcher.orders[-1].env["CALLBACK_URL"].partition("sig=")[2]
    kept = answer.text + str([row for table in await world.rows() for row in table])

    assert (answer.status_code, "cannot start with" in answer.text) == (500, True)
    assert [secret for secret in ("hunter2-hunter2", signature) if secret in kept] == []


# --------------------------------------------------------------------------------------------- cancel and retry


async def test_a_running_export_is_cancelled_and_its_machine_is_gone(world: World) -> None:
    began, child = world.file("began"), world.file("child")
    name = await world.export(f"child {child}", f"touch {began}", "wait /never")
    pids = [int(await world.appears(file)) for file in (began, child)]
    await world.engine.cancel(task_id_of(name), "not wanted")
    assert (await world.status(name))["status"] == "processing"
    await world.sweep()

    told = await world.status(name)
    assert (told["status"], told["error"]) == ("error", "cancelled: not wanted")
    assert (await world.task(name)).state is State.CANCELLED
    await gone(*pids)
    assert world.machines() == []


async def test_a_machine_that_does_not_listen_is_killed_after_its_grace(world: World) -> None:
    await world.queue(cancel_grace_period_ms=200)
    began = world.file("began")
    name = await world.export("deaf", f"touch {began}", "wait /never")
    pid = int(await world.appears(began))
    await world.engine.cancel(task_id_of(name), "now")
    await world.sweep()

    assert (await world.task(name)).state is State.CANCELLED
    await gone(pid)
    assert world.machines() == []


async def test_a_failed_export_is_done_again_as_a_task_of_its_own(world: World) -> None:
    name = await world.finished("error it broke", "exit 1")
    again = await world.http.post(f"/api/v1/tasks/{task_id_of(name)}/retry")
    await world.send_out()
    new = again.json()["id"]
    await world.exited(new)

    assert (await world.status(name))["error"] == "it broke"
    assert (await world.status(new))["error"] == "it broke"


async def test_machines_have_one_attempt_unless_the_queue_says_otherwise(world: World) -> None:
    name = await world.finished("signal 9")
    assert ((await world.task(name)).state, (await world.task(name)).attempt) == (State.FAILED, 1)

    await world.queue(retry=RetryForm(max_attempts=2, max_losses=2, initial_ms=1000))
    began, gate = world.file("began"), world.file("gate")
    name = await world.export(f"touch {began}", f"wait {gate}", *DONE)
    pid = int(await world.appears(began))
    os.kill(pid, 9)
    await world.exited(name)
    await world.sweep()
    assert (await world.task(name)).state is State.QUEUED
    await world.clock.advance(2)
    world.release(gate)
    await world.send_out()
    await world.exited(name, 2)
    assert ((await world.task(name)).state, (await world.task(name)).attempt) == (State.SUCCEEDED, 2)
