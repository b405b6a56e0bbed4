"""The table of all routes of our own API, and the application that serves it."""

from __future__ import annotations

import logging
from typing import Any

from windlass.api.framework import openapi
from windlass.api.framework.application import Application, Limits
from windlass.api.framework.embed import embedded
from windlass.api.framework.problem import MEDIA_TYPE, PROBLEMS, Problem
from windlass.api.framework.request import Request
from windlass.api.framework.route import API_KEY, API_TABLES, Call, Route, Table
from windlass.api.routes import (
    backfills,
    catalog,
    changes,
    dags,
    datasets,
    health,
    hooks,
    invalidations,
    keys,
    namespaces,
    outbox,
    queues,
    runs,
    schedules,
    tasks,
    workers,
    workflows,
)
from windlass.datasets.rules.partition import PARTITION_MAX
from windlass.engine.engine import Engine
from windlass.net.asgi import Response

TABLES: tuple[Table, ...] = (
    tasks.table, workflows.table, dags.table, hooks.table, datasets.table, catalog.table, backfills.table,
    invalidations.table, runs.table, schedules.table, queues.table, workers.table, namespaces.table, keys.table,
    outbox.table, *API_TABLES, changes.table, health.table,
)  # fmt: skip
ROUTES: tuple[Route, ...] = tuple(route for table in TABLES for route in table.routes)
CONTRACT = openapi.Contract(
    info={"title": "Windlass", "description": "A durable task and workflow engine."},
    scheme=API_KEY,
    error=Problem,
    error_media=MEDIA_TYPE,
    parameters={"partition_key": {"schema": {"type": "string", "minLength": 1, "maxLength": PARTITION_MAX}}},
    errors={
        400: "The request cannot be read.",
        401: "A valid key is required.",
        403: "The key does not permit this, or not in this namespace.",
        404: "The resource does not exist.",
        409: "The request contradicts an earlier one, or the state of the resource does not allow it.",
        410: "The requested events are no longer kept.",
        413: "The body is too large.",
        422: "A value has the wrong type, shape or range; `field` names it.",
        429: "Too many tasks wait. Try again later.",
        503: "The server cannot do this now. Try again later.",
    },
)


def openapi_document(version: str) -> dict[str, Any]:
    return openapi.document(TABLES, CONTRACT, version)


def make_api(engine: Engine, *, version: str = "unknown", open_metrics: bool = False) -> Application:
    """The application on an open engine. `open_metrics` lets all callers that reach the port read /metrics."""

    async def embed(request: Request[Any, Any], status: int, content: bytes) -> Response:
        return await embedded(content, engine.parts.objects, status, head=request.scope["method"] == "HEAD")

    app = Application(
        [
            route._replace(scheme=None, role=None) if open_metrics and route.path == "/metrics" else route
            for route in ROUTES
        ],
        engine,
        PROBLEMS,
        log=logging.getLogger("windlass.http"),
        keys=engine.keys,
        limits=Limits(large_bytes=engine.parts.objects.room_bytes, advice=engine.parts.objects.advice),
        embed=embed,
        request_type=Call,
    )
    app.add_document("/api/v1/openapi.json", API_KEY, openapi_document(version))
    return app
