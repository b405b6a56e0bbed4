"""Dead letters over the API."""

from __future__ import annotations

from uuid import UUID, uuid4

import httpx
from tests.api.conftest import NewClient, problem
from tests.kit.work import job

from windlass import Engine
from windlass.contracts.lease.delivery import Wakeup
from windlass.contracts.lease.wakeups.planner import Wakeups
from windlass.core.queue import QueueConfig


async def dead_letter(
    engine: Engine, queue: str = "mail", *, task_id: UUID | None = None, namespace: str = "default"
) -> str:
    await engine.service(Wakeups).dead_letter(
        namespace, queue, message_id=str(uuid4()), task_id=task_id, body=b"\xffwhat?", deliveries=11, reason="nonsense"
    )
    return str((await engine.service(Wakeups).dead_messages(namespace))[0].id)


async def test_letters_are_listed_newest_first_page_by_page(api: httpx.AsyncClient, engine: Engine) -> None:
    ids = [await dead_letter(engine, queue) for queue in ("mail", "mail", "other")]

    first = (await api.get("/api/v1/letters?limit=2")).json()
    rest = (await api.get(f"/api/v1/letters?limit=2&after={first['next']}")).json()
    assert [one["id"] for one in first["items"] + rest["items"]] == sorted(ids, reverse=True)
    assert rest["next"] is None
    [letter] = (await api.get("/api/v1/letters?queue=other")).json()["items"]
    assert (letter["body"], letter["deliveries"], letter["reason"], letter["task_id"]) == (
        "\ufffdwhat?", 11, "nonsense", None,
    )  # fmt: skip


async def test_what_is_no_wake_up_is_discarded_and_not_replayed(api: httpx.AsyncClient, engine: Engine) -> None:
    letter = await dead_letter(engine)

    problem(await api.post(f"/api/v1/letters/{letter}/replay", json={}), 409, "invalid_state")
    assert (await api.delete(f"/api/v1/letters/{letter}")).json()["id"] == letter
    problem(await api.delete(f"/api/v1/letters/{letter}"), 404, "not_found")


async def test_a_task_that_waits_for_its_letter_says_so_and_is_woken_by_a_replay(
    api: httpx.AsyncClient, engine: Engine
) -> None:
    await engine.queues.put("mail", delivery=Wakeup(), limits=QueueConfig())
    task_id = await engine.submit(job(queue="mail"))
    async with engine.service(Wakeups).carrying({}, loop=False):
        await engine.service(Wakeups).tick()
        [waits] = (await api.get(f"/api/v1/tasks/{task_id}/why-waiting")).json()["items"]
        assert waits["reason"] == "announced"
        letter = await dead_letter(engine, task_id=task_id)
        [waits] = (await api.get(f"/api/v1/tasks/{task_id}/why-waiting")).json()["items"]
        assert waits["reason"] == "dead_letter"

        problem(await api.delete(f"/api/v1/letters/{letter}"), 409, "invalid_state")
        assert (await api.post(f"/api/v1/letters/{letter}/replay", json={})).json()["task_id"] == str(task_id)
        assert await engine.service(Wakeups).tick() == 1


async def test_a_letter_of_another_namespace_is_out_of_reach(as_role: NewClient, engine: Engine) -> None:
    letter = await dead_letter(engine, namespace="other")
    other_connection = await as_role("operator", "default")

    assert (await other_connection.get("/api/v1/letters")).json()["items"] == []
    problem(await other_connection.delete(f"/api/v1/letters/{letter}"), 403, "forbidden")
