"""A callback worker as an ASGI application, as a WSGI application, and as a router of FastAPI."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from windlass.contracts.callback.worker.worker import BODY_MAX_BYTES, TOO_LARGE, Answer, make_answer
from windlass.errors import TooLarge
from windlass.net.asgi import Disconnected, Receive, Scope, Send, body_of, encoded, respond

if TYPE_CHECKING:
    from windlass.contracts.callback.worker.worker import CallbackWorker

NOT_POST = make_answer(405, "method_not_allowed", "pushes are sent by POST")


async def serve_asgi(worker: CallbackWorker, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve one request, or the lifespan of the server if this is its whole application."""
    if scope["type"] == "lifespan":
        await _lifespan(worker, receive, send)
    elif scope["type"] == "http":
        answer = await _handle_asgi(worker, scope, receive)
        await respond(send, answer.status, answer.body, encoded(answer.headers))
    else:
        await send({"type": "websocket.close", "code": 1003})


async def _handle_asgi(worker: CallbackWorker, scope: Scope, receive: Receive) -> Answer:
    if scope["method"] != "POST":
        return NOT_POST
    try:
        body = await body_of(dict(scope["headers"]), receive, BODY_MAX_BYTES)
    except Disconnected:
        return make_answer(400, "disconnected", "the client disconnected before the end of the body")
    except TooLarge:
        return TOO_LARGE
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


def serve_wsgi(worker: CallbackWorker, environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
    answer = _handle_wsgi(worker, environ)
    headers = [*answer.headers.items(), ("content-length", str(len(answer.body)))]
    start_response(f"{answer.status} {HTTPStatus(answer.status).phrase}", headers)
    return [answer.body]


def _handle_wsgi(worker: CallbackWorker, environ: dict[str, Any]) -> Answer:
    if environ["REQUEST_METHOD"] != "POST":
        return NOT_POST
    length = environ.get("CONTENT_LENGTH") or "0"
    if not length.isdigit() or int(length) > BODY_MAX_BYTES:
        return TOO_LARGE
    headers = {
        name.removeprefix("HTTP_").replace("_", "-").lower(): value
        for name, value in environ.items()
        if name.startswith("HTTP_")
    }
    return worker.handle_sync(headers, environ["wsgi.input"].read(int(length)))


def make_router(worker: CallbackWorker, path: str) -> Any:
    """A router that starts and stops the worker. FastAPI is a dependency of the service, so it is imported only
    here."""
    import fastapi

    router = fastapi.APIRouter(lifespan=worker.lifespan)

    async def push(request: fastapi.Request) -> fastapi.Response:
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > BODY_MAX_BYTES:
                break  # `handle` refuses it for its length
        answer = await worker.handle(request.headers, body)
        return fastapi.Response(answer.body, status_code=answer.status, headers=answer.headers)

    push.__annotations__ = {"request": fastapi.Request, "return": fastapi.Response}  # names that only live in here
    router.add_api_route(path, push, methods=["POST"], include_in_schema=False, response_model=None)
    return router
