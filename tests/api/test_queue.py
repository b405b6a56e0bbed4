"""Queues, workers, namespaces, the outbox and metrics over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote
from uuid import UUID

import httpx
import pytest
from tests.api.conftest import NewClient, problem
from tests.api.test_task import fail, submit
from tests.kit.work import CRASH, worker

from windlass import Engine
from windlass.api.app import make_api
from windlass.core.progress import Amount, Line, ProgressReport
from windlass.core.states import Effect

PULL, PUSH = {"type": "pull"}, {"type": "push", "url": "https://example.org/work"}
RETRY = {"max_attempts": 2, "max_losses": 1, "initial_ms": 500, "multiplier": 3, "max_ms": 60000}


async def put(api: httpx.AsyncClient, name: str = "mail", **order: Any) -> dict[str, Any]:
    response = await api.put(f"/api/v1/queues/{name}", json=order)
    assert response.status_code == 200, response.text
    queue: dict[str, Any] = response.json()
    return queue


async def test_what_is_set_for_a_queue_comes_back(api: httpx.AsyncClient) -> None:
    limits = {
        "max_running": 5,
        "max_running_per_kind": {"a": 1},
        "max_running_per_key": 2,
        "rate": {"count": 3, "period_s": 1.5},
    }
    queue = await put(api, delivery={"type": "pull"}, retry=RETRY, limits=limits, paused=True)

    assert queue == {
        "name": "mail", "namespace": "default", "delivery": {"type": "pull"}, "retry": RETRY, "limits": limits,
        "paused": True, "counts": {}, "signing_secret": None,
    }  # fmt: skip
    assert (await api.get("/api/v1/queues/mail")).json() == queue
    assert (await api.get("/api/v1/queues")).json() == {"items": [queue], "next": None}


async def test_a_queue_that_nobody_set_up_is_there_as_soon_as_it_holds_a_task(api: httpx.AsyncClient) -> None:
    problem(await api.get("/api/v1/queues/mail"), 404, "not_found")
    await submit(api)

    queue = (await api.get("/api/v1/queues/mail")).json()
    assert (queue["counts"], queue["delivery"], queue["paused"]) == ({"queued": 1}, {"type": "pull"}, False)


DELIVERIES = [
    {"type": "pull"},
    {**PUSH, "heartbeat_interval_ms": 1000, "heartbeat_timeout_ms": 2000, "cancel_grace_period_ms": 5000,
     "dispatch_timeout_ms": 700, "token_ttl_seconds": 7200, "labels": ["gpu"],
     "resources": {"memory_bytes": 1, "cpu_millicores": 2, "timeout_ms": 3},
     "headers": {"X-Tenant": "acme"},
     "cloud_tasks": {"project": "p", "location": "l", "queue": "q", "service_account_email": "a@b", "audience": None,
                     "dispatch_deadline_s": 15}},
    {"type": "wakeup", "carrier": "nats", "address": "shop.orders", "lease_ms": 1000, "visibility_ms": 2000,
     "max_deliveries": 3, "resend_ms": 4000, "resend_max_ms": 9000, "trusted": True, "secrets": ["SHOP_TOKEN"]},
    {"type": "invoke", "url": "http://127.0.0.1:1/x", "function": None, "lease_ms": 1000, "trusted": True},
    {"type": "invoke", "url": None, "function": "arn:aws:lambda:eu-west-1:123456789012:function:run", "lease_ms": 1000,
     "trusted": True},
    {"type": "machine", "launcher": "docker"},
    {"type": "stdio", "command": ["python", "-m", "worker"], "kinds_are_scripts": True},
]  # fmt: skip


async def test_every_delivery_has_its_form(api: httpx.AsyncClient) -> None:
    for delivery in DELIVERIES:
        assert (await put(api, delivery=delivery))["delivery"] == delivery


@pytest.mark.parametrize(("role", "namespace"), [("operator", None), ("admin", "default")])
async def test_programs_that_servers_run_are_set_by_an_admin_of_all_namespaces(
    api: httpx.AsyncClient, as_role: NewClient, role: str, namespace: str | None
) -> None:
    other_connection = await as_role(role, namespace)
    order = {"delivery": {"type": "stdio", "command": ["true"], "kinds_are_scripts": True}}

    assert (await other_connection.put("/api/v1/queues/images", json=order)).status_code == 403
    assert (await api.put("/api/v1/queues/images", json=order)).status_code == 200


async def test_the_variables_of_programs_are_for_admins(api: httpx.AsyncClient, as_role: NewClient) -> None:
    order = {"type": "stdio", "command": ["true"], "kinds_are_scripts": True, "env": {"PASSWORD": "secret"}}
    assert (await put(api, "images", delivery=order))["delivery"]["env"] == {"PASSWORD": "secret"}
    for role in ("viewer", "operator"):
        other_connection = await as_role(role, None)
        for path in ("/api/v1/queues", "/api/v1/queues/images"):
            told = await other_connection.get(path)
            assert told.status_code == 200
            assert "PASSWORD" in told.text
            assert 'secret"' not in told.text.replace('signing_secret"', "")


BAD_ORDERS: list[tuple[str, dict[str, Any]]] = [
    ("delivery.type", {"delivery": {"type": "pigeon"}}),
    ("delivery.type", {"delivery": {}}),
    ("delivery", {"delivery": "pull"}),
    ("delivery.url", {"delivery": {"type": "push"}}),
    ("delivery.url", {"delivery": {"type": "push", "url": "ftp://x"}}),
    ("delivery.url", {"delivery": {"type": "push", "url": "http://user@host/"}}),
    ("delivery.url", {"delivery": {"type": "push", "url": "http:// x"}}),
    (
        "delivery.heartbeat_timeout_ms",
        {"delivery": {**PUSH, "heartbeat_interval_ms": 1000, "heartbeat_timeout_ms": 1999}},
    ),
    ("delivery.token_ttl_seconds", {"delivery": {**PUSH, "token_ttl_seconds": 7201}}),
    ("delivery.heartbeat_interval_ms", {"delivery": {**PUSH, "heartbeat_interval_ms": 0}}),
    ("delivery.urll", {"delivery": {**PUSH, "urll": "x"}}),
    ("delivery.carrier", {"delivery": {"type": "wakeup", "carrier": "pigeon"}}),
    ("retry.max_losses", {"delivery": {"type": "wakeup"}, "retry": {"max_losses": 1}}),
    ("delivery.address", {"delivery": {"type": "wakeup", "address": "x"}}),
    ("delivery.address", {"delivery": {"type": "wakeup", "carrier": "nats", "address": "shop.*"}}),
    ("delivery.secrets", {"delivery": {"type": "wakeup", "trusted": False, "secrets": ["TOKEN"]}}),
    ("delivery.visibility_ms", {"delivery": {"type": "wakeup", "visibility_ms": 999}}),
    ("delivery.url", {"delivery": {"type": "invoke"}}),
    ("delivery.url", {"delivery": {"type": "invoke", "function": "a", "url": "http://x"}}),
    ("delivery.function", {"delivery": {"type": "invoke", "function": "a b"}}),
    ("delivery.trusted", {"delivery": {"type": "invoke", "function": "a", "trusted": False}}),
    ("delivery.command", {"delivery": {"type": "stdio", "command": []}}),
    ("delivery.launcher", {"delivery": {"type": "machine"}}),
    ("retry.max_attempts", {"retry": {"max_attempts": 0}}),
    ("retry.multiplier", {"retry": {"multiplier": 0.5}}),
    ("retry.max_delay", {"retry": {"max_delay": 1}}),
    ("limits.max_running", {"limits": {"max_running": -1}}),
    ("limits.rate.period_s", {"limits": {"rate": {"count": 1, "period_s": 0}}}),
    ("limits.burst", {"limits": {"burst": 1}}),
    ("paused", {"paused": "yes"}),
    ("delivry", {"delivry": {"type": "pull"}}),
]


async def test_a_wrong_setting_is_named_and_nothing_is_set(api: httpx.AsyncClient) -> None:
    for field, order in BAD_ORDERS:
        said = problem(await api.put("/api/v1/queues/mail", json=order), 422, "invalid")
        assert said.get("field") == field, (order, said)
    problem(await api.get("/api/v1/queues/mail"), 404, "not_found")


async def test_an_interval_given_alone_moves_the_timeout(api: httpx.AsyncClient) -> None:
    assert (await put(api, delivery=PUSH))["delivery"]["heartbeat_timeout_ms"] == 90_000
    moved = await put(api, delivery={**PUSH, "heartbeat_interval_ms": 60_000})
    assert moved["delivery"]["heartbeat_timeout_ms"] == 180_000


async def test_the_secret_of_a_push_queue_is_for_admins_and_stays(api: httpx.AsyncClient, as_role: NewClient) -> None:
    secret = (await put(api, delivery=PUSH))["signing_secret"]
    assert secret.startswith("whsec_")
    assert (await put(api, delivery={**PUSH, "dispatch_timeout_ms": 1}))["signing_secret"] == secret

    for role in ("viewer", "submitter", "operator"):
        client = await as_role(role)
        for path in ("/api/v1/queues/mail", "/api/v1/queues"):
            assert secret not in (await client.get(path)).text
    admin = await as_role("admin")
    assert (await admin.get("/api/v1/queues/mail")).json()["signing_secret"] == secret
    assert (await put(api, delivery={"type": "pull"}))["signing_secret"] is None
    assert (await put(api, delivery=PUSH))["signing_secret"] == secret, "back again, its receivers need no new one"


async def test_tasks_that_ask_for_nothing_get_the_retry_of_their_queue(
    api: httpx.AsyncClient, engine: Engine, other_connection: Any
) -> None:
    await put(api, retry=RETRY)

    asked = ("max_attempts", "max_losses")
    plain, keyed = await submit(api), await submit(api, idempotency_key="k")
    own = await submit(api, max_attempts=5)
    by_sql = await other_connection.fetchval("select windlass.submit('send', '1', 'mail')")
    told = (await api.get(f"/api/v1/tasks/{by_sql}")).json()
    batch = await api.post("/api/v1/tasks/batch", json={"tasks": [{"queue": "mail", "kind": "send"}] * 2})

    for task in (plain, keyed, told, *batch.json()["items"]):
        assert [task[name] for name in asked] == [2, 1]
    assert [own[name] for name in asked] == [5, 1]
    assert (await fail(engine, failure=CRASH)).state == "queued"
    assert (await submit(api, queue="other"))["max_attempts"] == 5


async def test_pause_resume_and_drain(api: httpx.AsyncClient, engine: Engine) -> None:
    await put(api, retry=RETRY, delivery=PULL)
    for _ in range(2):
        await submit(api)
    lease = await worker(engine, "mail")
    [running] = await engine.claim(lease)

    assert (await api.post("/api/v1/queues/mail/pause")).json()["paused"] is True
    assert await engine.claim(lease) == []
    assert (await put(api, retry=RETRY, delivery=PULL))["paused"] is True, "a new setting does not resume it"
    drained = (await api.post("/api/v1/queues/mail/drain", json={"wait_s": 0.15})).json()
    assert drained["counts"] == {"queued": 1, "running": 1}
    draining = asyncio.create_task(api.post("/api/v1/queues/mail/drain", json={"wait_s": 20}))
    await engine.complete(running)
    assert (await draining).json()["counts"] == {"queued": 1}
    resumed = (await api.post("/api/v1/queues/mail/resume")).json()
    assert (resumed["paused"], resumed["retry"], resumed["delivery"]["type"]) == (False, RETRY, "pull")
    assert len(await engine.claim(lease)) == 1


async def test_queues_of_another_namespace_are_not_touched(api: httpx.AsyncClient, as_role: NewClient) -> None:
    client = await as_role("admin", "ours")

    for method, path in [("GET", ""), ("PUT", ""), ("POST", "/pause"), ("POST", "/resume"), ("POST", "/drain")]:
        response = await client.request(method, f"/api/v1/queues/mail{path}", params={"namespace": "theirs"}, json={})
        problem(response, 403, "forbidden")
    assert (await put(client))["namespace"] == "ours"
    assert (await api.get("/api/v1/queues")).json()["items"] == []
    assert len((await api.get("/api/v1/queues", params={"namespace": "ours"})).json()["items"]) == 1


# --------------------------------------------------------------------------------------------- workers, namespaces


async def test_workers_tell_who_they_are_and_how_much_they_run(api: httpx.AsyncClient, engine: Engine) -> None:
    await submit(api)
    lease = await engine.open_lease("ada", ["mail"], kinds=["send"], labels=["gpu"], host="here", pid=7, version="1")
    await engine.open_lease("elsewhere", ["mail"], namespace="theirs")
    await engine.claim(lease)

    [seen] = (await api.get("/api/v1/workers")).json()["items"]
    assert seen.pop("expires_at") >= seen.pop("heartbeat_at") >= seen.pop("registered_at")
    assert seen.pop("id") != str(lease.id), "which is the token of all that it runs"
    assert seen == {
        "namespace": "default", "contract": "session", "name": "ada", "state": "online",
        "host": "here", "pid": 7, "version": "1", "queues": ["mail"], "kinds": ["send"], "labels": ["gpu"],
        "running": 1, "active": 1, "completed": 0, "failed": 0, "lease_s": lease.ttl_s, "offline_at": None,
        "concurrency": 0,
    }  # fmt: skip


async def test_an_operator_drains_a_worker_and_says_that_it_is_gone(
    api: httpx.AsyncClient, engine: Engine, as_role: NewClient
) -> None:
    await submit(api)
    await submit(api)
    lease = await engine.open_lease("ada", ["mail"])
    [claimed] = await engine.claim(lease)
    [here] = (await api.get("/api/v1/workers")).json()["items"]
    path = f"/api/v1/workers/{here['id']}"

    drained = (await api.post(f"{path}/drain", json={"timeout_s": 60})).json()

    assert (drained["state"], drained["running"]) == ("draining", 1)
    assert await engine.claim(lease) == []
    assert (await engine.extend_lease(lease)).drain
    gone = (await api.post(f"{path}/offline", json={})).json()
    assert (gone["state"], gone["running"]) == ("offline", 0)
    assert (await engine.tasks.get(claimed.task.id)).task.losses == 1
    for query, found in {
        "": 1,
        "?state=offline": 1,
        "?state=online,draining": 0,
        "?state=online&state=offline": 1,
    }.items():
        listed = (await api.get(f"/api/v1/workers{query}")).json()["items"]
        assert [one["id"] for one in listed] == [here["id"]] * found, query
    assert (await api.get(path)).json()["state"] == "offline"
    problem(await (await as_role("submitter", "default")).post(f"{path}/drain", json={}), 403, "forbidden")
    problem(await (await as_role("operator", "theirs")).post(f"{path}/drain", json={}), 403, "forbidden")
    problem(await api.get("/api/v1/workers/01a1e2c2-8a96-7ea5-9ca4-be147ecf5186"), 404, "not_found")


async def test_a_namespace_is_known_from_its_first_use(api: httpx.AsyncClient, as_role: NewClient) -> None:
    await submit(api, namespace="used")
    await api.put("/api/v1/namespaces/made")
    await api.put("/api/v1/namespaces/made")

    listed = (await api.get("/api/v1/namespaces")).json()["items"]
    assert [item["name"] for item in listed] == ["default", "made", "used"]
    assert (await api.get("/api/v1/namespaces/used")).json()["counts"] == {"queued": 1}
    problem(await api.get("/api/v1/namespaces/never"), 404, "not_found")
    page = (await api.get("/api/v1/namespaces", params={"limit": 2})).json()
    rest = (await api.get("/api/v1/namespaces", params={"after": page["next"]})).json()
    assert [item["name"] for item in rest["items"]] == ["used"]

    ours = await as_role("admin", "ours")
    assert [item["name"] for item in (await ours.get("/api/v1/namespaces")).json()["items"]] == ["ours"]
    for method in ("GET", "PUT"):
        problem(await ours.request(method, "/api/v1/namespaces/used"), 403, "forbidden")


# --------------------------------------------------------------------------------------------- progress, logs


async def test_progress_and_logs_of_an_attempt_are_told(api: httpx.AsyncClient, engine: Engine) -> None:
    task = await submit(api)
    [claimed] = await engine.claim(await worker(engine, "mail"))
    now = claimed.task
    assert now.lease_id is not None
    lines = tuple(Line(n, "INFO", f"line {n}", 0.0) for n in range(3))
    await engine.parts.progress.write(
        [ProgressReport(now.id, now.attempt, now.lease_id, Amount(3, 10, "reading"), None, lines)]
    )

    seen = (await api.get(f"/api/v1/tasks/{task['id']}")).json()["progress"]
    assert (seen["current"], seen["maximum"], seen["message"]) == (3, 10, "reading")
    assert (await api.get("/api/v1/tasks")).json()["items"][0]["progress"] == seen
    first = (await api.get(f"/api/v1/tasks/{task['id']}/logs", params={"limit": 2})).json()
    rest = (await api.get(f"/api/v1/tasks/{task['id']}/logs", params={"after": first["next"], "attempt": 1})).json()
    assert [line["message"] for line in first["items"] + rest["items"]] == ["line 0", "line 1", "line 2"]
    assert rest["next"] is None
    problem(await api.get(f"/api/v1/tasks/{task['id']}/logs", params={"after": "AAAA"}), 400, "malformed")


# --------------------------------------------------------------------------------------------- outbox, metrics


async def test_dead_effects_are_listed_retried_and_discarded(
    api: httpx.AsyncClient, engine: Engine, as_role: NewClient
) -> None:
    task = await submit(api)
    ids = [engine.parts.randomness.new_id() for _ in range(3)]
    async with engine.store.begin() as tx:
        effects = [Effect(id_, "push", "default", UUID(task["id"]), 1, {}) for id_ in ids]
        await tx.outbox.insert_outbox(effects)
        for id_ in ids[:2]:
            await tx.outbox.dead_letter_effect(id_, "nobody there")

    async def dead() -> list[str]:
        return [item["id"] for item in (await api.get("/api/v1/outbox", params={"dead": True})).json()["items"]]

    assert await dead() == [str(id_) for id_ in sorted(ids[:2], reverse=True)]
    assert len((await api.get("/api/v1/outbox")).json()["items"]) == 3
    page = (await api.get("/api/v1/outbox", params={"limit": 2})).json()
    assert len((await api.get("/api/v1/outbox", params={"after": page["next"]})).json()["items"]) == 1

    stranger = await as_role("admin", "theirs")
    problem(await stranger.post(f"/api/v1/outbox/{ids[0]}/retry"), 403, "forbidden")
    revived = (await api.post(f"/api/v1/outbox/{ids[0]}/retry")).json()
    assert (revived["dead_at"], revived["tries"]) == (None, 0)
    assert (await api.delete(f"/api/v1/outbox/{ids[1]}")).json()["error"] == "nobody there"
    assert await dead() == []
    problem(await api.post(f"/api/v1/outbox/{ids[2]}/retry"), 409, "invalid_state")
    problem(await api.delete(f"/api/v1/outbox/{ids[2]}"), 409, "invalid_state")
    problem(await api.delete(f"/api/v1/outbox/{ids[1]}"), 404, "not_found")


async def test_metrics_need_a_key_of_all_namespaces_unless_they_are_opened(
    api: httpx.AsyncClient, nobody: httpx.AsyncClient, as_role: NewClient, engine: Engine
) -> None:
    await submit(api)
    response = await api.get("/metrics")
    assert response.status_code == 200
    assert 'windlass_queue_depth{queue="mail",state="queued"} 1.0' in response.text

    problem(await nobody.get("/metrics"), 401, "unauthenticated")
    problem(await (await as_role("admin", "ours")).get("/metrics"), 403, "forbidden")
    assert (await (await as_role("viewer", None)).get("/metrics")).status_code == 200
    opened = httpx.ASGITransport(make_api(engine, open_metrics=True))
    async with httpx.AsyncClient(transport=opened, base_url="http://windlass") as client:
        assert (await client.get("/metrics")).status_code == 200
        problem(await client.get("/api/v1/tasks"), 401, "unauthenticated")


async def test_a_queue_may_have_any_name_without_a_slash(api: httpx.AsyncClient) -> None:
    for name in ("a b", "ü", "50%", "x" * 200, "a?b#c"):
        assert (await put(api, quote(name, safe="")))["name"] == name
    problem(await api.put("/api/v1/queues/" + "x" * 201, json={}), 422, "invalid")
    problem(await api.put("/api/v1/queues/a%00b", json={}), 422, "invalid")
