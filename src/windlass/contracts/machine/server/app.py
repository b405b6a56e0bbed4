"""The routes of the machine contract.

Clients show a key: `POST /export/{format}`, `GET /status/{task_id}`, `GET /download/{task_id}`. Machines show their
signature: `POST /callback/{task_id}`, `PUT /upload/{task_id}/{file}`, `GET /payload/{task_id}`.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs, quote

import msgspec
from msgspec import Struct

from windlass.api.framework import openapi
from windlass.api.framework.application import Application, Authenticator, ErrorForm, Keys
from windlass.api.framework.request import Request
from windlass.api.framework.route import API_KEY, Route, Scheme, Table
from windlass.contracts.machine.server.forms import CallbackForm, ExportOrder, Receipt
from windlass.contracts.machine.server.service import MachineService, NotReady, Signed, SpawnFailed, content_type
from windlass.contracts.machine.wire.status import STATUS
from windlass.core.access import Principal, Role
from windlass.core.trace import is_traceparent
from windlass.errors import NotFound, WindlassError
from windlass.net.asgi import NO_STORE, Header, Receive, Response, Send, disconnected, encoded, pieces_of
from windlass.net.status import known_code, public_message

PREFIXES = ("/export/", "/status/", "/callback/", "/download/", "/upload/", "/payload/")
ANYBODY = Principal("anybody", Role.SUBMITTER, "default")
SIGNATURE = Scheme("signature", (("type", "apiKey"), ("in", "query"), ("name", "sig")))
FORMAT = {"schema": {"type": "string"}, "description": "The queue of the export, such as `mods`."}
TASK = {
    "schema": {"type": "string"},
    "description": "The `task_id` from the answer of the export request, or the task's UUID.",
}
ERRORS = {
    400: "The request is invalid, or the export is not ready.",
    401: "A valid key or signature is required.",
    403: "The key does not permit this.",
    404: "There is no such task, file or export format.",
    409: "The report contradicts an earlier one, or the attempt has ended.",
    413: "The body is too large.",
    503: "The server cannot do this now. Try again after `Retry-After`.",
}


class ErrorBody(Struct, frozen=True):
    """Why a request was refused."""

    error: str


class Received(Struct, frozen=True):
    """The report was received."""

    received: bool = True


class Uploaded(Struct, frozen=True):
    """The size of the object in bytes."""

    size: int


Call = Request[None, Any]


# --------------------------------------------------------------------------------------------- clients


async def export(call: Call) -> Receipt | Response:
    trace = call.header("traceparent")
    try:
        receipt: Receipt = await call.service.export(
            call.caller, call.path["format"], call.body, call.key, trace if is_traceparent(trace) else None
        )
    except SpawnFailed as error:
        return Response(msgspec.json.encode(ErrorBody(str(error))), 500, headers=(NO_STORE,))
    return receipt


async def status(call: Call) -> object:
    return await call.service.status(call.caller, call.path["task_id"])


async def download(call: Call) -> Response:
    service: MachineService = call.service
    try:
        task_id, file, blob = await service.download(call.caller, call.path["task_id"])
    except NotReady as error:
        return Response(str(error).encode(), 400, "text/plain; charset=utf-8")
    except NotFound as error:
        text = error.message if error.message == "Task not found" else "File not found in R2"
        return Response(text.encode(), 404, "text/plain; charset=utf-8")
    headers = encoded({"content-disposition": disposition(file), "content-length": str(blob.size)})
    if call.scope["method"] == "HEAD":
        return Download(None, content_type(file), [NO_STORE, *headers])
    return Download(lambda send: service.send_object(task_id, blob, send), content_type(file), [NO_STORE, *headers])


# --------------------------------------------------------------------------------------------- machines


async def signed(call: Call) -> Signed:
    query = parse_qs(call.scope["query_string"].decode("latin-1"))
    signature = query.get("sig", [""])[-1] or call.header("x-callback-signature")
    caller: Signed = await call.service.signed(call.path["task_id"], signature)
    return caller


async def callback(call: Call) -> Received:
    await call.service.callback(call.path["task_id"], call.caller, call.body)
    return Received()


async def upload(call: Call) -> Uploaded:
    return Uploaded(await call.service.upload(call.caller, call.path["file"], pieces_of(call.receive)))


async def payload(call: Call) -> msgspec.Raw:
    return msgspec.Raw(await call.service.payload(call.caller))


TABLES = (
    Table("clients", [
        Route("POST", "/export/{format}", export, "export", "Start an export on a machine.", API_KEY, Role.SUBMITTER,
              body=ExportOrder, answer=Receipt, headers=("idempotency-key", "traceparent"), raw=True,
              errors=(400, 401, 403, 404, 409, 413, 503)),
        Route("GET", "/status/{task_id}", status, "status", "Get the state of an export.", API_KEY, Role.VIEWER,
              errors=(401, 403, 404, 503)),
        Route("GET", "/download/{task_id}", download, "download", "Download the file of an export.", API_KEY,
              Role.VIEWER, media="application/octet-stream", errors=(400, 401, 403, 404, 503)),
    ]),
    Table("machines", [
        Route("POST", "/callback/{task_id}", callback, "callback", "Report the result of a machine.", SIGNATURE,
              body=CallbackForm, answer=Received, raw=True, errors=(400, 401, 404, 409, 413, 503)),
        Route("PUT", "/upload/{task_id}/{file}", upload, "upload", "Upload the file of a machine through the server.",
              SIGNATURE, answer=Uploaded, errors=(400, 401, 404, 409, 503)),
        Route("GET", "/payload/{task_id}", payload, "payload", "Get the payload of a machine's task.", SIGNATURE,
              errors=(401, 404, 503)),
    ]),
)  # fmt: skip
ROUTES = [route for table in TABLES for route in table.routes]
CONTRACT = openapi.Contract(
    info={"title": "Windlass machines", "summary": "Exports that run on machines of their own."},
    scheme=API_KEY,
    error=ErrorBody,
    errors=ERRORS,
    parameters={"format": FORMAT, "task_id": TASK},
)


def openapi_document(version: str) -> dict[str, Any]:
    return openapi.document(TABLES, CONTRACT, version)


def make_app(service: MachineService, keys: Keys, version: str, *, open_: bool = False) -> Application:
    """The application for one engine. With `open_`, clients need no key."""
    app = Application(
        ROUTES, service, ErrorForm(_refused, _plain), log=logging.getLogger("windlass.machine"), keys=keys,
        anonymous=ANYBODY if open_ else None, authenticate={SIGNATURE.name: Authenticator(signed)},
    )  # fmt: skip
    app.add_document("/export/openapi.json", API_KEY, openapi_document(version))
    return app


def _refused(error: WindlassError) -> tuple[int, ErrorBody]:
    return STATUS[known_code(error)], ErrorBody(public_message(error))


def _plain(status: int, _code: str, message: str) -> ErrorBody:
    return ErrorBody("Not found" if status == 404 else message)


Transfer = Callable[[Callable[[bytes], Awaitable[bool]]], Awaitable[None]]


class Download(Response):
    """A file that is sent piece by piece. A caller may disconnect as soon as it has the last byte, so a disconnect does
    not cancel the transfer: `transfer` learns with each piece whether the caller is still connected."""

    def __init__(self, transfer: Transfer | None, media: str, headers: list[Header]) -> None:
        super().__init__(b"", 200, media, headers)
        self._transfer = transfer

    async def send(self, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.headers})
        disconnect = asyncio.create_task(disconnected(receive))

        async def send_piece(piece: bytes) -> bool:
            if not disconnect.done():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            return not disconnect.done()

        try:
            if self._transfer is not None:
                await self._transfer(send_piece)
            await send({"type": "http.response.body", "body": b""})
        finally:
            disconnect.cancel()


def disposition(file: str) -> str:
    """The Content-Disposition of a file. A name with characters outside printable ASCII is repeated, encoded."""
    plain = re.sub(r'[^ -~]|["\\]', "_", file)
    extended = "" if plain == file else f"; filename*=UTF-8''{quote(file, safe='')}"
    return f'attachment; filename="{plain}"{extended}'
