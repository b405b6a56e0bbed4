"""DAGs over HTTP: validated, planned, deployed, activated, rolled back, paused, retired; their jobs, sources and
webhooks."""

from __future__ import annotations

import asyncio
import base64
import time
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from tests.api.conftest import NewClient, problem
from tests.kit.datasets import settle

from windlass import Engine
from windlass.datasets.requests import RequestKeys
from windlass.datasets.webhooks import Webhooks
from windlass.engine.cipher import Keyring
from windlass.engine.secrets import SecretCount, Secrets
from windlass.net.signature import signed_headers

D = "/api/v1/dags"
SHOP = """\
name: shop
jobs:
  - name: orders
    activation: source
    runtime: ecs_platform
    operator: order_reader
    source: {kind: manual}
    outputs: 1
    update_strategy: append
    unique_key: [id]
  - name: paid
    activation: source
    runtime: ecs_platform
    operator: payment_reader
    source: {kind: webhook, path: payments/new}
    outputs: 0
  - name: ticks
    activation: source
    runtime: dispatcher
    operator: manual_source
    source: {kind: manual}
    outputs: 1
    update_strategy: replace
  - name: bills
    activation: reactive
    runtime: ecs_platform
    operator: biller
    execution_strategy: PerPartition
    inputs: [{from: {job: ticks}}]
    outputs: 1
    update_strategy: replace
publish:
  bills: {from: {job: bills}, storage: s3}
"""
OTHER = SHOP.replace("operator: biller", "operator: biller\n    operator_version: '2'")
BROKEN = SHOP.replace("outputs: 0", "outputs: many").replace("job: ticks", "job: tick")


async def deploy(api: httpx.AsyncClient, engine: Engine, yaml: str = SHOP, **more: Any) -> dict[str, Any]:
    """Deploy a file, and let it become active."""
    response = await api.post(f"{D}/shop/versions", json={"yaml": yaml, **more})
    assert response.status_code in (200, 201), response.text
    await settle(engine)
    made: dict[str, Any] = (await api.get(f"{D}/shop/versions/{response.json()['id']}")).json()
    return made


async def active(api: httpx.AsyncClient) -> str:
    found: dict[str, Any] = (await api.get(f"{D}/shop")).json()
    return str(found["active_version"])


async def build_one(api: httpx.AsyncClient, engine: Engine) -> None:
    """Commit one partition, for which a changed job owes a task."""
    order = {"partition_key": "0-9", "start": 0, "end": 9}
    assert (await api.post(f"{D}/shop/jobs/ticks/emit", json=order)).status_code == 201
    await settle(engine)


# --------------------------------------------------------------------------------------------- files


async def test_a_valid_file_has_no_problems_and_is_not_written(api: httpx.AsyncClient) -> None:
    found = (await api.post(f"{D}/validate", json={"yaml": SHOP})).json()
    assert (found["valid"], found["name"], found["problems"]) == (True, "shop", [])
    assert [(one["code"], one["path"]) for one in found["warnings"]] == [
        ("unused_output", "jobs[0].outputs"),
        ("no_consumer", "publish.bills"),
    ]
    assert (await api.get(D)).json() == {"items": [], "next": None}


async def test_all_problems_of_a_file_are_returned_with_their_places(api: httpx.AsyncClient) -> None:
    response = await api.post(f"{D}/validate", json={"yaml": BROKEN})
    assert response.status_code == 200
    found = response.json()
    assert (found["valid"], found["name"]) == (False, "shop")
    first, second = found["problems"]
    line = BROKEN[: BROKEN.index("many")].count("\n") + 1
    assert (first["line"], first["column"], first["code"], first["path"]) == (
        line,
        14,
        "wrong_type",
        "jobs[1].outputs",
    )
    assert "hint" not in first
    assert (second["code"], second["hint"]) == ("unknown_job", "did you mean ticks?")


@pytest.mark.parametrize("text", ["", "\x00", "a: [", "- 1", "&a b: *a", "🦊: 1"])
async def test_whatever_is_no_dag_is_no_defect(api: httpx.AsyncClient, text: str) -> None:
    found = (await api.post(f"{D}/validate", json={"yaml": text})).json()
    assert (found["valid"], found["name"]) == (False, "")
    for problem_ in found["problems"]:
        assert problem_["line"] >= 1
        assert problem_["message"]


async def test_a_plan_is_that_of_the_deploy_and_writes_nothing(api: httpx.AsyncClient, engine: Engine) -> None:
    planned = await api.post(f"{D}/shop/plan", json={"yaml": SHOP})
    assert planned.status_code == 200, planned.text
    problem(await api.get(f"{D}/shop"), 404, "not_found")

    made = await deploy(api, engine, plan_hash=planned.json()["plan_hash"])

    assert made["plan"] == planned.json()
    assert made["plan_hash"] == planned.json()["plan_hash"]


async def test_a_file_with_problems_is_neither_planned_nor_deployed(api: httpx.AsyncClient) -> None:
    for path in ("plan", "versions"):
        answer = problem(await api.post(f"{D}/shop/{path}", json={"yaml": BROKEN}), 422, "dag_invalid")
        assert [one["code"] for one in answer["details"]["problems"]] == ["wrong_type", "unknown_job"]
        assert answer["details"]["problems"][0]["line"] > 1
        answer = problem(await api.post(f"{D}/store/{path}", json={"yaml": SHOP}), 422, "invalid")
        assert answer["field"] == "name"
    assert (await api.get(D)).json()["items"] == []


async def test_a_deploy_for_another_plan_is_refused(api: httpx.AsyncClient) -> None:
    answer = problem(
        await api.post(f"{D}/shop/versions", json={"yaml": SHOP, "plan_hash": "of yesterday"}), 409, "plan_changed"
    )
    planned = (await api.post(f"{D}/shop/plan", json={"yaml": SHOP})).json()
    assert answer["details"]["plan_hash"] == planned["plan_hash"]
    problem(await api.get(f"{D}/shop"), 404, "not_found")
    assert (await api.get("/api/v1/queues")).json()["items"] == []


@pytest.mark.parametrize(
    ("path", "order", "field"),
    [
        ("validate", {}, "yaml"),
        ("validate", {"yaml": 1}, "yaml"),
        ("validate", {"yaml": "", "more": 1}, "more"),
        ("shop/plan", {"yaml": SHOP, "rebuild": "orders"}, "rebuild"),
        ("shop/versions", {"yaml": SHOP, "cutover": "later"}, "cutover"),
        ("shop/versions", {"yaml": SHOP, "plan_hash": ""}, "plan_hash"),
        ("shop/rollback", {"expect_active": "1"}, "expect_active"),
        ("shop/jobs/orders/emit", {"cursor": 2**63}, "cursor"),
        ("shop/jobs/orders/emit", {"cursor": 1, "partition_key": "a"}, "cursor"),
        ("shop/jobs/orders/emit", {"start": 1}, "partition_key"),
        ("shop/jobs/orders/emit", {"payload": "\x00"}, ""),
    ],
)
async def test_what_cannot_be_is_refused_by_field(
    api: httpx.AsyncClient, engine: Engine, path: str, order: dict[str, Any], field: str
) -> None:
    await deploy(api, engine)
    answer = problem(await api.post(f"{D}/{path}", json=order), 422, "invalid")
    assert field in str(answer)


# --------------------------------------------------------------------------------------------- versions


async def test_a_deploy_is_new_once_and_then_known(api: httpx.AsyncClient, engine: Engine) -> None:
    first = await api.post(f"{D}/shop/versions", json={"yaml": SHOP})
    again = await api.post(f"{D}/shop/versions", json={"yaml": SHOP})

    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    made = first.json()
    assert (made["dag"], made["number"], made["state"], made["created_by"]) == ("shop", 1, "building", "root")
    assert (made["ready_at"], made["activated_at"], made["ended_at"], made["reason"]) == (None, None, None, None)
    assert "yaml" not in made
    await settle(engine)
    dag = (await api.get(f"{D}/shop")).json()
    assert dag == {
        "name": "shop", "namespace": "default", "active_version": made["id"], "previous_version": None,
        "paused": False, "retired": False, "jobs": 4, "datasets": ["bills"],
    }  # fmt: skip
    assert (await api.get(D)).json() == {"items": [dag], "next": None}


async def test_a_version_is_found_by_id_and_by_number_and_with_its_file(api: httpx.AsyncClient, engine: Engine) -> None:
    made = await deploy(api, engine)
    for which in (made["id"], made["number"]):
        assert (await api.get(f"{D}/shop/versions/{which}")).json() == made
    assert made["state"] == "active"
    with_file = (await api.get(f"{D}/shop/versions/1", params={"yaml": "true"})).json()
    assert with_file == {**made, "yaml": SHOP}


async def test_what_is_not_there_is_not_found(api: httpx.AsyncClient, engine: Engine) -> None:
    made = await deploy(api, engine)
    for path in (
        "store", "store/versions", f"store/versions/{made['id']}", "store/jobs", "store/jobs/orders/tasks",
        f"shop/versions/{uuid4()}", "shop/versions/2", "shop/jobs/none/tasks",
    ):  # fmt: skip
        problem(await api.get(f"{D}/{path}"), 404, "not_found")
    for path in (
        "store/rollback", "store/pause", "store/resume", "store/versions/1/abandon", "shop/versions/7/abandon",
        "store/jobs/orders/emit", "shop/jobs/none/emit",
    ):  # fmt: skip
        problem(await api.post(f"{D}/{path}", json={}), 404, "not_found")
    problem(await api.delete(f"{D}/store"), 404, "not_found")
    problem(await api.put(f"{D}/store/active", json={"version": 1}), 404, "not_found")
    problem(await api.put(f"{D}/shop/active", json={"version": str(uuid4())}), 404, "not_found")
    for which in ("none", "0", "99999999999", "١", "-1"):
        problem(await api.get(f"{D}/shop/versions/{which}"), 400, "malformed")
    assert (await api.get(f"{D}/{'x' * 201}")).status_code == 422


async def test_versions_and_dags_are_listed_in_pages(api: httpx.AsyncClient, engine: Engine) -> None:
    for number in range(3):
        await deploy(api, engine, SHOP + f"# {number}\n")
    for name in ("a", "b"):
        yaml = f"name: {name}\njobs: [{{name: j, activation: source, runtime: ecs_platform, operator: o, "
        yaml += "source: {kind: manual}, outputs: 0}]\n"
        assert (await api.post(f"{D}/{name}/versions", json={"yaml": yaml})).status_code == 201

    async def pages(path: str, name: str) -> list[Any]:
        found, after = [], None
        while True:
            page = (await api.get(path, params={"limit": 2, **({"after": after} if after else {})})).json()
            assert len(page["items"]) <= 2
            found += [item[name] for item in page["items"]]
            after = page["next"]
            if after is None:
                return found

    assert await pages(f"{D}/shop/versions", "number") == [3, 2, 1]
    assert await pages(D, "name") == ["a", "b", "shop"]
    assert await pages(f"{D}/shop/jobs", "job") == ["bills", "orders", "paid", "ticks"]
    for path in (D, f"{D}/shop/versions", f"{D}/shop/jobs/orders/tasks"):
        problem(await api.get(path, params={"after": "AAA_"}), 400, "malformed")


async def test_a_version_tells_how_far_its_new_jobs_are_built(api: httpx.AsyncClient, engine: Engine) -> None:
    await deploy(api, engine)
    await build_one(api, engine)

    made = await deploy(api, engine, OTHER)

    assert (made["state"], made["built"]) == ("building", {"bills": {"owed": 1, "done": 0, "failed": 0}})
    assert (await api.get(f"{D}/shop/versions")).json()["items"][0] == made
    task = next(iter((await api.get(f"{D}/shop/jobs/bills/tasks")).json()["items"]))
    assert (task["dag_version"], task["trigger"]) == (made["id"], {"kind": "build"})
    await engine.cancel(UUID(task["task_id"]), "enough")
    await settle(engine)
    failed = (await api.get(f"{D}/shop/versions/2")).json()
    assert (failed["state"], failed["built"]) == ("failed", {"bills": {"owed": 1, "done": 1, "failed": 1}})
    assert failed["reason"] == f"a task of bills: {task['task_id']} was cancelled"


# --------------------------------------------------------------------------------------------- cutover


async def test_a_version_is_activated_by_hand_and_rolled_back(api: httpx.AsyncClient, engine: Engine) -> None:
    first = await deploy(api, engine)
    problem(await api.post(f"{D}/shop/rollback", json={}), 409, "invalid_state")
    second = await deploy(api, engine, OTHER, cutover="manual")
    assert second["state"] == "ready"

    wrong = {"version": second["id"], "expect_active": second["id"]}
    problem(await api.put(f"{D}/shop/active", json=wrong), 409, "conflict")
    right = {"version": 2, "expect_active": first["id"]}
    dag = (await api.put(f"{D}/shop/active", json=right)).json()
    assert (dag["active_version"], dag["previous_version"]) == (second["id"], first["id"])
    assert (await api.put(f"{D}/shop/active", json={"version": 2})).json() == dag

    problem(await api.post(f"{D}/shop/rollback", json={"expect_active": first["id"]}), 409, "conflict")
    dag = (await api.post(f"{D}/shop/rollback", json={"expect_active": second["id"]})).json()
    assert (dag["active_version"], dag["previous_version"]) == (first["id"], second["id"])
    states = [one["state"] for one in (await api.get(f"{D}/shop/versions")).json()["items"]]
    assert states == ["rolled_back", "active"]


async def test_a_repeated_rollback_with_its_key_does_not_go_forward(api: httpx.AsyncClient, engine: Engine) -> None:
    first = await deploy(api, engine)
    second = await deploy(api, engine, OTHER)
    order, key = {"expect_active": second["id"]}, {"Idempotency-Key": "back"}

    once, again = [await api.post(f"{D}/shop/rollback", json=order, headers=key) for _ in range(2)]

    assert once.json() == again.json()
    assert await active(api) == first["id"]
    await api.post(f"{D}/shop/rollback", json={})
    assert await active(api) == second["id"]


async def test_an_old_file_that_is_deployed_again_is_brought_back(api: httpx.AsyncClient, engine: Engine) -> None:
    first = await deploy(api, engine)
    await deploy(api, engine, OTHER)

    response = await api.post(f"{D}/shop/versions", json={"yaml": SHOP})

    assert (response.status_code, response.json()["id"]) == (200, first["id"])
    await settle(engine)
    assert await active(api) == first["id"]


async def test_a_rebuild_is_a_version_of_its_own(api: httpx.AsyncClient, engine: Engine) -> None:
    first = await deploy(api, engine)
    response = await api.post(f"{D}/shop/versions", json={"yaml": SHOP, "rebuild": ["bills"]})
    assert (response.status_code, response.json()["number"]) == (201, 2)
    assert response.json()["id"] != first["id"]


async def test_a_version_that_is_not_active_is_abandoned(api: httpx.AsyncClient, engine: Engine) -> None:
    await deploy(api, engine)
    await deploy(api, engine, OTHER, cutover="manual")
    abandoned = await api.post(f"{D}/shop/versions/2/abandon", json={})
    assert (abandoned.status_code, abandoned.json()["state"]) == (200, "abandoned")
    assert abandoned.json()["ended_at"] is not None
    problem(await api.post(f"{D}/shop/versions/1/abandon", json={}), 409, "invalid_state")
    problem(await api.put(f"{D}/shop/active", json={"version": 2}), 409, "invalid_state")


# --------------------------------------------------------------------------------------------- pause and retire


async def test_a_dag_is_paused_resumed_and_retired(api: httpx.AsyncClient, engine: Engine) -> None:
    made = await deploy(api, engine)
    for verb, paused in (("pause", True), ("pause", True), ("resume", False)):
        assert (await api.post(f"{D}/shop/{verb}", json={})).json()["paused"] is paused
    retired = [(await api.delete(f"{D}/shop")).json() for _ in range(2)]
    assert retired[0] == retired[1]
    assert (retired[0]["retired"], retired[0]["active_version"]) == (True, made["id"])
    problem(await api.post(f"{D}/shop/jobs/orders/emit", json={}), 409, "invalid_state")
    problem(await api.post("/hooks/default/payments/new"), 409, "invalid_state")
    assert (await api.post(f"{D}/shop/versions", json={"yaml": SHOP})).json()["id"] == made["id"]
    await settle(engine)
    assert (await api.get(f"{D}/shop")).json()["retired"] is False
    assert (await api.post("/hooks/default/payments/new")).status_code == 202, "its sources are back"


async def test_a_paused_dag_takes_no_webhook_and_no_emit(api: httpx.AsyncClient, engine: Engine) -> None:
    await deploy(api, engine)
    sent = await api.post("/hooks/default/payments/new", headers={"webhook-id": "m1"})
    await api.post(f"{D}/shop/pause", json={})

    for path in ("/hooks/default/payments/new", f"{D}/shop/jobs/orders/emit"):
        refused = problem(await api.post(path), 409, "invalid_state")
        assert "paused" in refused["detail"]
    again = await api.post("/hooks/default/payments/new", headers={"webhook-id": "m1"})
    assert (again.status_code, again.json()) == (202, sent.json()), "what was accepted is answered again"


async def test_a_held_job_takes_no_webhook_now(api: httpx.AsyncClient, engine: Engine) -> None:
    await deploy(
        api, engine, SHOP.replace("operator: payment_reader", "operator: payment_reader\n    max_queue_depth: 1")
    )
    assert (await api.post("/hooks/default/payments/new")).status_code == 202

    response = await api.post("/hooks/default/payments/new")

    problem(response, 429, "held")
    assert int(response.headers["retry-after"]) >= 1


# --------------------------------------------------------------------------------------------- repeated requests


async def test_a_repeated_request_with_the_same_key_is_carried_out_once(api: httpx.AsyncClient, engine: Engine) -> None:
    first = await deploy(api, engine)
    second = await deploy(api, engine, OTHER, cutover="manual")

    async def twice(path: str, body: dict[str, Any], key: str) -> list[httpx.Response]:
        found = []
        for _ in range(2):
            found.append(await api.post(f"{D}/shop/{path}", json=body, headers={"Idempotency-Key": key}))
            await settle(engine)
        return found

    for path, key in (("pause", "p"), ("resume", "r"), ("versions/2/abandon", "a")):
        once, again = await twice(path, {}, key)
        assert (once.status_code, once.json()) == (200, again.json()), path
    assert (await api.get(f"{D}/shop/versions/2")).json()["state"] == "abandoned"

    await api.post(f"{D}/shop/versions", json={"yaml": OTHER})
    await settle(engine)
    assert await active(api) == second["id"]
    once, again = await twice("rollback", {}, "b")
    assert once.json() == again.json()
    assert await active(api) == first["id"]

    once, again = await twice("versions", {"yaml": SHOP, "rebuild": ["bills"]}, "d")
    assert [once.status_code, again.status_code] == [201, 200]
    assert once.json()["id"] == again.json()["id"]
    assert (await api.get(f"{D}/shop/versions")).json()["items"][0]["number"] == 3


@pytest.mark.parametrize(
    ("path", "body", "other"),
    [
        ("versions", {"yaml": OTHER}, {"yaml": SHOP + "# other\n"}),
        ("versions", {"yaml": OTHER}, {"yaml": OTHER, "cutover": "manual"}),
        ("rollback", {}, {"expect_active": str(uuid4())}),
        ("jobs/orders/emit", {"payload": {"a": 1}}, {"payload": {"a": 1.0}}),
        ("jobs/orders/emit", {"cursor": 1}, {"cursor": 2}),
    ],
)
async def test_a_key_that_was_used_for_another_request_is_refused(
    api: httpx.AsyncClient, engine: Engine, path: str, body: dict[str, Any], other: dict[str, Any]
) -> None:
    await deploy(api, engine, SHOP + "# older\n")
    await deploy(api, engine)
    before = await active(api)
    key = {"Idempotency-Key": "k"}
    assert (await api.post(f"{D}/shop/{path}", json=body, headers=key)).is_success

    problem(await api.post(f"{D}/shop/{path}", json=other, headers=key), 409, "conflict")
    problem(await api.post(f"{D}/shop/pause", json={}, headers=key), 409, "conflict")

    assert not (await api.get(f"{D}/shop")).json()["paused"]
    assert (await api.post(f"{D}/shop/{path}", json=body, headers=key)).is_success
    assert path == "rollback" or await active(api) == before


async def test_two_requests_with_one_key_at_the_same_time_are_one(api: httpx.AsyncClient, engine: Engine) -> None:
    await deploy(api, engine)
    path, key = f"{D}/shop/jobs/orders/emit", {"Idempotency-Key": "once"}

    found = await asyncio.gather(*(api.post(path, json={"cursor": 1}, headers=key) for _ in range(5)))

    assert {response.status_code for response in found} == {201}
    assert len({response.json()["task_id"] for response in found}) == 1


async def test_requests_are_forgotten_after_a_week(api: httpx.AsyncClient, engine: Engine) -> None:
    await deploy(api, engine)
    await api.post(f"{D}/shop/pause", json={}, headers={"Idempotency-Key": "k"})
    assert await engine.service(RequestKeys).clean_up_tick() == 0
    async with engine.store.begin() as tx:
        await tx.session.connection.execute("update windlass.request set at = at - interval '8 days'")

    assert await engine.service(RequestKeys).clean_up_tick() == 1


# --------------------------------------------------------------------------------------------- jobs


async def test_jobs_have_the_numbers_of_their_tasks(api: httpx.AsyncClient, engine: Engine) -> None:
    await deploy(api, engine)
    await api.post(f"{D}/shop/jobs/orders/emit", json={})
    await build_one(api, engine)
    jobs = {job["job"]: job for job in (await api.get(f"{D}/shop/jobs")).json()["items"]}
    assert jobs["orders"] == {
        "job": "orders", "operator": "order_reader", "runtime": "ecs_platform", "queue": "platform", "held": False,
        "tasks": {"queued": 1, "running": 0, "failed": 0},
    }  # fmt: skip
    assert jobs["bills"]["tasks"] == {"queued": 1, "running": 0, "failed": 0}
    assert jobs["ticks"]["runtime"] == "dispatcher"


async def test_the_jobs_of_a_dag_that_was_never_active_are_those_of_its_newest_version(api: httpx.AsyncClient) -> None:
    await api.post(f"{D}/shop/versions", json={"yaml": SHOP})
    assert len((await api.get(f"{D}/shop/jobs")).json()["items"]) == 4


async def test_why_a_partition_is_there_or_not(api: httpx.AsyncClient, engine: Engine, as_role: NewClient) -> None:
    await deploy(api, engine)
    viewer = await as_role("viewer")
    query = {"partition_key": "0-9"}
    found = (await viewer.get(f"{D}/shop/jobs/bills/why", params=query)).json()
    assert found == {
        "state": "missing", "because": "waiting_for_input", "detail": "ticks has not committed 0-9",
        "missing": [{"name": "ticks", "partition_key": "0-9"}],
    }  # fmt: skip

    await build_one(api, engine)

    found = (await viewer.get(f"{D}/shop/jobs/bills/why", params=query)).json()
    assert (found["state"], found["because"], "missing" in found) == ("running", "queued", False)
    assert UUID(found["task_id"])
    assert (await viewer.get(f"{D}/shop/jobs/ticks/why")).json()["because"] == "committed"
    problem(await viewer.get(f"{D}/shop/jobs/bills/why"), 422, "invalid")
    problem(await viewer.get(f"{D}/shop/jobs/nobody/why"), 404, "not_found")


async def test_a_source_is_started_by_hand_once_for_each_key(api: httpx.AsyncClient, engine: Engine) -> None:
    made = await deploy(api, engine)
    path, key = f"{D}/shop/jobs/orders", {"Idempotency-Key": "monday"}
    first, again = [await api.post(f"{path}/emit", json={"payload": {"a": 1}}, headers=key) for _ in range(2)]
    other = await api.post(f"{path}/emit", json={"cursor": -5})
    assert (first.status_code, first.json()) == (201, again.json())
    assert first.json() != other.json()

    page = (await api.get(f"{path}/tasks", params={"limit": 1})).json()
    rest = (await api.get(f"{path}/tasks", params={"after": page["next"]})).json()

    [newer], [older] = page["items"], rest["items"]
    assert rest["next"] is None
    assert (newer["task_id"], older["task_id"]) == (other.json()["task_id"], first.json()["task_id"])
    assert older == {
        "task_id": first.json()["task_id"], "state": "queued", "attempt": 0, "dag_version": made["id"],
        "dedupe_key": "emit:monday", "trigger": {"kind": "source", "source": "manual"}, "inputs": [],
        "created_at": older["created_at"],
    }  # fmt: skip
    assert newer["trigger"] == {"kind": "source", "source": "manual", "cursor": -5}
    wire = (await api.get(f"/api/v1/tasks/{first.json()['task_id']}")).json()["wire"]
    assert wire["trigger"]["payload"] == {"a": 1}


async def test_a_job_that_is_no_source_is_not_started_by_hand(api: httpx.AsyncClient, engine: Engine) -> None:
    await deploy(api, engine)
    problem(await api.post(f"{D}/shop/jobs/bills/emit", json={}), 409, "invalid_state")


# --------------------------------------------------------------------------------------------- webhooks

HOOK, SECRET = "/hooks/default/payments/new", "whsec_" + base64.b64encode(b"s" * 32).decode()
NEWER = "whsec_" + base64.b64encode(b"n" * 32).decode()


def signed(secret: str = SECRET, id_: str = "m1", body: bytes = b"paid", age_s: int = 0) -> dict[str, str]:
    return signed_headers([secret], id_, int(time.time()) - age_s, body)


async def test_a_signed_webhook_needs_no_key_and_is_one_task(
    api: httpx.AsyncClient, engine: Engine, nobody: httpx.AsyncClient
) -> None:
    await deploy(api, engine)
    set_ = await api.put(f"{D}/shop/jobs/paid/webhook-secret", json={"secret": SECRET})
    assert (set_.status_code, set_.json()["path"]) == (200, HOOK)

    first, again = [await nobody.post(HOOK, content=b"paid", headers=signed()) for _ in range(2)]

    assert (first.status_code, first.json()) == (202, again.json())
    webhook = await wire_of(api, first)
    assert (webhook["id"], webhook["body"]) == ("m1", "paid")
    assert "webhook-signature" not in webhook["headers"]
    older = await nobody.post(HOOK, content=b"paid", headers=signed(id_="m2", age_s=290))
    assert older.status_code == 202


async def test_whatever_is_wrong_with_a_signed_webhook_has_the_same_answer(
    api: httpx.AsyncClient, engine: Engine, nobody: httpx.AsyncClient
) -> None:
    await deploy(api, engine)
    await api.put(f"{D}/shop/jobs/paid/webhook-secret", json={"secret": SECRET})
    wrong = [
        (HOOK, signed(NEWER)),
        (HOOK, signed(body=b"more")),
        (HOOK, signed(age_s=310)),
        (HOOK, signed(age_s=-310)),
        (HOOK, signed() | {"webhook-id": "other"}),
        (HOOK, signed() | {"webhook-timestamp": "x"}),
        (HOOK, signed() | {"webhook-signature": "v1,"}),
        ("/hooks/default/payments/other", signed()),
        ("/hooks/other/payments/new", signed()),
        ("/hooks/%20/payments/new", signed()),
        ("/hooks/default/../x", signed()),
    ]
    answers = [await nobody.post(path, content=b"paid", headers=headers) for path, headers in wrong]

    assert {(answer.status_code, answer.json().get("code")) for answer in answers[:-1]} == {(401, "unauthenticated")}
    assert len({answer.json()["detail"] for answer in answers[:-1]}) == 1
    assert (await nobody.post(HOOK, content=b"paid")).status_code == 401
    too_long = b"x" * (1024 * 1024 + 1)
    for path in (HOOK, "/hooks/other/nothing"):
        problem(await nobody.post(path, content=too_long, headers=signed(body=too_long)), 413, "too_large")
    assert (await api.get(f"{D}/shop/jobs/paid/tasks")).json()["items"] == []


async def test_a_secret_is_rotated_removed_and_never_shown(
    api: httpx.AsyncClient, engine: Engine, nobody: httpx.AsyncClient, as_role: NewClient
) -> None:
    await deploy(api, engine)
    path = f"{D}/shop/jobs/paid/webhook-secret"
    operator = await as_role("operator")
    problem(await operator.put(path, json={"secret": SECRET}), 403, "forbidden")
    answers = [await api.put(path, json={"secret": secret}) for secret in (SECRET, NEWER)]
    assert answers[0].json()["previous_ends_at"] is None
    assert answers[1].json()["previous_ends_at"] is not None
    for number, secret in enumerate((SECRET, NEWER)):
        sent = await nobody.post(HOOK, content=b"paid", headers=signed(secret, f"m{number}"))
        assert sent.status_code == 202

    await api.put(path, json={"secret": SECRET, "overlap_s": 0})
    assert (await nobody.post(HOOK, content=b"paid", headers=signed(NEWER, "m9"))).status_code == 401
    await deploy(api, engine, OTHER)
    assert (await nobody.post(HOOK, content=b"paid", headers=signed(SECRET, "m8"))).status_code == 202, (
        "after a cutover"
    )

    removed = await api.delete(path)
    assert (removed.status_code, removed.json()["secret_set_at"]) == (200, None)
    assert (await nobody.post(HOOK, content=b"paid", headers=signed(SECRET, "m7"))).status_code == 401
    for answer in (*answers, removed):
        assert SECRET not in answer.text
        assert NEWER not in answer.text


@pytest.mark.parametrize(
    ("job", "secret", "status", "code"),
    [
        ("orders", SECRET, 409, "invalid_state"),
        ("nothing", SECRET, 404, "not_found"),
        ("paid", "secret", 422, "invalid"),
        ("paid", "whsec_!!!", 422, "invalid"),
        ("paid", "whsec_c2hvcnQ=", 422, "invalid"),
    ],
)
async def test_only_a_webhook_has_a_secret_of_the_right_form(
    api: httpx.AsyncClient, engine: Engine, job: str, secret: str, status: int, code: str
) -> None:
    await deploy(api, engine)
    refused = problem(await api.put(f"{D}/shop/jobs/{job}/webhook-secret", json={"secret": secret}), status, code)
    assert secret not in str(refused) or secret == "secret"


async def test_secrets_of_webhooks_are_encrypted_with_the_others(api: httpx.AsyncClient, engine: Engine) -> None:
    await deploy(api, engine)
    for secret in (NEWER, SECRET):
        await engine.service(Webhooks).set_secret("shop", "paid", secret)
    old, new = Keyring([b"o" * 32]), Keyring([b"n" * 32, b"o" * 32])

    counts = [await Secrets(engine.store, cipher).seal_all() for cipher in (old, new)]

    assert counts == [SecretCount(clear=2), SecretCount(older=2)]
    assert await Secrets(engine.store, new).count() == SecretCount(current=2)
    async with engine.store.begin() as tx:
        kept = await tx.session.connection.fetchval("select w::text from windlass.webhook_secret w")
    assert kept.count("sealed:1:") == 2


async def wire_of(api: httpx.AsyncClient, response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 202, response.text
    task: dict[str, Any] = (await api.get(f"/api/v1/tasks/{response.json()['task_id']}")).json()
    webhook: dict[str, Any] = task["wire"]["trigger"]["webhook"]
    return webhook


async def test_a_webhook_starts_a_task_with_its_body_and_without_its_credentials(
    api: httpx.AsyncClient, engine: Engine
) -> None:
    await deploy(api, engine)
    hook = "/hooks/default/payments/new"
    headers = {"webhook-id": "msg_1", "X-Kind": "card", "Cookie": "session=1"}

    first, again = [await api.post(hook, content="paid ✓", headers=headers) for _ in range(2)]
    other = await api.post(hook, content="paid ✓")

    assert first.json() == again.json() != other.json()
    webhook = await wire_of(api, first)
    assert (webhook["id"], webhook["body"], webhook["headers"]["x-kind"]) == ("msg_1", "paid ✓", "card")
    assert webhook["headers"].keys().isdisjoint({"authorization", "cookie"})
    assert UUID((await wire_of(api, other))["id"])
    listed = (await api.get(f"{D}/shop/jobs/paid/tasks")).json()["items"]
    assert [task["dedupe_key"] for task in listed][1] == "webhook:msg_1"
    assert "body" not in listed[1]["trigger"]["webhook"]


@pytest.mark.parametrize("body", [b"\xff\x00", b"a\x00b"])
async def test_a_body_that_is_not_text_comes_in_base64(api: httpx.AsyncClient, engine: Engine, body: bytes) -> None:
    await deploy(api, engine)
    webhook = await wire_of(api, await api.post("/hooks/default/payments/new", content=body))
    assert webhook["headers"]["content-transfer-encoding"] == "base64"
    assert base64.b64decode(webhook["body"]) == body


async def test_a_webhook_has_limits(api: httpx.AsyncClient, engine: Engine, as_role: NewClient) -> None:
    await deploy(api, engine)
    hook = "/hooks/default/payments/new"
    most = b"x" * (1024 * 1024)
    assert len((await wire_of(api, await api.post(hook, content=most)))["body"]) == len(most)
    problem(await api.post(hook, content=most + b"x"), 413, "too_large")
    for id_ in ("", "a b", "x" * 401):
        problem(await api.post(hook, headers={"webhook-id": id_}), 422, "invalid")
    for path in ("payments", "payments/new/", "payments/new/er", "Payments/new", "payments%00", "../default/x"):
        problem(await api.post(f"/hooks/default/{path}"), 404, "not_found")
    problem(await api.post("/hooks/other/payments/new"), 404, "not_found")
    for path in ("/hooks", "/hooks/default", "/hooks/default/", "/hooks//payments/new"):
        assert (await api.post(path)).status_code == 404
    assert (await api.get(hook)).status_code == 405
    problem(await (await as_role("viewer")).post(hook), 403, "forbidden")
    problem(await (await as_role("admin", "other")).post(hook), 403, "forbidden")
    assert (await (await as_role("submitter")).post(hook)).status_code == 202


# --------------------------------------------------------------------------------------------- roles and namespaces


async def test_roles(api: httpx.AsyncClient, engine: Engine, as_role: NewClient) -> None:
    await deploy(api, engine)
    viewer, submitter, operator = [await as_role(role) for role in ("viewer", "submitter", "operator")]
    for path in ("", "/shop", "/shop/versions", "/shop/versions/1", "/shop/jobs", "/shop/jobs/orders/tasks"):
        assert (await viewer.get(D + path)).status_code == 200, path
    for path in ("/validate", "/shop/plan"):
        assert (await viewer.post(D + path, json={"yaml": SHOP})).status_code == 200, path
    assert (await viewer.post(f"{D}/shop/jobs/orders/emit", json={})).status_code == 403
    assert (await submitter.post(f"{D}/shop/jobs/orders/emit", json={})).status_code == 201
    changes = [
        ("POST", "/shop/versions", {"yaml": OTHER}), ("PUT", "/shop/active", {"version": 1}),
        ("POST", "/shop/rollback", {}), ("POST", "/shop/versions/2/abandon", {}), ("POST", "/shop/pause", {}),
        ("POST", "/shop/resume", {}), ("DELETE", "/shop", None),
    ]  # fmt: skip
    for method, path, order in changes:
        problem(await submitter.request(method, D + path, json=order), 403, "forbidden")
    for method, path, order in changes:
        response = await operator.request(method, D + path, json=order)
        assert response.status_code in ((409,) if "rollback" in path else (200, 201)), (path, response.text)


async def test_a_namespace_has_its_own_dags(api: httpx.AsyncClient, engine: Engine, as_role: NewClient) -> None:
    await deploy(api, engine)
    theirs = await as_role("operator", "theirs")
    problem(await theirs.get(f"{D}/shop"), 404, "not_found")
    problem(await theirs.get(f"{D}/shop", params={"namespace": "default"}), 403, "forbidden")
    made = await theirs.post(f"{D}/shop/versions", json={"yaml": OTHER})
    assert (made.status_code, made.json()["number"]) == (201, 1)
    assert (await theirs.get(f"{D}/shop")).json()["namespace"] == "theirs"
    [listed] = (await api.get(D, params={"namespace": "theirs"})).json()["items"]
    assert listed["name"] == "shop"
    assert len((await api.get(f"{D}/shop/versions")).json()["items"]) == 1
