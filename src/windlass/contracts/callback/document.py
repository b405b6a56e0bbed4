"""The documents of the callback contract, made from the very types that are read and sent: OpenAPI 3.1, JSON Schema."""

from __future__ import annotations

from typing import Any

from windlass.contracts.callback.form import CompletedAnswer, HeartbeatAnswer, RefusedAnswer, StartedAnswer
from windlass.wire.envelope import Completed, Heartbeat, Started, TaskEnvelope
from windlass.wire.schema import schema_components

REFERENCE = "#/components/schemas/{name}"
DRAFT = "https://json-schema.org/draft/2020-12/schema"
ROUTES: tuple[tuple[str, str, type, type], ...] = (
    ("started", "The worker has begun.", Started, StartedAnswer),
    ("heartbeat", "The worker is alive. The answer tells of a cancel.", Heartbeat, HeartbeatAnswer),
    ("completed", "The attempt is over.", Completed, CompletedAnswer),
)
REFUSALS = {
    "400": "`invalid_argument`: the body is not as it should be.",
    "401": "`invalid_token`: the token is not ours, or not in its time.",
    "403": "`token_scope`: the token is for another task, tenant, workspace or run.",
    "404": "`task_not_found`: there is no such task.",
    "409": "`attempt_mismatch`, `task_already_terminal` or `attempt_already_completed`: stop, do not report.",
    "410": "`task_expired`: stop at once.",
    "413": "`payload_too_large`: the body has more than 2 MiB.",
    "503": "`unavailable`: send it again after `Retry-After`.",
}


def envelope_schema() -> dict[str, Any]:
    """The JSON Schema of what is pushed."""
    (schema,), components = schema_components([TaskEnvelope], "#/$defs/{name}")
    root = components.pop("TaskEnvelope") if "$ref" in schema else schema
    return {"$schema": DRAFT, "$id": "/v1/task-envelope.schema.json", **root, "$defs": components}


def openapi_document(version: str) -> dict[str, Any]:
    types = [kind for _, _, said, answer in ROUTES for kind in (said, answer)] + [RefusedAnswer]
    _, components = schema_components(types, REFERENCE)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Windlass callbacks", "version": version, "summary": "What a worker says of its attempt."},
        "security": [{"taskToken": []}],
        "paths": {f"/v1/tasks/{{task_id}}/{route[0]}": {"post": _operation(*route)} for route in ROUTES},
        "components": {
            "schemas": components,
            "securitySchemes": {"taskToken": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}},
        },
    }


def _operation(name: str, summary: str, said: type, answer: type) -> dict[str, Any]:
    refusal = {"content": _json(RefusedAnswer)}
    return {
        "operationId": name,
        "summary": summary,
        "parameters": [
            {"name": "task_id", "in": "path", "required": True, "schema": {"type": "string"},
             "description": "`task_` and a ULID, or a UUID."},
            {"name": "traceparent", "in": "header", "schema": {"type": "string"}},
        ],
        "requestBody": {"required": True, "content": _json(said)},
        "responses": {
            "200": {"description": (answer.__doc__ or "").strip(), "content": _json(answer)},
            **{status: {"description": text, **refusal} for status, text in REFUSALS.items()},
        },
    }  # fmt: skip


def _json(kind: type) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": REFERENCE.format(name=kind.__name__)}}}
