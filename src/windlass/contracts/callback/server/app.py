"""The routes of the callback contract: `/v1/tasks/{task_id}/started|heartbeat|completed`, and their documents."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import Any

import msgspec

from windlass.api.framework import openapi
from windlass.api.framework.application import Application, Authenticator, ErrorForm, Keys, Limits
from windlass.api.framework.request import Request, bearer
from windlass.api.framework.route import API_KEY, Route, Scheme, Table
from windlass.api.framework.schema import schema_components
from windlass.contracts.callback.rules import Scope
from windlass.contracts.callback.server.forms import (
    CompletedAnswer,
    HeartbeatAnswer,
    RefusedAnswer,
    StartedAnswer,
    plain_error,
    refused,
)
from windlass.contracts.callback.server.service import CallbackRequest, Service
from windlass.contracts.callback.wire.envelope import Completed, Heartbeat, Started, TaskEnvelope
from windlass.core.trace import is_traceparent
from windlass.net.asgi import JSON

PREFIX = "/v1/"
TASK_TOKEN = Scheme("taskToken", (("type", "http"), ("scheme", "bearer"), ("bearerFormat", "JWT")))
CREDENTIAL = "the token of the task: Authorization: Bearer TOKEN"
DRAFT = "https://json-schema.org/draft/2020-12/schema"
ERRORS = {
    400: "`invalid_argument`: the body is invalid.",
    401: "`invalid_token`: the token is invalid, expired or not yet valid.",
    403: "`token_scope`: the token is for another task, tenant, workspace or run.",
    404: "`task_not_found`: there is no such task.",
    409: "`attempt_mismatch`, `task_already_terminal` or `attempt_already_completed`: stop, do not report.",
    410: "`task_expired`: stop at once.",
    413: "`payload_too_large`: the body has more than 2 MiB.",
    503: "`unavailable`: send the same request again after `Retry-After`.",
}
Call = Request[None, bytes]


def known(call: Call) -> Scope | None:
    """Return the scope of a token that was already verified, as most are."""
    scope: Scope | None = call.service.known(bearer(call.headers, CREDENTIAL), call.path["task_id"])
    return scope


async def authenticate(call: Call) -> Scope:
    scope: Scope = await call.service.admitted(bearer(call.headers, CREDENTIAL), call.path["task_id"])
    return scope


# These return the coroutine of the service instead of awaiting it, which is faster; there are many heartbeats.
def started(call: Call) -> Awaitable[StartedAnswer]:
    return call.service.started(_callback(call))  # type: ignore[no-any-return]


def heartbeat(call: Call) -> Awaitable[HeartbeatAnswer | msgspec.Raw]:
    return call.service.heartbeat(_callback(call))  # type: ignore[no-any-return]


def completed(call: Call) -> Awaitable[CompletedAnswer]:
    return call.service.completed(_callback(call))  # type: ignore[no-any-return]


def _callback(call: Call) -> CallbackRequest:
    scope: Scope = call.caller
    trace = call.header("traceparent") if b"traceparent" in call.headers else None
    return CallbackRequest(scope, scope.task_id, call.body, trace if is_traceparent(trace) else None)


def _post(handler: Any, summary: str, body: type, answer: type, *, large: bool = False) -> Route:
    name = handler.__name__
    return Route(
        "POST", f"/v1/tasks/{{task_id}}/{name}", handler, name, summary, TASK_TOKEN, body=body, answer=answer,
        headers=("traceparent",), large=large, raw=True, errors=tuple(ERRORS),
    )  # fmt: skip


TABLE = Table("callbacks", [
    _post(started, "Report that the attempt has started.", Started, StartedAnswer),
    _post(heartbeat, "Send a heartbeat. The answer may request a cancel.", Heartbeat, HeartbeatAnswer),
    _post(completed, "Report the result of the attempt.", Completed, CompletedAnswer, large=True),
])  # fmt: skip
CONTRACT = openapi.Contract(
    info={"title": "Windlass callbacks", "summary": "Requests that a worker sends about its attempt."},
    scheme=TASK_TOKEN,
    error=RefusedAnswer,
    errors=ERRORS,
    parameters={"task_id": {"schema": {"type": "string"}, "description": "`task_` and a ULID, or a UUID."}},
)


def openapi_document(version: str) -> dict[str, Any]:
    return openapi.document([TABLE], CONTRACT, version)


def envelope_schema() -> dict[str, Any]:
    """The JSON Schema of the envelope that is pushed to a worker."""
    (schema,), components = schema_components([TaskEnvelope], "#/$defs/{name}")
    root = components.pop("TaskEnvelope") if "$ref" in schema else schema
    return {"$schema": DRAFT, "$id": "/v1/task-envelope.schema.json", **root, "$defs": components}


def make_app(service: Service, keys: Keys | None, version: str, limits: Limits) -> Application:
    """The application for one engine. `keys` admit readers of the documents."""

    async def check_time(call: Call) -> None:
        await service.check_time(call.caller)  # an expired token is refused as that, however long its body

    app = Application(
        TABLE.routes, service, ErrorForm(refused, plain_error), log=logging.getLogger("windlass.callback"), keys=keys,
        authenticate={TASK_TOKEN.name: Authenticator(authenticate, known)}, limits=limits, on_too_large=check_time,
        headers=(JSON,),
    )  # fmt: skip
    app.add_document("/v1/openapi.json", API_KEY, openapi_document(version))
    app.add_document("/v1/task-envelope.schema.json", API_KEY, envelope_schema())
    return app
