"""The document of the lease contract, OpenAPI 3.1, made from the very types that are read and sent."""

from __future__ import annotations

from typing import Any

from windlass.wire import lease as wire
from windlass.wire import wakeup
from windlass.wire.schema import schema_components

REFERENCE = "#/components/schemas/{name}"
POSTS: tuple[tuple[str, str, type, tuple[type, ...]], ...] = (
    ("task-claim", "Hold a task.", wire.ClaimRequest, (wire.ClaimedAnswer, wire.NotClaimedAnswer)),
    ("heartbeat", "Extend the lease of a task.", wire.HeartbeatRequest, (wire.HeartbeatAnswer,)),
    ("task-complete", "The attempt is over.", wire.CompleteRequest, (wire.CompleteAnswer,)),
    ("events", "Data is there.", wire.EventsRequest, (wire.AcceptedAnswer,)),
    ("buffer-publish", "Hand over a batch of records.", wire.PublishRequest, (wire.PublishAnswer,)),
    ("wakeups/route", "How the wake-ups of a queue reach its workers.", wakeup.Where, (wakeup.Route,)),
    ("wakeups/receive", "Wait for messages that PostgreSQL carries.", wakeup.Receive, (wakeup.Messages,)),
    ("wakeups/extend", "Keep a message for longer.", wakeup.Extend, (wakeup.Kept,)),
    ("wakeups/ack", "A message is done with.", wakeup.Held, (wakeup.Kept,)),
    ("wakeups/nack", "A message is to be delivered again.", wakeup.Nack, (wakeup.Kept,)),
    ("wakeups/unheard", "Nothing came over another carrier.", wakeup.Where, (wakeup.Kept,)),
    ("wakeups/bury", "Nobody can do anything with a message.", wakeup.Bury, (wakeup.Kept,)),
)
REFUSALS = {
    "400": "`invalid_argument`: the body is not as it should be; `field` names what.",
    "403": "`not_allowed`: the task may not write there.",
    "404": "`task_not_found`: there is no such task.",
    "409": "`stale_lease`: stop, the lease is not the current one; `conflict`: the attempt ended otherwise before.",
    "413": "`payload_too_large`: the body has more than 2 MiB.",
    "503": "`unavailable`: send it again after `Retry-After`.",
}


def openapi_document(version: str) -> dict[str, Any]:
    types = [kind for _, _, said, answers in POSTS for kind in (said, *answers)]
    _, components = schema_components([*types, wire.FetchAnswer, wire.RefusedAnswer], REFERENCE)
    fetch = {
        "operationId": "task-fetch",
        "summary": "Look at a task.",
        "parameters": [{"name": "task_id", "in": "query", "required": True, "schema": {"type": "string"}}],
        "responses": _responses((wire.FetchAnswer,), ("400", "404", "503")),
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Windlass leases", "version": version, "summary": "What holders of tasks say of them."},
        "security": [{"certificate": []}],
        "paths": {
            **{f"/internal/{post[0]}": {"post": _operation(*post)} for post in POSTS},
            "/internal/task-fetch": {"get": fetch},
        },
        "components": {"schemas": components, "securitySchemes": {"certificate": {"type": "mutualTLS"}}},
    }


def _operation(name: str, summary: str, said: type, answers: tuple[type, ...]) -> dict[str, Any]:
    return {
        "operationId": name.replace("/", "-"),
        "summary": summary,
        "requestBody": {"required": True, "content": _json(said)},
        "responses": _responses(answers, tuple(REFUSALS)),
    }


def _responses(answers: tuple[type, ...], refusals: tuple[str, ...]) -> dict[str, Any]:
    told = " ".join((answer.__doc__ or "").strip() for answer in answers)
    refused = {status: {"description": REFUSALS[status], "content": _json(wire.RefusedAnswer)} for status in refusals}
    return {"200": {"description": told, "content": _json(*answers)}, **refused}


def _json(*kinds: type) -> dict[str, Any]:
    schemas = [{"$ref": REFERENCE.format(name=kind.__name__)} for kind in kinds]
    return {"application/json": {"schema": schemas[0] if len(schemas) == 1 else {"oneOf": schemas}}}
