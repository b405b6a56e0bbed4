"""Tasks over HTTP: the fixed forms, bad input, idempotency, paging, cancel, retry and replay."""

from __future__ import annotations

import asyncio
import re
from contextlib import nullcontext
from typing import Any
from uuid import UUID

import httpx
import pytest
from tests.api.conftest import problem
from tests.kit.work import CRASH, FATAL, poll, worker

from windlass import Engine, Policy, Task
from windlass.core import command
from windlass.core.delivery import PULL, RetryForm
from windlass.core.queue import QueueConfig
from windlass.engine.claim import claimer
from windlass.net.ids import ulid
from windlass.store.pool import Session

FIXED = [
    "id", "namespace", "queue", "kind", "state", "attempt", "failures", "losses", "payload", "result", "error",
    "reason", "progress", "created_at", "available_at", "started_at", "finished_at",
]  # fmt: skip


async def submit(api: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    response = await api.post(
        "/api/v1/tasks", json={"queue": "mail", "kind": "send", "payload": {"to": "ada"}, **fields}
    )
    assert response.status_code == 201, response.text
    task: dict[str, Any] = response.json()
    return task


async def fail(engine: Engine, queue: str = "mail", failure: Any = FATAL) -> Task:
    [claimed] = await engine.claim(await worker(engine, queue))
    return await engine.fail(claimed, failure)


async def test_a_task_has_the_fixed_form(api: httpx.AsyncClient) -> None:
    task = await submit(api)

    assert list(task)[: len(FIXED)] == FIXED
    assert (task["state"], task["payload"], task["result"], task["error"]) == ("queued", {"to": "ada"}, None, None)
    assert (await api.get(f"/api/v1/tasks/{task['id']}")).json() == task


@pytest.mark.parametrize("case", ["plain", "with the policy of its queue", "handed to a waiting worker"])
async def test_the_answer_to_a_new_task_is_what_was_written_and_nothing_is_read(
    api: httpx.AsyncClient, engine: Engine, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.setattr(claimer, "HAND_OFF_COST_MAX_S", 60.0)  # however slow this machine is
    if "policy" in case:
        await engine.queues.put("mail", delivery=PULL, limits=QueueConfig(), retry=RetryForm(max_attempts=2))
    lease = await worker(engine, "mail")
    await submit(api)  # namespaces and kinds are read once
    await engine.complete((await engine.claim(lease))[0])
    statements: list[str] = []
    fetch = Session.fetch

    async def noted(self: Session, query: str, *args: object) -> Any:
        statements.append(query)
        return await fetch(self, query, *args)

    async with poll(engine, lease) if "handed" in case else nullcontext():
        with monkeypatch.context() as patch:
            patch.setattr(Session, "fetch", noted)
            task = await submit(api)
        assert statements == ["insert_started_tasks" if "handed" in case else "insert_plain_task"]
        assert (await api.get(f"/api/v1/tasks/{task['id']}")).json() == task
    assert (task["state"], task["max_attempts"]) == (
        "running" if "handed" in case else "queued", 2 if "policy" in case else 5
    )  # fmt: skip


async def test_an_id_is_read_as_uuid_and_as_prefixed_ulid(api: httpx.AsyncClient) -> None:
    task = await submit(api)

    spelled = ulid("task", UUID(task["id"]))
    assert (await api.get(f"/api/v1/tasks/{spelled}")).json() == task
    problem(await api.get("/api/v1/tasks/nonsense"), 400, "malformed")
    problem(await api.get("/api/v1/tasks/0190f5fe-7c00-7a00-8000-000000000000"), 404, "not_found")


async def test_everything_that_may_be_said_of_a_task_is_kept(api: httpx.AsyncClient) -> None:
    said = {
        "payload": [1, {"deep": None}], "delay_s": 60, "priority": -5, "idempotency_key": "k", "max_attempts": 5,
        "timeout_s": 2.5, "deadline_at": "2030-01-01T00:00:00Z", "wire": {"assetId": "a"}, "concurrency_key": "c",
        "requires": ["gpu"], "max_losses": 0,
    }  # fmt: skip
    task = await submit(api, **said)

    kept = {name: task[name] for name in said if name != "delay_s"}
    assert kept == {name: value for name, value in said.items() if name != "delay_s"}
    assert task["available_at"] > task["created_at"]


async def test_a_result_is_json_and_not_text(api: httpx.AsyncClient, engine: Engine) -> None:
    task = await submit(api)
    [claimed] = await engine.claim(await worker(engine, "mail"))
    await engine.complete(claimed, b'{"ok": true}')

    done = (await api.get(f"/api/v1/tasks/{task['id']}")).json()
    assert (done["state"], done["result"], done["attempt"]) == ("succeeded", {"ok": True}, 1)


async def test_a_failure_tells_category_message_and_reason(api: httpx.AsyncClient, engine: Engine) -> None:
    task = await submit(api)
    await fail(engine, failure=CRASH)

    seen = (await api.get(f"/api/v1/tasks/{task['id']}")).json()
    assert (seen["state"], seen["failures"], seen["reason"]) == ("queued", 1, "ValueError")
    assert seen["error"] == {
        "category": "USER_CODE", "message": "it crashed", "reason": "ValueError", "trace": None, "retryable": True
    }  # fmt: skip


BAD_FIELDS = [
    ("queue", ""), ("queue", 1), ("queue", "a\x00"), ("queue", "x" * 201), ("queue", None), ("kind", ""),
    ("kind", None), ("namespace", ""), ("namespace", 1), ("delay_s", -1), ("delay_s", "1"), ("delay_s", 1e300),
    ("priority", 101), ("priority", 1.5), ("idempotency_key", ""), ("idempotency_key", "x" * 501), ("max_attempts", 0),
    ("max_attempts", 10**30), ("timeout_s", 0), ("timeout_s", True), ("deadline_at", "soon"),
    ("deadline_at", "2030-01-01T00:00:00"), ("deadline_at", "9999-12-31T00:00:00Z"), ("run_id", "x"), ("wire", []),
    ("wire", "x"), ("requires", "gpu"), ("requires", [""]), ("unknown", 1), ("max_losses", -1),
]  # fmt: skip


async def test_a_bad_field_is_named_and_nothing_is_written(api: httpx.AsyncClient) -> None:
    for field, value in BAD_FIELDS:
        response = await api.post(
            "/api/v1/tasks", json={"queue": "mail", "kind": "send", "payload": None, field: value}
        )

        assert response.status_code in (400, 422), (field, value, response.text)
        said = problem(response, response.status_code, response.json()["code"])
        assert re.split(r"[.\[]", said["field"])[0] == field, (field, value, said)
    assert (await api.get("/api/v1/tasks")).json() == {"items": [], "next": None}


HOSTILE = [
    b"", b"{", b"[]", b"null", b"\xff", b'{"kind": "\xff"}', b"[" * 100_000,
    b'{"kind": "a", "payload": ' + b"[" * 90_000,
    b'{"kind": "a", "payload": "\xff"}', b'{"kind": "a", "kind": 1}', b'{"kind": "a"} {}', b"NaN",
    b'{"kind": "\\ud800"}',
]  # fmt: skip


async def test_a_hostile_body_is_refused_and_nothing_is_written(api: httpx.AsyncClient) -> None:
    for body in HOSTILE:
        response = await api.post("/api/v1/tasks", content=body)

        assert response.status_code in (400, 422), (body[:40], response.text)
        assert response.headers["content-type"] == "application/problem+json"
        assert "Traceback" not in response.text
    assert (await api.get("/api/v1/tasks")).json()["items"] == []


async def test_a_payload_comes_back_as_it_was_sent(api: httpx.AsyncClient) -> None:
    for text in (b'"\\u0000"', b'"\\ud83d\\ude00"', b"1e400", b'{"a": 1, "a": 2}', b"123456789012345678901234567890"):
        response = await api.post("/api/v1/tasks", content=b'{"kind": "k", "payload": ' + text + b"}")
        assert response.status_code == 201, response.text
        assert b'"payload":' + text + b"," in response.content


async def test_a_body_over_two_mebibytes_is_413(api: httpx.AsyncClient) -> None:
    body = b'{"kind": "k", "payload": "' + b"x" * (2 * 1024 * 1024) + b'"}'

    problem(await api.post("/api/v1/tasks", content=body), 413, "too_large")

    async def parts() -> Any:  # without a length that tells
        for start in range(0, len(body), 65536):
            yield body[start : start + 65536]

    problem(await api.post("/api/v1/tasks", content=parts()), 413, "too_large")
    assert (await api.get("/api/v1/tasks")).json()["items"] == []


# --------------------------------------------------------------------------------------------- idempotency, batches


async def test_a_hundred_posts_with_one_key_make_one_task(api: httpx.AsyncClient) -> None:
    headers = {"Idempotency-Key": "once"}
    body = {"queue": "mail", "kind": "send", "payload": 1}

    answers = await asyncio.gather(*(api.post("/api/v1/tasks", json=body, headers=headers) for _ in range(100)))

    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert len((await api.get("/api/v1/tasks")).json()["items"]) == 1


async def test_a_key_with_other_content_is_a_conflict(api: httpx.AsyncClient) -> None:
    first = await submit(api, idempotency_key="k")

    response = await api.post(
        "/api/v1/tasks", json={"queue": "mail", "kind": "other"}, headers={"Idempotency-Key": "k"}
    )

    assert problem(response, 409, "conflict")["details"]["task_id"] == first["id"]
    chosen = {"queue": "mail", "kind": "send", "payload": {"to": "ada"}, "idempotency_key": "k"}
    both = await api.post("/api/v1/tasks", json=chosen, headers={"Idempotency-Key": "of-the-request"})
    assert both.json()["id"] == first["id"]


async def test_a_key_that_cannot_be_one_is_refused_in_every_place(api: httpx.AsyncClient) -> None:
    task = {"queue": "mail", "kind": "send"}
    for path, body in (("tasks", task), ("tasks/batch", {"tasks": [task]}), ("runs", {"tasks": [task]})):
        for key in ("k" * 401, "a key", ""):
            response = await api.post(f"/api/v1/{path}", json=body, headers={"Idempotency-Key": key})
            assert problem(response, 422, "invalid")["field"] == "idempotency-key", (path, key)
        longest = await api.post(f"/api/v1/{path}", json=body, headers={"Idempotency-Key": path[-1] * 400})
        assert longest.status_code == 201


async def test_a_batch_is_all_or_nothing(api: httpx.AsyncClient) -> None:
    good = {"queue": "mail", "kind": "send"}

    made = await api.post("/api/v1/tasks/batch", json={"tasks": [good, {**good, "payload": 2}]})
    assert made.status_code == 201
    assert [task["payload"] for task in made.json()["items"]] == [None, 2]

    bad = await api.post("/api/v1/tasks/batch", json={"tasks": [good, {**good, "priority": 1000}]})
    assert problem(bad, 422, "invalid")["field"] == "tasks[1].priority"
    taken = {**good, "payload": 3, "idempotency_key": "k"}
    conflict = await api.post("/api/v1/tasks/batch", json={"tasks": [taken, {**taken, "payload": 4}]})
    problem(conflict, 409, "conflict")
    assert len((await api.get("/api/v1/tasks")).json()["items"]) == 2


async def test_a_batch_sent_twice_with_a_key_is_one_batch(api: httpx.AsyncClient) -> None:
    body = {"tasks": [{"queue": "mail", "kind": "send", "payload": n} for n in range(3)]}

    first = await api.post("/api/v1/tasks/batch", json=body, headers={"Idempotency-Key": "b"})
    again = await api.post("/api/v1/tasks/batch", json=body, headers={"Idempotency-Key": "b"})

    assert first.json() == again.json()
    assert len((await api.get("/api/v1/tasks")).json()["items"]) == 3


# --------------------------------------------------------------------------------------------- lists


async def test_paging_neither_loses_nor_repeats_a_task_while_others_are_submitted(api: httpx.AsyncClient) -> None:
    there = [(await submit(api, payload=n))["id"] for n in range(25)]
    seen: list[str] = []
    cursor: str | None = None
    while True:
        page = (await api.get("/api/v1/tasks", params={"limit": 4, **({"after": cursor} if cursor else {})})).json()
        seen += [task["id"] for task in page["items"]]
        cursor = page["next"]
        if cursor is None:
            break
        await submit(api, payload="new")

    assert len(seen) == len(set(seen))
    assert [task_id for task_id in seen if task_id in there] == sorted(there, reverse=True)


async def test_tasks_are_found_by_every_filter(api: httpx.AsyncClient, engine: Engine) -> None:
    failed = await submit(api, queue="mail", kind="send")
    await fail(engine)
    other = await submit(api, queue="web", kind="fetch", run_id="0190f5fe-7c00-7a00-8000-000000000001")

    async def found(**params: Any) -> list[str]:
        response = await api.get("/api/v1/tasks", params=params)
        assert response.status_code == 200, response.text
        return [task["id"] for task in response.json()["items"]]

    assert await found() == [other["id"], failed["id"]]
    assert await found(state="failed") == [failed["id"]]
    assert await found(state="failed,queued") == await found(state=["failed", "queued"]) == [other["id"], failed["id"]]
    assert await found(queue="web") == await found(kind="fetch") == [other["id"]]
    assert await found(run_id="0190f5fe-7c00-7a00-8000-000000000001") == [other["id"]]
    assert await found(created_since=other["created_at"]) == [other["id"]]
    assert await found(created_before=other["created_at"]) == [failed["id"]]
    assert await found(namespace="elsewhere") == []


BAD_QUERIES = [
    ("state", "done"), ("limit", "0"), ("limit", "501"), ("limit", "x"), ("after", "!"), ("after", "AAAA"),
    ("run_id", "x"), ("created_since", "yesterday"), ("created_since", "2030-01-01T00:00:00"), ("sort", "id"),
    ("queue", ""), ("after", "é"), ("limit", "1e9"), ("queue", "\x00"), ("created_since", "0.5"), ("limit", "null"),
    ("created_before", "null"),
]  # fmt: skip


async def test_a_bad_query_is_400_and_names_the_parameter(api: httpx.AsyncClient) -> None:
    for name, value in BAD_QUERIES:
        said = problem(await api.get("/api/v1/tasks", params={name: value}), 400, "malformed")

        assert said["field"].split("[")[0] == name, (name, value, said)


async def test_a_list_leaves_long_payloads_out_and_says_so(api: httpx.AsyncClient) -> None:
    task = await submit(api, payload="x" * 70_000)

    [listed] = (await api.get("/api/v1/tasks")).json()["items"]
    assert (listed["payload"], listed["omitted"]) == (None, ["payload"])
    assert task["omitted"] == []


# --------------------------------------------------------------------------------------------- cancel, history


async def test_cancel_ends_what_waits_with_its_reason(api: httpx.AsyncClient) -> None:
    task = await submit(api)

    ended = (await api.post(f"/api/v1/tasks/{task['id']}/cancel", json={"reason": "a mistake"})).json()
    assert (ended["state"], ended["reason"], ended["error"]["category"]) == ("cancelled", "a mistake", "CANCELLED")
    again = await api.post(f"/api/v1/tasks/{task['id']}/cancel")
    assert again.json() == ended


async def test_cancel_asks_what_runs_and_force_ends_it(api: httpx.AsyncClient, engine: Engine) -> None:
    task = await submit(api)
    await engine.claim(await worker(engine, "mail"))

    asked = (await api.post(f"/api/v1/tasks/{task['id']}/cancel", json={"reason": "stop"})).json()
    assert (asked["state"], asked["reason"]) == ("running", "stop")
    assert asked["cancel_requested_at"] is not None
    forced = (await api.post(f"/api/v1/tasks/{task['id']}/cancel", json={"force": True})).json()
    assert forced["state"] == "cancelled"


async def test_what_has_ended_cannot_be_cancelled(api: httpx.AsyncClient, engine: Engine) -> None:
    task = await submit(api)
    await fail(engine)

    problem(await api.post(f"/api/v1/tasks/{task['id']}/cancel", json={}), 409, "invalid_state")


async def test_the_history_tells_every_attempt(api: httpx.AsyncClient, engine: Engine) -> None:
    task = await submit(api)
    await fail(engine, failure=CRASH)
    await api.post(f"/api/v1/tasks/{task['id']}/retry")
    await fail(engine)

    history = (await api.get(f"/api/v1/tasks/{task['id']}/history")).json()
    assert [line["what"] for line in history["items"]] == ["submitted", "failed", "made_available", "failed"]
    assert [(a["number"], a["outcome"], a["worker"], a["error"]) for a in history["attempts"]] == [
        (1, "failed", "ada", "it crashed"),
        (2, "failed", "ada", "it will never work"),
    ]
    assert all(a["started_at"] <= a["ended_at"] for a in history["attempts"])


async def test_a_running_attempt_is_in_the_history(api: httpx.AsyncClient, engine: Engine) -> None:
    task = await submit(api)
    await engine.claim(await worker(engine, "mail"))

    [attempt] = (await api.get(f"/api/v1/tasks/{task['id']}/history")).json()["attempts"]
    assert (attempt["number"], attempt["outcome"], attempt["ended_at"]) == (1, None, None)


async def test_a_task_says_why_it_waits(api: httpx.AsyncClient) -> None:
    task = await submit(api, delay_s=60)

    items = (await api.get(f"/api/v1/tasks/{task['id']}/why-waiting")).json()["items"]
    assert [item["reason"] for item in items] == ["scheduled", "no_capable_worker"]
    assert items[0]["until"] == task["available_at"]


# --------------------------------------------------------------------------------------------- retry, replay


async def test_retry_makes_what_waits_for_its_retry_available_now(api: httpx.AsyncClient, engine: Engine) -> None:
    task = await submit(api)
    await fail(engine, failure=CRASH)
    assert await engine.claim(await worker(engine, "mail")) == []

    retried = (await api.post(f"/api/v1/tasks/{task['id']}/retry")).json()

    assert (retried["id"], retried["state"], retried["failures"]) == (task["id"], "queued", 1)
    [claimed] = await engine.claim(await worker(engine, "mail"))
    assert str(claimed.task.id) == task["id"]


async def test_retry_does_an_ended_task_again_as_a_new_one_and_only_once(
    api: httpx.AsyncClient, engine: Engine
) -> None:
    task = await submit(api, priority=3, max_attempts=2, wire={"a": 1}, idempotency_key="mine", requires=["gpu"])
    await api.post(f"/api/v1/tasks/{task['id']}/cancel")

    answers = await asyncio.gather(*(api.post(f"/api/v1/tasks/{task['id']}/retry") for _ in range(10)))

    new = answers[0].json()
    assert {answer.json()["id"] for answer in answers} == {new["id"]}
    assert new["id"] != task["id"]
    same = ("queue", "kind", "payload", "priority", "max_attempts", "wire", "requires", "namespace")
    assert {name: new[name] for name in same} == {name: task[name] for name in same}
    assert (new["replay_of"], new["state"], new["attempt"]) == (task["id"], "queued", 0)
    assert (await api.get(f"/api/v1/tasks/{task['id']}")).json()["state"] == "cancelled"


async def test_retry_resumes_what_is_parked(api: httpx.AsyncClient, engine: Engine) -> None:
    task = await submit(api)
    [claimed] = await engine.claim(await worker(engine, "mail"))
    assert claimed.task.lease_id is not None
    await engine.report([command.Park(claimed.task.id, claimed.task.attempt, claimed.task.lease_id, FATAL)])

    assert (await api.post(f"/api/v1/tasks/{task['id']}/retry")).json()["state"] == "queued"


@pytest.mark.parametrize("state", ["running", "succeeded"])
async def test_there_is_nothing_to_retry_in_what_runs_or_succeeded(
    api: httpx.AsyncClient, engine: Engine, state: str
) -> None:
    task = await submit(api)
    [claimed] = await engine.claim(await worker(engine, "mail"))
    if state == "succeeded":
        await engine.complete(claimed)

    problem(await api.post(f"/api/v1/tasks/{task['id']}/retry"), 409, "invalid_state")


async def test_failed_tasks_are_replayed_by_filter_in_bounded_parts_and_once(
    api: httpx.AsyncClient, engine: Engine
) -> None:
    failed = []
    for number in range(5):
        failed.append((await submit(api, payload=number))["id"])
        await fail(engine)
    await submit(api, kind="other")
    await fail(engine)

    async def replay(**order: Any) -> dict[str, Any]:
        response = await api.post("/api/v1/tasks/replay", json={"kind": "send", **order})
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    counted = await replay(dry_run=True)
    assert (counted["matched"], counted["task_ids"], counted["next"]) == (5, [], None)
    assert (await api.get("/api/v1/tasks", params={"state": "queued"})).json()["items"] == []

    first = await replay(limit=3)
    rest = await replay(limit=3, after=first["next"])
    again = await replay()
    assert (first["matched"], rest["matched"], rest["next"]) == (3, 2, None)
    assert again["task_ids"] == first["task_ids"] + rest["task_ids"]
    queued = (await api.get("/api/v1/tasks", params={"state": "queued"})).json()["items"]
    assert sorted(task["replay_of"] for task in queued) == sorted(failed)


async def test_only_what_did_not_succeed_is_replayed(api: httpx.AsyncClient) -> None:
    for state in (["succeeded"], ["failed", "running"]):
        said = problem(await api.post("/api/v1/tasks/replay", json={"state": state}), 422, "invalid")
        assert said["field"] == f"state[{len(state) - 1}]"
    said = problem(await api.post("/api/v1/tasks/replay", json={"state": []}), 422, "invalid")
    assert said["field"] == "state"
    document = (await api.get("/api/v1/openapi.json")).json()
    [order] = [schema for name, schema in document["components"]["schemas"].items() if name.endswith("ReplayOrder")]
    assert sorted(order["properties"]["state"]["items"]["enum"]) == ["cancelled", "failed", "skipped"]


# --------------------------------------------------------------------------------------------- traces


async def test_the_trace_of_a_request_is_that_of_its_tasks_and_nonsense_is_none(
    api: httpx.AsyncClient, engine: Engine
) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    for said, carried in ((trace, trace), ("nonsense", None)):
        answer = await api.post("/api/v1/tasks", json={"kind": "send"}, headers={"traceparent": said})
        assert answer.status_code == 201
        assert (await engine.tasks.get(UUID(answer.json()["id"]))).task.trace == carried


async def test_a_task_that_is_submitted_by_name_gets_what_its_workers_declare(
    api: httpx.AsyncClient, engine: Engine
) -> None:
    await api.put("/api/v1/queues/mail", json={"retry": {"max_attempts": 7}})
    await engine.declare_kinds("shop", {"send": Policy(max_attempts=2, timeout_s=60.0, retry_delay_s=9.0)})
    plain = await submit(api, kind="send", queue="mail")
    assert (plain["max_attempts"], plain["timeout_s"]) == (2, 60.0)
    own = await submit(api, kind="send", queue="mail", max_attempts=4)
    assert (own["max_attempts"], own["timeout_s"]) == (4, 60.0)
    assert (await submit(api, kind="other", queue="mail"))["max_attempts"] == 7
    batch = (await api.post("/api/v1/tasks/batch", json={"tasks": [{"kind": "send"}, {"kind": "other"}]})).json()
    assert [task["max_attempts"] for task in batch["items"]] == [2, 5]
