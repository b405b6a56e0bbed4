"""An HTTP server for one test, in background threads: a function answers each request."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

BODY_MAX_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True)
class Reply:
    """The answer to a request. Status 0 closes the connection without an answer."""

    status: int = 200
    body: Mapping[str, Any] | bytes = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


class Request:
    """`target` is the path and the query as received."""

    def __init__(self, method: str, target: str, headers: Message, stream: BufferedIOBase) -> None:
        self.method, self.target, self.headers, self.stream = method, target, headers, stream
        parts = urlsplit(target)
        self.path = unquote(parts.path)
        self.query = dict(parse_qsl(parts.query, keep_blank_values=True))
        length = headers.get("Content-Length") or ""
        self.length = int(length) if length.isdigit() else 0

    def body(self) -> bytes:
        return self.stream.read(min(self.length, BODY_MAX_BYTES))


class Listener:
    """Listens on loopback, or on `host`, inside the `with` block."""

    def __init__(
        self,
        answer: Callable[[Request], Reply],
        *,
        host: str = "127.0.0.1",
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._server = _Server((host, 0), answer)
        name, port = self._server.server_address[:2]
        if ssl_context is not None:
            self._server.socket = ssl_context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.url = f"{'http' if ssl_context is None else 'https'}://{name!s}:{port}"

    def __enter__(self) -> Listener:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], answer: Callable[[Request], Reply]) -> None:
        self.answer = answer
        super().__init__(address, _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore it: a worker that is killed closes its connections."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 65536  # head and body in one piece
    server: _Server

    def _answer(self) -> None:
        request = Request(self.command, self.path, self.headers, self.rfile)
        reply = self.server.answer(request)
        if reply.status == 0:
            self.close_connection = True
            return
        body = reply.body if isinstance(reply.body, bytes) else json.dumps(dict(reply.body)).encode()
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        if "Content-Type" not in reply.headers:
            self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = _answer  # noqa: N815 (names of the base class)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (as in the base class)
        pass
