"""What a route is: method, path, the role it needs, and a handler whose types say what it reads and answers.

A handler takes a `Call[Query, Body]` and returns a struct. The types are read from its signature, the summary from its
docstring: the OpenAPI document cannot say anything else than the code.
"""

from __future__ import annotations

import asyncio
import typing
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from uuid import UUID

from windlass.core.access import Principal, Role, check_reach
from windlass.core.error import Malformed
from windlass.engine.engine import Engine
from windlass.http.read import request_key
from windlass.wire.id import parse_id

Q = TypeVar("Q")
B = TypeVar("B")
Handler = TypeVar("Handler", bound=Callable[..., Awaitable[Any]])

DEFAULT_NAMESPACE = "default"


@dataclass(frozen=True, slots=True)
class Call(Generic[Q, B]):
    """One request, read and let in."""

    engine: Engine
    principal: Principal
    path: Mapping[str, str]
    headers: Mapping[str, str]
    query: Q
    body: B
    closing: asyncio.Event  # set when the server ends

    def id(self, name: str) -> UUID:
        """An id in the path: a UUID, or the prefixed form."""
        return read_id(name, self.path[name])

    @property
    def key(self) -> str | None:
        """The Idempotency-Key of the request."""
        return request_key(self.headers)

    def namespace(self, given: str | None) -> str:
        """The namespace that is meant: the given one if the key reaches it, else the key's own."""
        if given is None:
            return self.principal.namespace or DEFAULT_NAMESPACE
        check_reach(self.principal, given)
        return given

    def reach(self, namespace: str) -> None:
        """Raise Forbidden unless the key may act in this namespace."""
        check_reach(self.principal, namespace)


def read_id(field_name: str, text: str) -> UUID:
    id_ = parse_id(field_name.removesuffix("_id"), text)
    if id_ is None:
        raise Malformed(f"{text[:100]!r} is not an id", field=field_name)
    return id_


@dataclass(frozen=True, slots=True)
class Route:
    """`role` is the least that a key must have; None lets everybody in."""

    method: str
    path: str
    role: Role | None
    handler: Callable[[Any], Awaitable[Any]]
    status: int
    summary: str
    query: Any
    body: Any
    answer: Any
    headers: tuple[str, ...] = ()
    media: str = "application/json"
    large: bool = False  # whether its body may hold payloads that are too long for a row

    @property
    def name(self) -> str:
        return self.handler.__name__

    @property
    def endless(self) -> bool:
        """A stream: it has a beginning and no end, and so nothing that HEAD could be told."""
        return self.media == "text/event-stream"


@dataclass(slots=True)
class Table:
    """The routes of one subject, in the order in which they were written."""

    tag: str
    routes: list[Route] = field(default_factory=list)

    def add(
        self,
        method: str,
        path: str,
        role: Role | None,
        *,
        status: int = 200,
        headers: tuple[str, ...] = (),
        media: str = "application/json",
        large: bool = False,
    ) -> Callable[[Handler], Handler]:
        def added(handler: Handler) -> Handler:
            hints = typing.get_type_hints(handler)
            query, body = (None if kind is type(None) else kind for kind in typing.get_args(hints["call"]))
            summary = " ".join((handler.__doc__ or "").split())
            made = Route(
                method, path, role, handler, status, summary, query, body, hints["return"], headers, media, large
            )
            self.routes.append(made)
            return handler

        return added
