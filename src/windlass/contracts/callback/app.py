"""The routes of the callback contract, as a plain ASGI application: nothing stands between the server and the rules.

`/v1/tasks/{task_id}/started|heartbeat|completed` for workers, and the documents that describe them.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import msgspec

from windlass.contracts.callback.document import envelope_schema, openapi_document
from windlass.contracts.callback.form import RefusedAnswer, refused
from windlass.contracts.callback.service import Saying, Service
from windlass.core.check import PAYLOAD_MAX_BYTES
from windlass.core.error import TooLarge, Unauthenticated, WindlassError
from windlass.wire.asgi import JSON, Gone, Header, Receive, Scope, Send, body_of, encoded, respond
from windlass.wire.body import advising

log = logging.getLogger("windlass.callback")

PREFIX = "/v1/"
BODY_MAX_BYTES = PAYLOAD_MAX_BYTES

Identify = Callable[[str], Awaitable[object]]
Route = Callable[[Saying], Awaitable[object]]


class CallbackApp:
    """Serves one engine. `identify` lets in who may read the documents. What a worker returns may be longer than all
    else that it says, by `output_max_bytes`; `advice` says how it may be longer still."""

    def __init__(
        self, service: Service, identify: Identify, version: str, output_max_bytes: int = 0, advice: str = ""
    ) -> None:
        self._service, self._identify, self._large_max_bytes = service, identify, BODY_MAX_BYTES + output_max_bytes
        self._advice = advice
        self._encode = msgspec.json.Encoder().encode
        self._routes: dict[str, Route] = {
            "started": service.started,
            "heartbeat": service.heartbeat,
            "completed": service.completed,
        }
        self._documents = {
            "/v1/openapi.json": self._encode(openapi_document(version)),
            "/v1/task-envelope.schema.json": self._encode(envelope_schema()),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        try:
            status, content, extra = await self._answer(scope["method"], scope["path"], headers, receive)
        except Gone:
            return
        except WindlassError as error:
            status, body, more = refused(error)
            content, extra = self._encode(body), encoded(more)
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            status, extra = 500, []
            content = self._encode(RefusedAnswer(error="internal", message="something is wrong on the server's side"))
        await respond(send, status, content, [JSON, *extra])

    async def _answer(
        self, method: str, path: str, headers: dict[bytes, bytes], receive: Receive
    ) -> tuple[int, bytes, list[Header]]:
        parts = path.split("/")
        route = self._routes.get(parts[4]) if len(parts) == 5 and parts[2] == "tasks" else None
        if route is None:
            return await self._described(method, path, headers)
        if method != "POST":
            return self._refused(405, "method_not_allowed", "only POST is allowed here", [(b"allow", b"POST")])
        token = _bearer(headers)
        scope = self._service.known(token, parts[3]) or await self._service.admitted(token, parts[3])
        large = parts[4] == "completed"
        try:  # only now: nothing is read from who shows no token of ours
            with advising(self._advice if large else ""):
                body = await body_of(headers, receive, self._large_max_bytes if large else BODY_MAX_BYTES)
        except TooLarge:
            await self._service.check_time(scope)
            raise
        trace = headers.get(b"traceparent")
        said = self._service.saying(scope, body, None if trace is None else trace.decode("latin-1"))
        return 200, self._encode(await route(said)), []

    async def _described(self, method: str, path: str, headers: dict[bytes, bytes]) -> tuple[int, bytes, list[Header]]:
        """The documents tell nothing of anybody's work, but nothing except health answers without a key."""
        document = self._documents.get(path)
        if document is None:
            return self._refused(404, "not_found", "no route has this path", [])
        if method != "GET":
            return self._refused(405, "method_not_allowed", "only GET is allowed here", [(b"allow", b"GET")])
        await self._identify(_bearer(headers))
        return 200, document, []

    def _refused(self, status: int, error: str, message: str, headers: list[Header]) -> tuple[int, bytes, list[Header]]:
        return status, self._encode(RefusedAnswer(error=error, message=message)), headers


def _bearer(headers: dict[bytes, bytes]) -> str:
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() != b"bearer" or not token:
        raise Unauthenticated("send the token of the task: Authorization: Bearer TOKEN")
    return token.strip().decode("latin-1")
