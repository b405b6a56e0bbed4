"""Schedules over HTTP: made once, changed in part, paused, triggered, previewed, deleted."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from tests.api.conftest import NewClient, problem

from windlass import Engine
from windlass.core.schedule import ScheduleSpec
from windlass.engine.read.metrics import Tally

S = "/api/v1/schedules"


async def create(api: httpx.AsyncClient, **order: Any) -> dict[str, Any]:
    response = await api.post(S, json={"kind": "report", "cron": "0 9 * * MON", **order})
    assert response.status_code == 201, response.text
    made: dict[str, Any] = response.json()
    return made


async def test_what_is_asked_for_comes_back_by_id_and_by_name(api: httpx.AsyncClient) -> None:
    order = {
        "name": "weekly", "timezone": "Europe/Rome", "queue": "mail", "payload": {"to": ["ada"]}, "priority": -3,
        "concurrency_key": "ada", "retry": {"max_attempts": 2, "max_losses": 0, "timeout_s": 9.5}, "overlap": "skip",
        "max_catchup": 0, "paused": True,
    }  # fmt: skip
    made = await create(api, **order)
    assert {field: made[field] for field in order} == order
    assert (made["kind"], made["cron"], made["namespace"], made["fired"]) == ("report", "0 9 * * MON", "default", 0)
    next_fire = datetime.fromisoformat(made["next_fire_at"])
    assert (next_fire.weekday(), next_fire.hour in (7, 8)) == (0, True)
    for which in (made["id"], "weekly"):
        assert (await api.get(f"{S}/{which}")).json() == made
    assert (await api.get(S)).json() == {"items": [made], "next": None}
    assert (await api.get(S, params={"queue": "other"})).json()["items"] == []


async def test_the_same_request_again_is_the_same_schedule(api: httpx.AsyncClient) -> None:
    order = {"kind": "report", "cron": "@daily"}
    first, again, other = [
        await api.post(S, json=order, headers={"Idempotency-Key": key}) for key in ("one", "one", "two")
    ]
    assert first.json()["id"] == again.json()["id"] != other.json()["id"]
    await create(api, name="mine")
    await create(api, name="mine")
    problem(await api.post(S, json={"kind": "other", "cron": "@daily", "name": "mine"}), 409, "conflict")


async def test_a_change_changes_only_what_is_named(api: httpx.AsyncClient) -> None:
    made = await create(api, name="weekly", payload=1, retry={"max_attempts": 2}, concurrency_key="a")
    changed = (await api.patch(f"{S}/weekly", json={"payload": [2], "overlap": "queue"})).json()
    assert changed == {**made, "payload": [2], "overlap": "queue", "updated_at": changed["updated_at"]}
    cleared = (await api.patch(f"{S}/weekly", json={"retry": None, "concurrency_key": None, "name": "other"})).json()
    assert (cleared["retry"], cleared["concurrency_key"], cleared["name"]) == (None, None, "other")
    later = (await api.patch(f"{S}/other", json={"next_fire_at": "2090-01-01T00:00:00Z"})).json()
    assert later["next_fire_at"] == "2090-01-01T00:00:00Z"
    problem(await api.get(f"{S}/weekly"), 404, "not_found")


async def test_pause_resume_trigger_tasks_and_delete(api: httpx.AsyncClient, engine: Engine) -> None:
    made = await create(api, name="a name/with a slash?")
    name = "a%20name%2Fwith%20a%20slash%3F"
    path = f"{S}/{made['id']}"
    assert (await api.post(f"{path}/pause", json={})).json()["paused"] is True
    assert (await api.post(f"{path}/resume", json={})).json()["paused"] is False
    keyed = {"Idempotency-Key": "now"}
    first, again = [(await api.post(f"{path}/trigger", json={}, headers=keyed)).json() for _ in range(2)]
    second = (await api.post(f"{path}/trigger", json={})).json()
    assert first == again
    page = (await api.get(f"{path}/tasks", params={"limit": 1})).json()
    rest = (await api.get(f"{path}/tasks", params={"after": page["next"]})).json()
    assert {task["id"] for task in (*page["items"], *rest["items"])} == {first["task_id"], second["task_id"]}
    assert rest["next"] is None
    assert (await api.delete(path)).json()["id"] == made["id"]
    problem(await api.get(path), 404, "not_found")
    assert (await api.get(f"{S}/{name}")).status_code == 404
    assert (await engine.tasks.get(UUID(first["task_id"]))).task.kind == "report"


async def test_a_preview_shows_both_times(api: httpx.AsyncClient) -> None:
    await create(api, name="nightly", cron="30 1 * * *", timezone="America/New_York")
    query = {"count": 2, "after": "2090-11-05T00:00:00Z"}
    preview = (await api.get(f"{S}/nightly/preview", params=query)).json()
    assert preview == {
        "cron": "30 1 * * *", "timezone": "America/New_York",
        "fires": ["2090-11-05T05:30:00Z", "2090-11-06T06:30:00Z"],
        "local": ["2090-11-05T01:30:00-04:00", "2090-11-06T01:30:00-05:00"],
    }  # fmt: skip
    other = await api.get("/api/v1/cron", params={**query, "cron": "30 1 * * *", "timezone": "America/New_York"})
    assert other.json() == preview
    put_off = "2091-01-01T00:00:00Z"
    await api.patch(f"{S}/nightly", json={"next_fire_at": put_off})
    assert (await api.get(f"{S}/nightly/preview")).json()["fires"][:2] == [put_off, "2091-01-01T06:30:00Z"]
    for count in (0, 1001):
        assert (await api.get("/api/v1/cron", params={"cron": "@daily", "count": count})).status_code in (400, 422)


@pytest.mark.parametrize(
    ("order", "field"),
    [
        ({"cron": "0 9 * *"}, "cron"),
        ({"cron": "0 0 31 2 *"}, "cron"),
        ({"timezone": "Mars/Base"}, "timezone"),
        ({"overlap": "sometimes"}, "overlap"),
        ({"max_catchup": 10001}, "max_catchup"),
        ({"unknown": 1}, "unknown"),
    ],
)
async def test_what_cannot_be_is_refused_by_field(api: httpx.AsyncClient, order: dict[str, Any], field: str) -> None:
    said = problem(await api.post(S, json={"kind": "report", "cron": "@daily", **order}), 422, "invalid")
    assert field in str(said)
    assert (await api.get(S)).json()["items"] == []


async def test_roles_and_namespaces(api: httpx.AsyncClient, as_role: NewClient, engine: Engine) -> None:
    made = await create(api, name="weekly")
    viewer, submitter, operator = [await as_role(role) for role in ("viewer", "submitter", "operator")]
    for who, allowed in ((viewer, 403), (submitter, 200), (operator, 200)):
        assert (await who.post(f"{S}/weekly/pause", json={})).status_code == allowed
        assert (await who.patch(f"{S}/weekly", json={"payload": 1})).status_code == allowed
    for who, allowed in ((viewer, 403), (submitter, 201)):
        assert (await who.post(f"{S}/weekly/trigger", json={})).status_code == allowed
        assert (await who.post(S, json={"kind": "x", "cron": "@daily"})).status_code == allowed
    elsewhere = await engine.schedules.create(ScheduleSpec(kind="x", cron="@daily", name="theirs"), namespace="other")
    assert (await operator.get(f"{S}/{elsewhere.id}")).status_code == 403
    assert (await operator.get(f"{S}/theirs")).status_code == 404
    assert (await operator.get(f"{S}/{made['id']}")).status_code == 200
    assert (await operator.get(f"{S}/{uuid4()}")).status_code == 404


async def test_what_code_declares_is_not_changed_over_http(api: httpx.AsyncClient, engine: Engine) -> None:
    await engine.schedules.declare("shop", [ScheduleSpec(kind="x", cron="@daily", name="declared")])
    assert (await api.get(f"{S}/declared")).json()["app"] == "shop"
    problem(await api.patch(f"{S}/declared", json={"cron": "@hourly"}), 409, "invalid_state")
    problem(await api.delete(f"{S}/declared"), 409, "invalid_state")
    assert (await api.post(f"{S}/declared/pause", json={})).status_code == 200


async def test_metrics_tell_how_late_fires_are(api: httpx.AsyncClient, engine: Engine) -> None:
    engine.count(Tally())
    made = await create(api, cron="* * * * * *")
    async with engine.store.begin() as tx:
        await tx.session.connection.execute(
            "update windlass.schedule set settled_at = windlass.now() - interval '3 s', next_fire_at = windlass.now()"
        )
    text = (await api.get("/metrics")).text
    assert "windlass_scheduler_lag_seconds 0.0" in text or "windlass_scheduler_lag_seconds" in text
    assert await engine.loops.schedule_tick() == 1
    fired = (await api.get(f"{S}/{made['id']}")).json()["fired"]
    text = (await api.get("/metrics")).text
    assert f'windlass_schedule_fires_total{{outcome="submitted"}} {float(fired)}' in text
    assert f"windlass_schedule_lateness_seconds_count {float(fired)}" in text
