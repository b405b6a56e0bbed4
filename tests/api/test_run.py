"""Runs over HTTP: tasks that name each other."""

from __future__ import annotations

from typing import Any

import httpx
from tests.api.conftest import NewClient, problem
from tests.kit.work import settle, worker

from windlass import Engine

DIAMOND = [
    {"name": "a", "kind": "k", "payload": 1},
    {"name": "b", "kind": "k", "after": ["a"]},
    {"name": "c", "kind": "k", "after": ["a"]},
    {"name": "d", "kind": "k", "after": ["b", "c"]},
]


async def run(api: httpx.AsyncClient, tasks: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    headers = fields.pop("headers", {})
    response = await api.post("/api/v1/runs", json={"tasks": tasks, **fields}, headers=headers)
    assert response.status_code == 201, response.text
    made: dict[str, Any] = response.json()
    return made


async def test_tasks_of_a_run_wait_for_those_that_they_name(api: httpx.AsyncClient, engine: Engine) -> None:
    made = await run(api, DIAMOND)

    assert [task["state"] for task in made["tasks"]] == ["queued", "blocked", "blocked", "blocked"]
    assert made["counts"] == {"queued": 1, "blocked": 3}
    assert set(made["names"]) == {"a", "b", "c", "d"}
    lease = await worker(engine)
    order = []
    while claimed := await engine.claim(lease, 10):
        order.append({str(one.task.id) for one in claimed})
        for one in claimed:
            await engine.complete(one)
        await settle(engine)
    assert order == [{made["names"]["a"]}, {made["names"]["b"], made["names"]["c"]}, {made["names"]["d"]}]

    seen = (await api.get(f"/api/v1/runs/{made['id']}")).json()
    assert seen["counts"] == {"succeeded": 4}
    assert {task["id"] for task in seen["tasks"]} == set(made["names"].values())
    assert all(task["run_id"] == made["id"] for task in seen["tasks"])


async def test_a_waiting_task_says_for_whom_it_waits(api: httpx.AsyncClient) -> None:
    names = (await run(api, DIAMOND))["names"]

    items = (await api.get(f"/api/v1/tasks/{names['b']}/why-waiting")).json()["items"]
    assert [(item["reason"], names["a"] in item["message"]) for item in items] == [("dependency", True)]


async def test_a_run_is_cancelled_as_one(api: httpx.AsyncClient) -> None:
    made = await run(api, DIAMOND)

    cancelled = (await api.post(f"/api/v1/runs/{made['id']}/cancel", json={"reason": "no"})).json()
    assert (cancelled["asked"], cancelled["counts"]) == (4, {"cancelled": 4})
    again = (await api.post(f"/api/v1/runs/{made['id']}/cancel")).json()
    assert again["asked"] == 0


async def test_the_same_key_again_is_the_same_run(api: httpx.AsyncClient) -> None:
    headers = {"Idempotency-Key": "r"}
    first, again = await run(api, DIAMOND, headers=headers), await run(api, DIAMOND, headers=headers)

    assert again == first
    assert len((await api.get("/api/v1/runs")).json()["items"]) == 1
    other = [{**DIAMOND[0], "payload": 2}, *DIAMOND[1:]]
    problem(await api.post("/api/v1/runs", json={"tasks": other}, headers=headers), 409, "conflict")


async def test_a_run_that_makes_no_sense_is_refused_and_nothing_is_written(api: httpx.AsyncClient) -> None:
    task = {"kind": "k"}
    bad: list[tuple[str, list[dict[str, Any]]]] = [
        ("tasks", []),
        ("tasks[1].name", [{**task, "name": "a"}, {**task, "name": "a"}]),
        ("tasks[0].after", [{**task, "after": ["nobody"]}]),
        ("after", [{**task, "name": "a", "after": ["b"]}, {**task, "name": "b", "after": ["a"]}]),
        ("after", [{**task, "name": "a", "after": ["a"]}]),
        ("tasks[0].kind", [{}]),
        ("tasks[0].run_id", [{**task, "run_id": "x"}]),
    ]
    for field, tasks in bad:
        said = problem(await api.post("/api/v1/runs", json={"tasks": tasks}), 422, "invalid")
        assert said.get("field") == field, said
    assert (await api.get("/api/v1/tasks")).json()["items"] == []
    assert (await api.get("/api/v1/runs")).json()["items"] == []


async def test_runs_are_listed_page_by_page_and_by_namespace(api: httpx.AsyncClient, as_role: NewClient) -> None:
    made = [(await run(api, DIAMOND[:1]))["id"] for _ in range(3)]
    theirs = await run(api, DIAMOND[:1], namespace="theirs")

    page = (await api.get("/api/v1/runs", params={"limit": 2})).json()
    rest = (await api.get("/api/v1/runs", params={"limit": 2, "after": page["next"]})).json()
    assert [item["id"] for item in page["items"] + rest["items"]] == sorted(made, reverse=True)
    assert page["items"][0]["counts"] == {"queued": 1}
    client = await as_role("admin", "ours")
    problem(await client.get(f"/api/v1/runs/{theirs['id']}"), 403, "forbidden")
    problem(await client.post(f"/api/v1/runs/{theirs['id']}/cancel"), 403, "forbidden")
    problem(await client.get("/api/v1/runs", params={"namespace": "theirs"}), 403, "forbidden")
    problem(await client.post("/api/v1/runs", json={"tasks": DIAMOND, "namespace": "theirs"}), 403, "forbidden")
    problem(await api.get("/api/v1/runs/0190f5fe-7c00-7a00-8000-000000000000"), 404, "not_found")
