"""The documents of the callback contract are what is sent and answered: held against real requests and answers."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
from tests.contracts.callback.world import World
from tests.kit.world import ROOT

from windlass.contracts.callback.server.app import ERRORS, envelope_schema, openapi_document

ADMIN = {"Authorization": f"Bearer {ROOT}"}


def checker(schema: dict[str, Any], document: dict[str, Any]) -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator({**schema, "components": document["components"]})


async def test_an_envelope_is_as_its_schema_says(world: World) -> None:
    schema = (await world.http.get("/v1/task-envelope.schema.json", headers=ADMIN)).json()
    assert schema == json.loads(json.dumps(envelope_schema()))
    assert jsonschema_rs.meta.is_valid(schema)
    validator = jsonschema_rs.Draft202012Validator(schema)
    envelope = (await world.dispatched(trace="00-" + "a" * 32 + "-" + "b" * 16 + "-01")).envelope

    validator.validate(envelope)
    for name in ("taskId", "taskToken", "callbackBaseUrl", "attempt", "enqueuedAt"):
        broken = {key: value for key, value in envelope.items() if key != name}
        assert list(validator.iter_errors(broken)), name
    assert list(validator.iter_errors({**envelope, "attempt": 0}))


async def test_every_answer_is_as_the_document_says(world: World) -> None:
    document = (await world.http.get("/v1/openapi.json", headers=ADMIN)).json()
    assert document["openapi"] == "3.1.0"
    assert set(document["paths"]) == {f"/v1/tasks/{{task_id}}/{what}" for what in ("started", "heartbeat", "completed")}
    attempt = await world.dispatched()
    seen = set()

    async def held(what: str, status: int, **body: Any) -> None:
        answer = await attempt.call(what, **body)
        assert answer.status_code == status
        told = document["paths"][f"/v1/tasks/{{task_id}}/{what}"]["post"]["responses"][str(status)]
        checker(told["content"]["application/json"]["schema"], document).validate(answer.json())
        seen.add(status)

    await held("started", 401, token="x.y.z")
    await held("started", 400, attempt=0)
    await held("started", 404, task="nonsense")
    await held("started", 403, token=await world.token(attempt, tenant="other"))
    await held("started", 413, workerId="x" * (2 * 1024 * 1024))
    await held("started", 200)
    await held("heartbeat", 409, attempt=2)
    await world.engine.cancel(attempt.task_id, "stop")
    await held("heartbeat", 200, progressPct=1)
    await held("completed", 200, outcome="SUCCEEDED")
    await held("completed", 409, outcome="FAILED")
    await held("heartbeat", 410)
    assert seen == {200, *ERRORS} - {503}


def test_what_a_worker_may_send_is_in_the_document() -> None:
    schemas = openapi_document("1")["components"]["schemas"]

    assert set(schemas["Completed"]["required"]) == {"attempt", "workerId", "outcome"}
    assert {"output", "error", "metrics", "cancelledDuringPhase", "partialProgress", "completedAt"} <= set(
        schemas["Completed"]["properties"]
    )
    assert {"heartbeatAt", "progressPct", "message"} <= set(schemas["Heartbeat"]["properties"])
