"""An archive, an orchestrator and a store of objects, over real HTTP; as honest or as hostile as a test wants them."""

from __future__ import annotations

import json
import ssl
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

TS = "2025-11-01T09:30:00Z"


@dataclass
class Answer:
    """What a path answers. `cut` ends the connection after so many bytes of the body; `gate` is waited for first; after
    `drip` comes a byte every now and then, for longer than anybody should listen."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: int | None = None
    chunked: bool = False
    gate: threading.Event | None = None
    drip: bytes = b""


@dataclass
class Request:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Archive:
    """`answers` are for ever, `trouble` is used up answer by answer before them."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.trouble: dict[str, list[Answer]] = defaultdict(list)
        self.requests: list[Request] = []
        self.most_at_once = self.at_once = 0
        self.url = ""
        self.seen: Callable[[str], object] = lambda path: None
        self._lock = threading.Condition()
        self._cids = 0

    # ------------------------------------------------------------------------------------------ what is in it

    def entity(
        self,
        pi: str,
        *,
        pinax: Any = None,
        description: str | bytes | None = None,
        graph: Any = None,
        refs: Mapping[str, Any] | None = None,
        files: Mapping[str, bytes] | None = None,
        children: Sequence[Any] = (),
        parent: str | None = None,
        **more: Any,
    ) -> dict[str, str]:
        """Put an entity into the archive, and tell the CIDs of its files."""
        said: dict[str, bytes] = {}
        if pinax is not None:
            said["pinax.json"] = as_bytes(pinax)
        if description is not None:
            said["description.md"] = description.encode() if isinstance(description, str) else description
        if graph is not None:
            said["cheimarros.json"] = as_bytes(graph)
        said |= {name: as_bytes(ref) for name, ref in (refs or {}).items()}
        said |= files or {}
        components = {name: self.file(content) for name, content in said.items()}
        manifest = {"pi": pi, "ver": 1, "ts": TS, "manifest_cid": f"bafyM{pi[-6:]}", "components": components}
        if children:
            manifest["children_pi"] = list(children)
        if parent:
            manifest["parent_pi"] = parent
        self.answers[f"/entities/{pi}"] = Answer(body=json.dumps({**manifest, **more}).encode())
        return components

    def file(self, content: bytes, cid: str = "") -> str:
        self._cids += 1
        cid = cid or f"bafyFILE{self._cids}"
        self.answers[f"/ipfs/{cid}"] = Answer(body=content)
        return cid

    def asked(self, prefix: str) -> list[str]:
        return [request.path for request in self.requests if request.path.startswith(prefix)]

    def until_asked(self, prefix: str) -> None:
        with self._lock:
            assert self._lock.wait_for(lambda: self.asked(prefix), 45), f"nobody asked for {prefix}"

    # ------------------------------------------------------------------------------------------ what it was told

    @property
    def callbacks(self) -> list[Any]:
        return [request.json for request in self.requests if request.method == "POST"]

    @property
    def uploads(self) -> dict[str, bytes]:
        return {request.path: request.body for request in self.requests if request.method == "PUT"}

    def answer_to(self, request: Request) -> Answer:
        path = urlsplit(request.path).path
        self.seen(path)
        with self._lock:
            self.requests.append(request)
            self._lock.notify_all()
            if self.trouble[path]:
                return self.trouble[path].pop(0)
        if request.method in {"PUT", "POST"}:
            return self.answers.get(path) or Answer(body=b'{"received": true}')
        return self.answers.get(path) or Answer(404, b'{"error": "NOT_FOUND", "message": "nobody"}')

    def here(self, change: int) -> None:
        with self._lock:
            self.at_once += change
            self.most_at_once = max(self.most_at_once, self.at_once)


def as_bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value).encode()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    archive: Archive

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.archive.here(+1)
        try:
            self.tell(self.archive.answer_to(Request(self.command, self.path, dict(self.headers.items()), body)))
        finally:
            self.archive.here(-1)

    do_POST = do_PUT = do_DELETE = do_GET

    def tell(self, answer: Answer) -> None:
        if answer.gate is not None:
            answer.gate.wait(60)
        if answer.drip:
            self.dribble(answer.drip)
            return
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if answer.chunked:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        try:
            if answer.chunked:
                pieces = [answer.body[n : n + 60_000] for n in range(0, len(answer.body), 60_000)]
                for piece in [*(p for p in pieces if p), b""]:
                    self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            else:
                self.wfile.write(answer.body[: answer.cut])
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        if answer.cut is not None:
            self.close_connection = True

    def dribble(self, beginning: bytes) -> None:
        self.close_connection = True
        with suppress(BrokenPipeError, ConnectionResetError):
            self.wfile.write(beginning)
            for _ in range(400):
                self.wfile.write(b"a")
                threading.Event().wait(0.05)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 200

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # somebody hung up


@contextmanager
def open_archive(tls: ssl.SSLContext | None = None) -> Iterator[Archive]:
    archive = Archive()
    server = Server(("127.0.0.1", 0), type("Handler", (Handler,), {"archive": archive}))
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    archive.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_port}"
    try:
        yield archive
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
