"""A callback worker as an ASGI application, without a framework."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windlass.contracts.callback.worker.worker import BODY_MAX_BYTES, Answer, make_answer
from windlass.errors import TooLarge
from windlass.net.asgi import Gone, Receive, Scope, Send, body_of, encoded, respond

if TYPE_CHECKING:
    from windlass.contracts.callback.worker.worker import CallbackWorker


async def serve(worker: CallbackWorker, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve one request, or the lifespan of the server if this is its whole application."""
    if scope["type"] == "lifespan":
        await _lifespan(worker, receive, send)
    elif scope["type"] == "http":
        answer = await _handle(worker, scope, receive)
        await respond(send, answer.status, answer.body, encoded(answer.headers))
    else:
        await send({"type": "websocket.close", "code": 1003})


async def _handle(worker: CallbackWorker, scope: Scope, receive: Receive) -> Answer:
    if scope["method"] != "POST":
        return make_answer(405, "method_not_allowed", "pushes are sent by POST")
    try:
        body = await body_of(dict(scope["headers"]), receive, BODY_MAX_BYTES)
    except Gone:
        return make_answer(400, "disconnected", "the client disconnected before the end of the body")
    except TooLarge:
        return make_answer(413, "too_large", f"a push has at most {BODY_MAX_BYTES} bytes")
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    return await worker.handle(headers, body)


async def _lifespan(worker: CallbackWorker, receive: Receive, send: Send) -> None:
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
