"""The routes of the machine contract, as an ASGI application.

For clients, with a key: `POST /export/{format}`, `GET /status/{task_id}`, `GET /download/{task_id}`. For machines, with
their signature: `POST /callback/{task_id}`, `PUT /upload/{task_id}/{file}`, `GET /payload/{task_id}`.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import quote

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from windlass.contracts.machine.service import MachineService, NotReady, SpawnFailed, content_type
from windlass.core.access import Principal, Role
from windlass.core.check import PAYLOAD_MAX_BYTES
from windlass.core.error import (
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    TooLarge,
    Unauthenticated,
    Unavailable,
    WindlassError,
)
from windlass.core.trace import is_traceparent
from windlass.wire.body import gathered
from windlass.wire.status import told_message

log = logging.getLogger("windlass.machine")

PREFIXES = ("/export/", "/status/", "/callback/", "/download/", "/upload/", "/payload/")
BODY_MAX_BYTES = PAYLOAD_MAX_BYTES
RETRY_AFTER_S = 1
KEY_MAX = 400
_BEARER = re.compile(r"bearer +(\S+)", re.IGNORECASE)
ANYBODY = Principal("anybody", Role.SUBMITTER, "default")

Identify = Callable[[str], Awaitable[Principal]]
Handler = Callable[[Request, str], Awaitable[Response]]
Pour = Callable[[Callable[[bytes], Awaitable[bool]]], Awaitable[None]]


class MachineApp:
    """Serves one engine. With `open_`, clients need no key."""

    def __init__(self, service: MachineService, identify: Identify, *, open_: bool = False) -> None:
        self._service, self._identify, self._open = service, identify, open_
        self._routes: dict[str, tuple[str, Handler]] = {
            "export": ("POST", self._export),
            "status": ("GET", self._status),
            "download": ("GET", self._download),
            "callback": ("POST", self._callback),
            "upload": ("PUT", self._upload),
            "payload": ("GET", self._payload),
        }

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        try:
            response = await self._answer(request)
        except ClientDisconnect:
            return
        except WindlassError as error:
            response = refused(error)
        except SpawnFailed as error:
            response = _error(500, str(error))
        except Exception:
            log.exception("%s %s failed", request.method, request.url.path)
            response = _error(500, "something is wrong on the server's side")
        try:
            await response(scope, receive, send)
        except (NotFound, Unavailable) as error:  # in the middle of an object: the connection ends too early
            log.warning("%s %s broke off: %s", request.method, request.url.path, error)

    async def _answer(self, request: Request) -> Response:
        _, what, *rest = request.url.path.split("/")
        method, handler = self._routes[what]
        allowed = {method, "HEAD"} if what in ("status", "download") else {method}
        if request.method not in allowed:
            return _error(405, f"only {method} is allowed here", {"allow": ", ".join(sorted(allowed))})
        if len(rest) != (2 if what == "upload" else 1) or not all(rest):
            return _error(404, "Not found")
        return await handler(request, rest[0])

    async def _principal(self, request: Request) -> Principal:
        found = _BEARER.fullmatch(request.headers.get("authorization", ""))
        if found is None and self._open:
            return ANYBODY
        if found is None:
            raise Unauthenticated("send a key: Authorization: Bearer KEY")
        return await self._identify(found[1])

    # ----------------------------------------------------------------------------------------- clients

    async def _export(self, request: Request, format_: str) -> Response:
        principal = await self._principal(request)
        body = await _body(request)
        key = request.headers.get("idempotency-key")
        if key is not None and not (0 < len(key) <= KEY_MAX and key.isascii() and key.isprintable()):
            raise Invalid(f"must have 1 to {KEY_MAX} visible ASCII characters", field="idempotency-key")
        trace = request.headers.get("traceparent")
        receipt = await self._service.export(principal, format_, body, key, trace if is_traceparent(trace) else None)
        return _json(receipt)

    async def _status(self, request: Request, name: str) -> Response:
        return _json(await self._service.status(await self._principal(request), name))

    async def _download(self, request: Request, name: str) -> Response:
        try:
            task_id, file, blob = await self._service.download(await self._principal(request), name)
        except NotReady as error:
            return Response(str(error), 400, media_type="text/plain")
        except NotFound as error:
            text = error.message if error.message == "Task not found" else "File not found in R2"
            return Response(text, 404, media_type="text/plain")
        headers = {
            "content-disposition": disposition(file),
            "content-length": str(blob.size),
            "cache-control": "no-store",
        }
        if request.method == "HEAD":
            return Response(None, 200, headers, content_type(file))
        return Download(lambda hand: self._service.handed_over(task_id, blob, hand), headers, content_type(file))

    # ----------------------------------------------------------------------------------------- machines

    async def _callback(self, request: Request, name: str) -> Response:
        await self._service.callback(name, _signature(request), lambda: _body(request))
        return _json({"received": True})

    async def _upload(self, request: Request, name: str) -> Response:
        file = request.url.path.split("/")[3]
        size = await self._service.upload(name, file, _signature(request), _pieces(request))
        return _json({"size": size})

    async def _payload(self, request: Request, name: str) -> Response:
        content = await self._service.payload(name, _signature(request))
        return Response(content, 200, {"cache-control": "no-store"}, "application/json")


class Download(Response):
    """A body that is handed over piece by piece. It is known to the end whether anybody is still there: a caller that
    has got its last byte may be gone the moment after."""

    def __init__(self, pour: Pour, headers: dict[str, str], media_type: str) -> None:
        super().__init__(None, 200, headers, media_type)
        self._pour = pour

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG002
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        leaving = asyncio.create_task(_left(receive))

        async def hand(piece: bytes) -> bool:
            if not leaving.done():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            return not leaving.done()

        try:
            await self._pour(hand)
            await send({"type": "http.response.body", "body": b""})
        finally:
            leaving.cancel()


async def _left(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _signature(request: Request) -> str | None:
    return request.query_params.get("sig") or request.headers.get("x-callback-signature")


async def _pieces(request: Request) -> AsyncIterator[bytes]:
    async for piece in request.stream():
        if piece:
            yield piece


async def _body(request: Request) -> bytes:
    return await gathered(request.headers.get("content-length", ""), request.stream(), BODY_MAX_BYTES)


def disposition(file: str) -> str:
    """As the document spells it; a name that is not plain is told in its own way as well."""
    plain = re.sub(r'[^ -~]|["\\]', "_", file)
    extended = "" if plain == file else f"; filename*=UTF-8''{quote(file, safe='')}"
    return f'attachment; filename="{plain}"{extended}'


def refused(error: WindlassError) -> Response:
    match error:
        case Unauthenticated():
            return _error(401, error.message, {"www-authenticate": "Bearer"})
        case Forbidden():
            return _error(403, error.message)
        case NotFound():
            return _error(404, error.message)
        case Conflict():
            return _error(409, error.message)
        case TooLarge():
            return _error(413, error.message)
        case Invalid():
            return _error(400, error.message)
        case Unavailable():
            return _error(503, told_message(error), {"retry-after": str(RETRY_AFTER_S)})
    log.error("refused by what nobody expected", exc_info=error)
    return _error(500, "something is wrong on the server's side")


def _error(status: int, text: str, headers: dict[str, str] | None = None) -> Response:
    return _json({"error": text}, status, headers)


def _json(content: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    more = {"cache-control": "no-store", **(headers or {})}
    return Response(msgspec.json.encode(content), status, more, "application/json")
