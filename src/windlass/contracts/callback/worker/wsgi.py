"""A callback worker as a WSGI application."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from windlass.contracts.callback.worker.worker import BODY_MAX_BYTES, Answer, make_answer

if TYPE_CHECKING:
    from windlass.contracts.callback.worker.worker import CallbackWorker


def serve(worker: CallbackWorker, environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
    answer = _handle(worker, environ)
    headers = [*answer.headers.items(), ("content-length", str(len(answer.body)))]
    start_response(f"{answer.status} {HTTPStatus(answer.status).phrase}", headers)
    return [answer.body]


def _handle(worker: CallbackWorker, environ: dict[str, Any]) -> Answer:
    if environ["REQUEST_METHOD"] != "POST":
        return make_answer(405, "method_not_allowed", "pushes are sent by POST")
    length = environ.get("CONTENT_LENGTH") or "0"
    if not length.isdigit() or int(length) > BODY_MAX_BYTES:
        return make_answer(413, "too_large", f"a push has at most {BODY_MAX_BYTES} bytes")
    headers = {
        name.removeprefix("HTTP_").replace("_", "-").lower(): value
        for name, value in environ.items()
        if name.startswith("HTTP_")
    }
    return worker.handle_sync(headers, environ["wsgi.input"].read(int(length)))
