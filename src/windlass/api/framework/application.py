"""Serves tables of routes as a plain ASGI application: our own API and the HTTP contracts.

Every request takes the same steps: route (404, 405), credential (401, 403), query and body (400, 413, 422), handler.
No body is read before its caller has shown a credential. A `WindlassError` becomes the error body of the contract; any
other exception is a defect, which is logged and not shown.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol

import msgspec

from windlass.api.framework.embed import REFERENCE_START
from windlass.api.framework.paths import Paths
from windlass.api.framework.request import BODY_MAX_BYTES, KEY_HEADER, Request, bearer, decode_body, decode_query
from windlass.api.framework.route import API_KEY, Route, Scheme
from windlass.core.access import Principal, check_role
from windlass.errors import TooLarge, Unauthenticated, WindlassError
from windlass.net.asgi import JSON, NO_STORE, Disconnected, Header, Receive, Response, Scope, Send, body_of

BEARER: Header = (b"www-authenticate", b"Bearer")
RETRY_AFTER: Header = (b"retry-after", b"1")
DEFECT = (500, "internal", "the server failed: see its log")

Endpoint = Callable[[Request[Any, Any]], Awaitable[Any]]


class Keys(Protocol):
    """API keys, as `engine.keys` has them."""

    async def identify(self, key: str) -> Principal: ...
    def opened(self, key: str) -> AbstractContextManager[None]: ...


class Authenticator(NamedTuple):
    """Finds the caller of a request. `check` returns it, or raises Unauthenticated or Forbidden. `known` is called
    first: it returns a caller that was checked a moment ago, or None."""

    check: Endpoint
    known: Callable[[Request[Any, Any]], Any] = lambda _: None


class ErrorForm(NamedTuple):
    """How a contract writes errors. `refused` gives the status and body of a `WindlassError`, `plain` the body of an
    error of HTTP (no such route or method, a defect) from its status, code and message."""

    refused: Callable[[WindlassError], tuple[int, object]]
    plain: Callable[[int, str, str], object]
    media: str = "application/json"


class Limits(NamedTuple):
    """The maximum size of a body, and how much more a body with large payloads may have. `advice` follows the message
    that such a body is too large."""

    body_bytes: int = BODY_MAX_BYTES
    large_bytes: int = 0
    advice: str = ""


USUAL_LIMITS = Limits()


class Application:
    """Serves `service` through the routes.

    `authenticate` has an authenticator for every scheme except API keys. `anonymous` is the caller of a request without
    an API key, if that is allowed. `on_too_large` may raise an error that matters more than the length of a body.
    `embed` writes an answer that refers to stored objects.
    """

    def __init__(
        self,
        routes: Iterable[Route],
        service: Any,
        errors: ErrorForm,
        *,
        log: logging.Logger,
        keys: Keys | None = None,
        anonymous: Principal | None = None,
        authenticate: Mapping[str, Authenticator] | None = None,
        limits: Limits = USUAL_LIMITS,
        on_too_large: Endpoint | None = None,
        embed: Callable[[Request[Any, Any], int, bytes], Awaitable[Response]] | None = None,
        headers: tuple[Header, ...] = (JSON, NO_STORE),
        request_type: type[Request[Any, Any]] = Request,
    ) -> None:
        self._service, self._errors, self._log, self._limits = service, errors, log, limits
        self._keys, self._anonymous, self._authenticate = keys, anonymous, authenticate or {}
        self._on_too_large, self._embed = on_too_large, embed
        self._headers, self._request_type = headers, request_type
        self._encode = msgspec.json.Encoder().encode
        self._closing = asyncio.Event()
        self.state = SimpleNamespace(closing=self._closing)  # the server sets `closing` when it stops, to end streams
        self._paths: Paths[Endpoint] = Paths()
        for route in routes:
            self._add(route)

    def add_document(self, path: str, scheme: Scheme, document: object) -> None:
        """Serve a document that describes the routes. Like all routes except health, it needs a credential."""
        content = msgspec.Raw(self._encode(document))

        async def describe(_request: Request[Any, Any]) -> msgspec.Raw:
            return content

        self._add(Route("GET", path, describe, "describe", "", scheme))

    def _add(self, route: Route) -> None:
        endpoint = self._endpoint(route)
        self._paths.add(route.path, route.method, endpoint, rest=route.rest)
        if route.method == "GET" and not route.endless:
            self._paths.add(route.path, "HEAD", endpoint)

    # ----------------------------------------------------------------------------------------- one request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            methods, path = self._paths.find(scope["path"], scope.get("raw_path"))
            endpoint = methods.get(scope["method"])
            if endpoint is None:
                response: Response | bytes = self._not_allowed(methods)
            else:
                response = await endpoint(
                    self._request_type(self._service, scope, receive, dict(scope["headers"]), path, self._closing)
                )
        except Disconnected:
            return
        except WindlassError as error:
            response = self._refused(error, scope)
        except Exception:
            response = self._defect(scope)
        if type(response) is bytes:
            length = (b"content-length", b"%d" % len(response))
            await send({"type": "http.response.start", "status": 200, "headers": [*self._headers, length]})
            await send({"type": "http.response.body", "body": response})
        else:
            assert isinstance(response, Response), response
            await self._send(response, scope, receive, send)

    async def _send(self, response: Response, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with response.watch():
                await response.send(receive, send)
        except Unauthenticated:  # the key was revoked: end the stream here, whatever its declared length
            with suppress(Exception):
                await send({"type": "http.response.body", "body": b""})
        except WindlassError as error:  # an object cannot be read to its end: the client sees a short answer
            self._log.warning("the answer to %s %s was cut short: %s", scope["method"], scope["path"], error)

    def _endpoint(self, route: Route) -> Endpoint:
        """The steps of a request after its route was found. They return the content of a 200, or a Response."""
        handler, encode, embed, status = route.handler, self._encode, self._embed, route.status
        query, body, raw = route.query, route.body, route.raw
        keyed, repeatable = route.scheme is API_KEY, KEY_HEADER in route.headers
        authenticator = None if keyed or route.scheme is None else self._authenticate[route.scheme.name]
        limit = route.body_max_bytes or self._limits.body_bytes + (self._limits.large_bytes if route.large else 0)
        advice = self._limits.advice if route.large else ""

        async def endpoint(request: Request[Any, Any]) -> Response | bytes:
            if authenticator is not None:
                request.caller = authenticator.known(request) or await authenticator.check(request)
            if repeatable:
                request.check_key()
            if query is not None:
                request.query = decode_query(query, request.scope["query_string"])
            if body is not None:
                try:
                    content = await body_of(request.headers, request.receive, limit)
                except TooLarge as error:
                    if self._on_too_large is not None:
                        await self._on_too_large(request)
                    raise TooLarge(error.message + advice, limit=limit) from None
                request.body = content if raw else decode_body(body, content)
            answer = await handler(request)
            if isinstance(answer, Response):
                return answer
            content = encode(answer)
            if embed is not None and REFERENCE_START in content:
                return await embed(request, status, content)
            return content if status == 200 else Response(content, status, headers=(NO_STORE,))

        return partial(self._with_key, endpoint, route) if keyed else endpoint

    async def _with_key(self, endpoint: Endpoint, route: Route, request: Request[Any, Any]) -> Response | bytes:
        """Serve a request with an API key. It is cancelled when the key is revoked, even as a long poll or a stream. A
        route may accept a signature instead."""
        assert self._keys is not None
        if route.signer is not None and b"authorization" not in request.headers:
            request.caller = route.signer(request)
            if request.caller is not None:
                return await endpoint(request)  # type: ignore[no-any-return]
        if self._anonymous is not None and b"authorization" not in request.headers:
            request.caller = self._anonymous
            return await endpoint(request)  # type: ignore[no-any-return]
        key = bearer(request.headers)
        with self._keys.opened(key):
            request.caller = await self._keys.identify(key)
            if route.role is not None:
                check_role(request.caller, route.role)
            response: Response | bytes = await endpoint(request)
        if isinstance(response, Response):
            response.watch = partial(self._keys.opened, key)
        return response

    # ----------------------------------------------------------------------------------------- errors

    def _not_allowed(self, methods: Mapping[str, Endpoint]) -> Response:
        if not methods:
            return self._plain(404, "not_found", "no route has this path")
        allowed = ", ".join(sorted(methods))
        return self._plain(405, "method_not_allowed", f"allowed: {allowed}", (b"allow", allowed.encode()))

    def _refused(self, error: WindlassError, scope: Scope) -> Response:
        status, body = self._errors.refused(error)
        if status == 500:
            return self._defect(scope)
        headers = {401: (BEARER,), 429: (RETRY_AFTER,), 503: (RETRY_AFTER,)}.get(status, ())
        return Response(self._encode(body), status, self._errors.media, (NO_STORE, *headers))

    def _defect(self, scope: Scope) -> Response:
        self._log.exception("%s %s failed", scope["method"], scope["path"])
        return self._plain(*DEFECT)

    def _plain(self, status: int, code: str, message: str, *headers: Header) -> Response:
        content = self._encode(self._errors.plain(status, code, message))
        return Response(content, status, self._errors.media, (NO_STORE, *headers))
