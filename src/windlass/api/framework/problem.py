"""Errors of our own API as RFC 9457 problems, with the stable `code` of our error tree."""

from __future__ import annotations

from typing import Any

import msgspec

from windlass.api.framework.application import ErrorForm
from windlass.errors import WindlassError
from windlass.net.status import known_code, public_message, status_of

MEDIA_TYPE = "application/problem+json"
TITLES = {404: "There is no such page.", 405: "This method is not allowed here.", 500: "The server failed."}


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error. `code` never changes; `detail` is for people. `field` names the wrong field of the request."""

    title: str
    status: int
    code: str
    detail: str
    type: str = "about:blank"
    field: str | None = None
    details: dict[str, Any] = {}


def _refused(error: WindlassError) -> tuple[int, Problem]:
    details = {name: value for name, value in error.details.items() if name != "field"}
    status = status_of(error).http
    return status, Problem(
        title=(type(error).__doc__ or "").strip(),
        status=status,
        code=known_code(error),
        detail=public_message(error),
        field=str(error.details["field"]) if error.details.get("field") else None,
        details=msgspec.to_builtins(details, builtin_types=(), str_keys=True, enc_hook=str),
    )


def _plain(status: int, code: str, message: str) -> Problem:
    return Problem(TITLES[status], status, code, message)


PROBLEMS = ErrorForm(_refused, _plain, MEDIA_TYPE)
