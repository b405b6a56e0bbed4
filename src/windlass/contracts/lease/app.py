"""The routes of the lease contract as a plain ASGI application, for a server that asks its callers for certificates.

Who calls is known by the certificate of its connection, which the server has checked and put into the scope. A server
that does not gets no route to work.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from urllib.parse import parse_qs

import msgspec

from windlass.contracts.lease.document import openapi_document
from windlass.contracts.lease.form import refused
from windlass.contracts.lease.service import Service
from windlass.contracts.lease.wakeup import NO_MESSAGES, WakeupRoutes, while_there
from windlass.core.check import PAYLOAD_MAX_BYTES
from windlass.core.error import Invalid, WindlassError
from windlass.core.holder import Caller
from windlass.wire.asgi import JSON, Gone, Header, Receive, Scope, Send, body_of, encoded, respond
from windlass.wire.body import advising
from windlass.wire.lease import RefusedAnswer
from windlass.wire.wakeup import RECEIVE

log = logging.getLogger("windlass.lease")

PREFIX, COMPLETE = "/internal/", "/internal/task-complete"
CALLER = "caller"  # in the state of a connection
BODY_MAX_BYTES = PAYLOAD_MAX_BYTES

Answer = tuple[int, bytes, list[Header]]


class LeaseApp:
    """Serves one engine."""

    def __init__(self, service: Service, wakeups: WakeupRoutes, version: str) -> None:
        self._service, self._wakeups = service, wakeups.posts
        self._encode = msgspec.json.Encoder().encode
        self._posts: dict[str, Callable[[bytes, Caller], Awaitable[object]]] = {
            "/internal/task-claim": service.claim,
            "/internal/heartbeat": service.heartbeat,
            COMPLETE: service.complete,
            "/internal/events": service.events,
            "/internal/buffer-publish": service.publish,
        }
        self._document = self._encode(openapi_document(version))
        self.state = SimpleNamespace(closing=asyncio.Event())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            caller: Caller = scope["state"][CALLER]
            status, content, extra = await self._answer(scope, receive, caller)
        except Gone:
            return
        except WindlassError as error:
            status, body, more = refused(error)
            content, extra = self._encode(body), encoded(more)
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            told = RefusedAnswer(error="internal", message="something is wrong on the server's side")
            status, content, extra = 500, self._encode(told), []
        await respond(send, status, content, [JSON, *extra])

    async def _answer(self, scope: Scope, receive: Receive, caller: Caller) -> Answer:
        method, path = scope["method"], scope["path"]
        log.debug("%s %s by %s", method, path, caller.subject)
        post = self._posts.get(path)
        if post is not None:
            if method != "POST":
                return self._refused(405, "method_not_allowed", "only POST is allowed here", b"POST")
            limit = BODY_MAX_BYTES + (self._service.room_bytes if path == COMPLETE else 0)
            with advising(self._service.advice if path == COMPLETE else ""):
                body = await body_of(dict(scope["headers"]), receive, limit)
            return 200, self._encode(await post(body, caller)), []
        if path in self._wakeups:
            body = await body_of(dict(scope["headers"]), receive, BODY_MAX_BYTES)
            return await self._wakeup(method, path, body, caller, receive)
        if path not in ("/internal/task-fetch", "/internal/openapi.json"):
            return self._refused(404, "not_found", "no route has this path")
        if method != "GET":
            return self._refused(405, "method_not_allowed", "only GET is allowed here", b"GET")
        if path == "/internal/openapi.json":
            return 200, self._document, []
        return 200, self._encode(await self._service.fetch(_asked_for(scope["query_string"]), caller)), []

    async def _wakeup(self, method: str, path: str, body: bytes, caller: Caller, receive: Receive) -> Answer:
        if method != "POST":
            return self._refused(405, "method_not_allowed", "only POST is allowed here", b"POST")
        answering = self._wakeups[path](body, caller)
        if path != RECEIVE:
            return 200, self._encode(await answering), []
        told = await while_there(answering, receive, self.state.closing)
        return 200, self._encode(NO_MESSAGES if told is None else told), []

    def _refused(self, status: int, error: str, message: str, allow: bytes = b"") -> Answer:
        headers = [(b"allow", allow)] if allow else []
        return status, self._encode(RefusedAnswer(error=error, message=message)), headers


def _asked_for(query: bytes) -> str:
    try:
        asked = parse_qs(query.decode("ascii"), max_num_fields=20).get("task_id", [])
    except ValueError:
        asked = []
    if len(asked) != 1:
        raise Invalid("give one task_id", field="task_id")
    return asked[0]
