"""A worker that is pushed to as an ASGI application, without a framework."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from windlass.sdk.callback.worker import BODY_MAX_BYTES, Answer, told

if TYPE_CHECKING:
    from windlass.sdk.callback.worker import CallbackWorker

Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


async def serve(worker: CallbackWorker, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
    """One connection, or the life of the server if this is its whole application."""
    if scope["type"] == "lifespan":
        await _live(worker, receive, send)
    elif scope["type"] == "http":
        await _respond(await _answered(worker, scope, receive), send)
    else:
        await send({"type": "websocket.close", "code": 1003})


async def _answered(worker: CallbackWorker, scope: Mapping[str, Any], receive: Receive) -> Answer:
    if scope["method"] != "POST":
        return told(405, "method_not_allowed", "pushes are sent by POST")
    body = b""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return told(400, "disconnected", "the body did not come to its end")
        body += message.get("body", b"")
        if len(body) > BODY_MAX_BYTES:
            return told(413, "too_large", f"a push has at most {BODY_MAX_BYTES} bytes")
        if not message.get("more_body", False):
            break
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    return await worker.handle(headers, body)


async def _respond(answer: Answer, send: Send) -> None:
    headers = {**answer.headers, "content-length": str(len(answer.body))}
    encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": answer.status, "headers": encoded})
    await send({"type": "http.response.body", "body": answer.body})


async def _live(worker: CallbackWorker, receive: Receive, send: Send) -> None:
    await receive()
    try:
        await worker.start()
    except Exception as error:
        await send({"type": "lifespan.startup.failed", "message": str(error)})
        raise
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await worker.stop()
    await send({"type": "lifespan.shutdown.complete"})
