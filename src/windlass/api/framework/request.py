"""A request: its query, body and credential, decoded into types. An error names the wrong field.

Text that cannot be parsed is 400; JSON that does not fit its schema is 422; a wrong value in a query is 400.
"""

from __future__ import annotations

import asyncio
import re
import typing
from datetime import datetime
from functools import lru_cache
from typing import Any, Generic, TypeVar
from urllib.parse import parse_qsl

import msgspec

from windlass.core.validation import PAYLOAD_MAX_BYTES
from windlass.errors import Invalid, Malformed, Unauthenticated
from windlass.net.asgi import Receive, Scope
from windlass.net.decode import decoded, field_of, reason_of

BODY_MAX_BYTES = PAYLOAD_MAX_BYTES
KEY_HEADER, KEY_HEADER_MAX, KEY_PATTERN = "idempotency-key", 400, "^[!-~]+$"  # a batch adds a place to each of its keys
Q = TypeVar("Q")
B = TypeVar("B")


class Request(msgspec.Struct, Generic[Q, B], eq=False):
    """One request. The application sets `caller`, `query` and `body` in this order, then calls the handler."""

    service: Any  # the service of the application
    scope: Scope
    receive: Receive
    headers: dict[bytes, bytes]
    path: dict[str, str]  # the parameters in the path
    closing: asyncio.Event  # set when the server closes
    caller: Any = None
    query: Q = None  # type: ignore[assignment]
    body: B = None  # type: ignore[assignment]

    def header(self, name: str) -> str | None:
        value = self.headers.get(name.encode())
        return None if value is None else value.decode("latin-1")

    @property
    def key(self) -> str | None:
        """The Idempotency-Key: a repeated request with the same key is the same request."""
        key = self.header(KEY_HEADER)
        if key is not None and not (len(key) <= KEY_HEADER_MAX and re.fullmatch(KEY_PATTERN, key)):
            raise Invalid(f"must have 1 to {KEY_HEADER_MAX} visible ASCII characters", field=KEY_HEADER)
        return key

    def check_key(self) -> None:
        """Raise Invalid if there is an Idempotency-Key that cannot be one, also where the handler does not read it."""
        _ = self.key


def bearer(headers: dict[bytes, bytes], what: str = "a key: Authorization: Bearer KEY") -> str:
    """The token of the Authorization header. Raises Unauthenticated."""
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    token = token.strip()
    if scheme.lower() != b"bearer" or not token:
        raise Unauthenticated(f"send {what}")
    return token.decode("latin-1")


def decode_body(kind: Any, content: bytes) -> Any:
    """Decode a body. A body whose fields all have defaults may be left out."""
    return decoded(_decoder(kind), content or b"{}")


def decode_query(kind: Any, query: bytes) -> Any:
    """Decode a query. A list may be repeated or separated by commas; an unknown field is refused."""
    given: dict[str, Any] = {}
    lists = list_fields(kind)
    for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if name in lists:
            given.setdefault(name, []).extend(part for part in value.split(",") if part)
        elif name in given:
            raise Malformed("is given twice", field=name)
        else:
            given[name] = value
    for name in time_fields(kind) & given.keys():
        try:  # not by the lax conversion below, which accepts a number as a time
            given[name] = msgspec.convert(given[name], datetime)
        except msgspec.ValidationError as error:
            raise Malformed(reason_of(error), field=name) from None
    try:
        query_ = msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Malformed(reason_of(error), field=field_of(error)) from None
    for name in given:
        if getattr(query_, name, name) is None:
            raise Malformed("must not be null: leave it out", field=name)
    return query_


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
