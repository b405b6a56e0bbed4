"""A callback worker as a router of FastAPI, which starts and stops the worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from windlass.contracts.callback.worker.worker import BODY_MAX_BYTES

if TYPE_CHECKING:
    from windlass.contracts.callback.worker.worker import CallbackWorker


def make_router(worker: CallbackWorker, path: str) -> Any:
    """FastAPI is a dependency of the service, so it is imported only here."""
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
