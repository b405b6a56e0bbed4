"""Reads what was sent: bodies within their limit, queries, the key. Whatever is wrong is an error that names the field.

Unreadable is 400, readable but not as its schema wants it 422 (400 in a query, which is not JSON).
"""

from __future__ import annotations

import re
import typing
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

import msgspec
from starlette.requests import Request

from windlass.core.check import PAYLOAD_MAX_BYTES
from windlass.core.error import Invalid, Malformed, Unauthenticated
from windlass.wire.body import gathered
from windlass.wire.decode import decoded, field_of, reason_of

BODY_MAX_BYTES = PAYLOAD_MAX_BYTES
KEY_HEADER, KEY_HEADER_MAX, KEY_PATTERN = "idempotency-key", 400, "^[!-~]+$"  # a batch adds a place to each of its keys
_BEARER = re.compile(r"bearer +(\S+)", re.IGNORECASE)


def bearer_key(headers: Mapping[str, str]) -> str:
    found = _BEARER.fullmatch(headers.get("authorization", ""))
    if found is None:
        raise Unauthenticated("send a key: Authorization: Bearer KEY")
    return found[1]


def request_key(headers: Mapping[str, str]) -> str | None:
    """The key that makes a repeated request the same one."""
    key = headers.get(KEY_HEADER)
    if key is not None and not (len(key) <= KEY_HEADER_MAX and re.fullmatch(KEY_PATTERN, key)):
        raise Invalid(f"must have 1 to {KEY_HEADER_MAX} visible ASCII characters", field=KEY_HEADER)
    return key


async def read_body(request: Request, limit: int = BODY_MAX_BYTES) -> bytes:
    """The whole body; one that is too long is refused as soon as that is known."""
    return await gathered(request.headers.get("content-length", ""), request.stream(), limit)


def decode_body(kind: Any, content: bytes) -> Any:
    """The body as its type. A body that may be left out is one whose fields all have defaults."""
    return decoded(_decoder(kind), content or b"{}")


def decode_query(kind: Any, request: Request) -> Any:
    """The query as its type; a list may be repeated or separated by commas. What is not known is refused."""
    given: dict[str, Any] = {}
    lists = list_fields(kind)
    for name, value in request.query_params.multi_items():
        if name in lists:
            given.setdefault(name, []).extend(part for part in value.split(",") if part)
        elif name in given:
            raise Malformed("is there twice", field=name)
        else:
            given[name] = value
    for name in time_fields(kind) & given.keys():
        given[name] = _time(name, given[name])
    try:
        query = msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Malformed(reason_of(error), field=field_of(error)) from None
    for name in given:
        if getattr(query, name, name) is None:
            raise Malformed("has no null: leave it out", field=name)
    return query


def _time(name: str, text: str) -> datetime:
    """A time as text; a lax conversion would take a number for one, and null for none."""
    try:
        return msgspec.convert(text, datetime)
    except msgspec.ValidationError as error:
        raise Malformed(reason_of(error), field=name) from None


@lru_cache(maxsize=256)
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


@lru_cache(maxsize=256)
def list_fields(kind: Any) -> frozenset[str]:
    hints = typing.get_type_hints(kind)
    return frozenset(name for name, hint in hints.items() if typing.get_origin(hint) in (list, tuple))


@lru_cache(maxsize=256)
def time_fields(kind: Any) -> frozenset[str]:
    return frozenset(name for name, hint in typing.get_type_hints(kind).items() if datetime in typing.get_args(hint))
