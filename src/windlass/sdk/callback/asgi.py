"""A worker that is pushed to as an ASGI application, without a framework."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windlass.core.error import TooLarge
from windlass.sdk.callback.worker import BODY_MAX_BYTES, Answer, told
from windlass.wire.asgi import Gone, Receive, Scope, Send, body_of, encoded, respond

if TYPE_CHECKING:
    from windlass.sdk.callback.worker import CallbackWorker


async def serve(worker: CallbackWorker, scope: Scope, receive: Receive, send: Send) -> None:
    """One connection, or the life of the server if this is its whole application."""
    if scope["type"] == "lifespan":
        await _live(worker, receive, send)
    elif scope["type"] == "http":
        answer = await _answered(worker, scope, receive)
        await respond(send, answer.status, answer.body, encoded(answer.headers))
    else:
        await send({"type": "websocket.close", "code": 1003})


async def _answered(worker: CallbackWorker, scope: Scope, receive: Receive) -> Answer:
    if scope["method"] != "POST":
        return told(405, "method_not_allowed", "pushes are sent by POST")
    try:
        body = await body_of(dict(scope["headers"]), receive, BODY_MAX_BYTES)
    except Gone:
        return told(400, "disconnected", "the body did not come to its end")
    except TooLarge:
        return told(413, "too_large", f"a push has at most {BODY_MAX_BYTES} bytes")
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    return await worker.handle(headers, body)


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
