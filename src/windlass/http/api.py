"""The table of all routes, and the ASGI application that serves it.

Each request takes the same way: the key (401), the role (403), the query and the body (400, 413, 422), the handler.
Errors of ours become problems in one place; everything else is a defect, logged here and told as such.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route as HttpRoute

from windlass.core.access import Principal, Role, check_role
from windlass.core.error import WindlassError
from windlass.engine.engine import Engine
from windlass.http import (
    change,
    dataset,
    health,
    key,
    namespace,
    openapi,
    outbox,
    problem,
    queue,
    run,
    schedule,
    splice,
    task,
    wakeup,
    worker,
    workflow,
)
from windlass.http.read import BODY_MAX_BYTES, bearer_key, decode_body, decode_query, read_body
from windlass.http.route import Call, Route, Table
from windlass.wire.body import advising

TABLES: tuple[Table, ...] = (
    task.table, workflow.table, dataset.table, run.table, schedule.table, queue.table, worker.table, namespace.table,
    key.table, outbox.table, wakeup.table, change.table, health.table,
)  # fmt: skip
ROUTES: tuple[Route, ...] = tuple(route for table in TABLES for route in table.routes)
NOBODY = Principal("nobody", Role.VIEWER)
OPENAPI_PATH = "/api/v1/openapi.json"
Endpoint = Callable[[Request], Awaitable[Response]]


def make_api(engine: Engine, *, version: str = "unknown", open_metrics: bool = False) -> Starlette:
    """The application on an engine that is open. `engine.access.accept_root` sets the key of whoever starts it;
    `open_metrics` lets everybody read /metrics who can reach the port."""
    document = msgspec.json.encode(openapi.document(TABLES, version))

    async def describe(request: Request) -> Response:
        """The document tells nothing of anybody's work, but nothing except health answers without a key."""
        await engine.access.identify(bearer_key(request.headers))
        return Response(document, media_type="application/json")

    paths: dict[str, dict[str, Endpoint]] = {OPENAPI_PATH: dict.fromkeys(("GET", "HEAD"), _guarded(describe))}
    for route in ROUTES:
        endpoint = _guarded(_endpoint(engine, route, free=open_metrics and route.path == "/metrics"))
        methods = {route.method, "HEAD"} if route.method == "GET" and not route.endless else {route.method}
        paths.setdefault(route.path, {}).update(dict.fromkeys(methods, endpoint))
    app = Starlette(
        routes=[_any_method(path, _by_method(methods)) for path, methods in _specific_first(paths)],
        exception_handlers={HTTPException: _http_exception, Exception: _defect},
    )
    app.router.redirect_slashes = False
    app.state.closing = asyncio.Event()  # set when the server ends, so that streams do
    return app


def _endpoint(engine: Engine, route: Route, *, free: bool) -> Endpoint:
    encode = msgspec.json.Encoder().encode

    async def endpoint(request: Request) -> Response:
        principal = NOBODY
        if route.role is not None and not free:
            principal = await engine.access.identify(bearer_key(request.headers))
            check_role(principal, route.role)
        query = None if route.query is None else decode_query(route.query, request)
        limit = BODY_MAX_BYTES + (engine.objects.room_bytes if route.large else 0)
        with advising(engine.objects.advice if route.large else ""):
            body = None if route.body is None else decode_body(route.body, await read_body(request, limit))
        closing = request.app.state.closing
        call: Call[Any, Any] = Call(engine, principal, request.path_params, request.headers, query, body, closing)
        answer = await route.handler(call)
        if isinstance(answer, Response):
            return answer
        content, headers = encode(answer), {"Cache-Control": "no-store"}
        if splice.SIGN in content:
            return await splice.spliced(content, engine.objects, route.status, headers, head=request.method == "HEAD")
        return Response(content, route.status, headers, "application/json")

    return endpoint


def _guarded(endpoint: Endpoint) -> Endpoint:
    async def guarded(request: Request) -> Response:
        try:
            return await endpoint(request)
        except WindlassError as error:
            return problem.refuse(error)
        except ClientDisconnect:
            return Response(status_code=400)  # nobody is there to read it
        except Exception as error:
            return problem.defect(request, error)

    return guarded


def _any_method(path: str, endpoint: Endpoint) -> HttpRoute:
    """A route that leaves methods to us: Starlette would know those of one route only when it says what is allowed."""
    route = HttpRoute(path, endpoint)
    route.methods = None
    return route


def _by_method(methods: dict[str, Endpoint]) -> Endpoint:
    allowed = ", ".join(sorted(methods))

    async def dispatch(request: Request) -> Response:
        endpoint = methods.get(request.method)
        if endpoint is None:
            said = problem.Problem("This method is not allowed here.", 405, "method_not_allowed", f"allowed: {allowed}")
            return problem.respond(said, {"Allow": allowed})
        return await endpoint(request)

    return dispatch


def _specific_first(paths: dict[str, dict[str, Endpoint]]) -> Sequence[tuple[str, dict[str, Endpoint]]]:
    """`/tasks/batch` before `/tasks/{task_id}`."""
    return sorted(paths.items(), key=lambda item: [part.startswith("{") for part in item[0].split("/")])


async def _http_exception(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), error
    said = problem.Problem("There is no such page.", error.status_code, "not_found", "no route has this path")
    return problem.respond(said)


async def _defect(request: Request, error: Exception) -> Response:
    return problem.defect(request, error)
