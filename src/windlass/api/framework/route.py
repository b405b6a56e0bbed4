"""Tables of routes. A route has a method, a path, a credential, types, limits and errors; the application, the OpenAPI
document and the tests of isolation are made from it.

A handler takes a `Request` and returns a struct or a `Response`. Its docstring is the summary, and for our own API its
signature gives the types, so that the document cannot differ from the code.
"""

from __future__ import annotations

import typing
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from windlass.api.framework.request import B, Q, Request
from windlass.core.access import Principal, Role, check_reach
from windlass.engine.engine import Engine
from windlass.errors import Malformed
from windlass.net.ids import parse_id

Handler = TypeVar("Handler", bound=Callable[..., Awaitable[Any]])

DEFAULT_NAMESPACE = "default"
NOBODY = Principal("nobody", Role.VIEWER)  # the caller of a route that needs no key


class Scheme(NamedTuple):
    """A kind of credential, as OpenAPI describes it."""

    name: str
    definition: tuple[tuple[str, str], ...]


API_KEY = Scheme("key", (("type", "http"), ("scheme", "bearer")))


class Route(NamedTuple):
    """A route. `scheme` is the credential that it requires; None admits all callers. `role` is the least role of an API
    key."""

    method: str
    path: str
    handler: Callable[[Any], Awaitable[Any]]
    name: str
    summary: str
    scheme: Scheme | None = None
    role: Role | None = None
    query: Any = None
    body: Any = None
    answer: Any = None
    status: int = 200
    headers: tuple[str, ...] = ()
    media: str = "application/json"
    large: bool = False  # the body may hold payloads that are too long for a row
    raw: bool = False  # the handler decodes the body itself
    rest: bool = False  # the last parameter of the path takes the rest of it, with its slashes
    body_max_bytes: int | None = None  # less than the limit of the application
    known_status: int | None = None  # of an answer that tells of what was there already
    errors: tuple[int, ...] = ()  # statuses of its errors; empty: `openapi.possible_errors`
    # The caller of a request without a key that is signed instead; None if it is not. The handler checks the signature.
    signer: Callable[[Request[Any, Any]], Principal | None] | None = None

    @property
    def endless(self) -> bool:
        """Whether the answer is a stream without an end, for which HEAD has no answer."""
        return self.media == "text/event-stream"


class Table:
    """The routes of one subject, in order."""

    def __init__(self, tag: str, routes: Sequence[Route] = ()) -> None:
        self.tag, self.routes = tag, list(routes)

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
        rest: bool = False,
        body_max_bytes: int | None = None,
        known_status: int | None = None,
        errors: tuple[int, ...] = (),
        signer: Callable[[Request[Any, Any]], Principal | None] | None = None,
    ) -> Callable[[Handler], Handler]:
        """A route of our own API. The handler takes a `Call[Query, Body]`; a body of type `bytes` is not decoded."""

        def decorate(handler: Handler) -> Handler:
            hints = typing.get_type_hints(handler)
            query, body = (None if kind is type(None) else kind for kind in typing.get_args(hints["call"]))
            self.routes.append(
                Route(
                    method, path, handler, handler.__name__, " ".join((handler.__doc__ or "").split()),
                    None if role is None else API_KEY, role, query, body, hints["return"], status, headers, media,
                    large, raw=body is bytes, rest=rest, body_max_bytes=body_max_bytes, known_status=known_status,
                    errors=errors, signer=signer,
                )
            )  # fmt: skip
            return handler

        return decorate


class Call(Request[Q, B]):
    """A request to our own API."""

    @property
    def engine(self) -> Engine:
        return typing.cast("Engine", self.service)

    @property
    def principal(self) -> Principal:
        return typing.cast("Principal", self.caller or NOBODY)

    def id(self, name: str) -> UUID:
        """An id in the path: a UUID, or the prefixed form."""
        return read_id(name, self.path[name])

    def namespace(self, name: str | None) -> str:
        """`name` if the key reaches it; for None, the key's own namespace."""
        if name is None:
            return self.principal.namespace or DEFAULT_NAMESPACE
        self.reach(name)
        return name

    def reach(self, namespace: str | None) -> None:
        """Raise Forbidden unless the key may act in this namespace; for None, in all of them."""
        check_reach(self.principal, namespace)


def read_id(field_name: str, text: str) -> UUID:
    id_ = parse_id(field_name.removesuffix("_id"), text)
    if id_ is None:
        raise Malformed(f"{text[:100]!r} is not an id", field=field_name)
    return id_


# Routes that rooms add to our API and to the internal port. `registration` of a room appends them, before the
# applications are imported.
API_TABLES: list[Table] = []
INTERNAL_TABLES: list[Table] = []
