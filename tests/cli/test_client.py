"""The client of the API with servers that misbehave: what it tries again, and which error a person gets."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from windlass.api.client import ApiClient, Unreachable, error_of
from windlass.errors import (
    Conflict,
    ContractViolation,
    Forbidden,
    Invalid,
    NotFound,
    Overloaded,
    Rejected,
    StoreBusy,
    Unavailable,
    WindlassError,
)

Answer = tuple[int, Any] | tuple[int, Any, dict[str, str]] | None


@dataclass
class Peer:
    """Answers one after the other; None breaks the connection off. The last answer is given again and again."""

    answers: list[Answer]
    asked: list[tuple[str, str, dict[str, str], Any]] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    url: str = ""

    def client(self, **more: Any) -> ApiClient:
        return ApiClient(self.url, "wl_key", pause=self.pauses.append, **more)


Serve = Callable[..., Peer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[ThreadingHTTPServer] = []

    def start(*answers: Answer) -> Peer:
        peer = Peer(list(answers))

        class Handler(BaseHTTPRequestHandler):
            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                peer.asked.append((self.command, self.path, dict(self.headers), json.loads(body) if body else None))
                answer = peer.answers.pop(0) if len(peer.answers) > 1 else peer.answers[0]
                if answer is None:
                    return
                status, content, *headers = answer
                self.send_response(status)
                for name, value in (headers[0] if headers else {}).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content if isinstance(content, bytes) else json.dumps(content).encode())

            do_GET = do_POST = do_PUT = do_DELETE = handle_any

            def log_message(self, *_: Any) -> None: ...

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        peer.url = f"http://127.0.0.1:{server.server_port}"
        return peer

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_call_carries_the_key_the_query_and_the_body(serve: Serve) -> None:
    peer = serve((200, {"ok": True}))

    assert peer.client().get("/tasks", {"state": ("queued", "running"), "queue": None, "kind": "a b"}) == {"ok": True}
    assert peer.client().put("/queues/größe", {"paused": True}) == {"ok": True}

    (_, path, headers, body), (method, put_path, _, put_body) = peer.asked
    assert path == "/api/v1/tasks?state=queued&state=running&kind=a+b"
    assert headers["Authorization"] == "Bearer wl_key"
    assert body is None
    assert (method, put_path, put_body) == ("PUT", "/api/v1/queues/gr%C3%B6%C3%9Fe", {"paused": True})


def test_a_busy_server_is_asked_again_with_the_same_request_after_the_time_it_names(serve: Serve) -> None:
    busy = {"code": "store_busy", "detail": "the database is away"}
    peer = serve((503, busy), (503, busy, {"Retry-After": "3"}), None, (201, {"id": "x"}))

    assert peer.client().post("/tasks", {"kind": "a"}) == {"id": "x"}

    assert peer.pauses == [pytest.approx(0.085, abs=0.016), 3.0, pytest.approx(0.34, abs=0.061)]
    assert len({headers["Idempotency-Key"] for _, _, headers, _ in peer.asked}) == 1
    assert {json.dumps(body) for *_, body in peer.asked} == {'{"kind": "a"}'}


def test_patience_has_an_end(serve: Serve) -> None:
    peer = serve((503, {"code": "store_busy", "detail": "the database is away"}))

    with pytest.raises(StoreBusy, match="the database is away"):
        peer.client(retry_s=1.0).get("/tasks")
    assert sum(peer.pauses) == pytest.approx(1.0)


def test_two_calls_have_two_keys(serve: Serve) -> None:
    peer = serve((201, {}))
    for _ in range(2):
        peer.client().post("/tasks", {})

    assert len({headers["Idempotency-Key"] for _, _, headers, _ in peer.asked}) == 2


def test_a_server_that_is_not_there_is_said_at_once() -> None:
    pauses: list[float] = []
    with pytest.raises(Unreachable, match=r"cannot reach http://127.0.0.1:1: Connection refused. Does `windlass dev`"):
        ApiClient("http://127.0.0.1:1", pause=pauses.append).get("/tasks")
    assert pauses == []
    assert issubclass(Unreachable, Unavailable)


def test_what_is_refused_is_not_sent_again(serve: Serve) -> None:
    peer = serve((422, {"code": "invalid", "detail": "kind: must be text", "field": "kind", "status": 422}))

    with pytest.raises(Invalid) as refused:
        peer.client().post("/tasks", {})
    assert (refused.value.message, refused.value.field) == ("kind: must be text", "kind")
    assert len(peer.asked) == 1


def test_an_answer_that_is_not_ours_is_said_to_be_none(serve: Serve) -> None:
    with pytest.raises(ContractViolation, match=r"not JSON: is it Windlass\?"):
        serve((200, b"<html>hello</html>")).client().get("/tasks")


def test_pages_are_read_one_after_the_other_up_to_the_limit(serve: Serve) -> None:
    peer = serve((200, {"items": [1, 2], "next": "b"}), (200, {"items": [3, 4], "next": "c"}))

    assert list(peer.client().items("/tasks", {}, 3)) == [1, 2, 3]
    assert [path for _, path, _, _ in peer.asked] == ["/api/v1/tasks?limit=3", "/api/v1/tasks?after=b&limit=1"]


@pytest.mark.parametrize(
    ("status", "content", "kind", "message"),
    [
        (404, {"code": "not_found", "detail": "there is no task x"}, NotFound, "there is no task x"),
        (409, {"code": "conflict", "title": "Conflict"}, Conflict, "Conflict"),
        (403, {"code": "forbidden", "detail": "no"}, Forbidden, "no"),
        (503, {"code": "overloaded", "detail": "too much"}, Overloaded, "too much"),
        (409, {"code": "a_code_of_tomorrow", "detail": "new"}, Conflict, "new"),
        (401, b"<html>", Forbidden, "the server answered 401"),
        (502, b"bad gateway", Unavailable, "the server answered 502"),
        (418, b"[]", Rejected, "the server answered 418"),
    ],
)
def test_a_problem_becomes_the_error_that_it_was(
    status: int, content: Any, kind: type[WindlassError], message: str
) -> None:
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()

    error = error_of(status, raw)

    assert type(error) is kind
    assert (error.message, str(error)) == (message, message)


@pytest.mark.parametrize("url", ["127.0.0.1:8420", "ftp://x", "http://", ""])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(Invalid, match="url: must begin with"):
        ApiClient(url)
