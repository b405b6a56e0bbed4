"""Errors as RFC 9457 problems, with the stable `code` of our error tree. Nobody outside ever sees a traceback."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from windlass.core.error import Unauthenticated, Unavailable, WindlassError
from windlass.wire.status import known_code, status_of, told_message

log = logging.getLogger("windlass.http")

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 1


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """What went wrong. `code` never changes; `detail` is for people. `field` names what was wrong in the request."""

    title: str
    status: int
    code: str
    detail: str
    type: str = "about:blank"
    field: str | None = None
    details: dict[str, Any] = {}


def problem_of(error: WindlassError) -> Problem:
    details = {name: value for name, value in error.details.items() if name != "field"}
    return Problem(
        title=(type(error).__doc__ or "").strip(),
        status=status_of(error).http,
        code=known_code(error),
        detail=told_message(error),
        field=str(error.details["field"]) if error.details.get("field") else None,
        details=msgspec.to_builtins(details, builtin_types=(), str_keys=True, enc_hook=str),
    )


def respond(problem: Problem, headers: dict[str, str] | None = None) -> Response:
    content = msgspec.json.encode(problem)
    return Response(content, problem.status, {"Cache-Control": "no-store", **(headers or {})}, MEDIA_TYPE)


def refuse(error: WindlassError) -> Response:
    headers: dict[str, str] = {}
    if isinstance(error, Unauthenticated):
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, Unavailable):
        headers["Retry-After"] = str(RETRY_AFTER_S)
    return respond(problem_of(error), headers)


def defect(request: Request, error: Exception) -> Response:
    """A mistake of ours: told to us in the log, and to the caller as nothing but that."""
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return respond(Problem("A defect of the server.", 500, "internal", "something is wrong on the server's side"))
