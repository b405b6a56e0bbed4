"""The document of the contract says what is sent and answered."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest
from tests.contracts.lease.world import World, at_cursor, nobody, of_partition
from tests.kit.world import ok

pytestmark = pytest.mark.slow


@pytest.fixture
async def document(world: World) -> dict[str, Any]:
    return ok(await world.http.get("/internal/openapi.json"))


def holds(document: dict[str, Any], path: str, status: int, body: Any) -> None:
    [operation] = document["paths"][path].values()
    schema = operation["responses"][str(status)]["content"]["application/json"]["schema"]
    jsonschema_rs.validator_for({**schema, "components": document["components"]}).validate(body)


async def test_every_answer_is_as_the_document_says(world: World, document: dict[str, Any]) -> None:
    holder = await world.writing()
    claim = "/internal/task-claim"
    holds(document, claim, 200, holder.reply)
    for task_id in (str(holder.task_id), nobody(), str(await world.submit(delay_s=5))):
        holds(document, claim, 200, await world.claim(task_id))
    fetched = await world.http.get("/internal/task-fetch", params={"task_id": str(holder.task_id)})
    holds(document, "/internal/task-fetch", 200, fetched.json())
    await world.engine.cancel(holder.task_id, "stop")
    for route, answer in [
        ("heartbeat", await holder.heartbeat()),
        ("events", await holder.events(at_cursor(), of_partition(1, 2))),
        ("buffer-publish", await holder.publish()),
        ("buffer-publish", await holder.publish(dataset_uuid=nobody())),
        ("heartbeat", await holder.heartbeat(attempt=0)),
        ("heartbeat", await holder.heartbeat(task_id=nobody())),
        ("task-complete", await holder.complete()),
        ("task-complete", await holder.complete("Failed")),
        ("heartbeat", await holder.heartbeat()),
    ]:
        holds(document, f"/internal/{route}", answer.status_code, answer.json())


async def test_what_the_contract_shows_is_in_the_document(document: dict[str, Any]) -> None:
    assert set(document["paths"]) == {
        "/internal/task-claim", "/internal/task-fetch", "/internal/heartbeat", "/internal/task-complete",
        "/internal/events", "/internal/buffer-publish", "/internal/invalidations",
        *(f"/internal/wakeups/{name}" for name in ("route", "receive", "extend", "ack", "nack", "bury", "unheard")),
    }  # fmt: skip
    schemas = document["components"]["schemas"]
    assert set(schemas["CompleteRequest"]["required"]) == {"task_id", "status"}
    assert set(schemas["PublishRequest"]["required"]) == {
        "task_id", "attempt", "lease_token", "dataset_uuid", "dataset_version", "batch_uri", "record_count",
    }  # fmt: skip
    assert document["components"]["securitySchemes"] == {"certificate": {"type": "mutualTLS"}}
