"""The HTTP client: deadlines, limits, connections that are kept, and what each failure becomes."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress

import pytest

from windlass.net.backoff import Backoff, Transient
from windlass.net.http import Client, ConnectFailed, Interrupted, TimedOut, Unreachable

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
Script = Callable[[socket.socket], None]


class Server:
    """Plays one script for each connection, one after the other."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/x"
        self.scripts: list[Script] = []
        self.connections = 0
        self._threads = [threading.Thread(target=self._serve)]
        self._threads[0].start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                self._threads.append(threading.Thread(target=self._play, args=[connection, self.scripts.pop(0)]))
                self._threads[-1].start()

    @staticmethod
    def _play(connection: socket.socket, script: Script) -> None:
        with connection, suppress(OSError):
            script(connection)

    def close(self) -> None:
        """Scripts end when the client closes its connections, which it does first."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept
        self._listener.close()
        for thread in self._threads:
            thread.join()


def answer(*replies: bytes) -> Script:
    """Read one request before each reply, and close after the last."""

    def script(connection: socket.socket) -> None:
        for reply in replies:
            if not connection.recv(65536):  # a request fits into one read
                return
            connection.sendall(reply)

    return script


@pytest.fixture
def server() -> Iterator[Server]:
    with closing(Server()) as server:
        yield server


@pytest.fixture
def client() -> Iterator[Client]:
    with closing(Client(timeout_s=5)) as client:
        yield client


def test_a_connection_is_kept_for_the_next_request(server: Server, client: Client) -> None:
    server.scripts = [answer(OK, OK)]

    assert [client.request("GET", server.url).content for _ in range(2)] == [b"ok", b"ok"]
    assert server.connections == 1


def test_a_kept_connection_that_the_server_closes_instead_of_answering_costs_nothing(
    server: Server, client: Client
) -> None:
    def closes_later(connection: socket.socket) -> None:
        answer(OK)(connection)
        connection.recv(65536)

    server.scripts = [closes_later, answer(OK)]

    assert [client.request("GET", server.url).content for _ in range(2)] == [b"ok", b"ok"]
    assert server.connections == 2


def test_a_new_connection_that_is_closed_is_an_error(server: Server, client: Client) -> None:
    server.scripts = [lambda connection: connection.recv(65536) and None]

    with pytest.raises(Unreachable, match=r"127\.0\.0\.1: RemoteDisconnected"):
        client.request("GET", server.url)
    assert server.connections == 1


@pytest.mark.parametrize(
    "beginning", [b"HTTP/1.1 200 OK\r\nX-Slow: ", b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n"]
)
def test_an_answer_that_trickles_ends_at_the_deadline(server: Server, client: Client, beginning: bytes) -> None:
    def trickle(connection: socket.socket) -> None:
        answer(beginning)(connection)
        while True:
            connection.sendall(b"x")
            time.sleep(0.05)

    server.scripts = [trickle]
    began_s = time.monotonic()

    with pytest.raises(TimedOut, match=r"no answer within 0\.5 s"):
        client.request("GET", server.url, timeout_s=0.5)
    assert time.monotonic() - began_s < 3


@pytest.mark.parametrize(
    "head", [b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n", b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"]
)
def test_a_body_that_is_longer_than_the_limit_is_not_read(server: Server, client: Client, head: bytes) -> None:
    server.scripts = [answer(head + b"hello world"), answer(head + b"hello world")]

    assert client.request("GET", server.url, limit=10).body is None
    assert client.request("GET", server.url, limit=11).body == b"hello world"


def test_a_body_that_ends_too_early_is_an_error(server: Server, client: Client) -> None:
    server.scripts = [answer(b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nhello")]

    with pytest.raises(Unreachable, match="IncompleteRead"):
        client.request("GET", server.url)


def test_a_redirect_is_an_answer(server: Server, client: Client) -> None:
    server.scripts = [answer(b"HTTP/1.1 302 Found\r\nLocation: /y\r\nContent-Length: 0\r\n\r\n")]

    reply = client.request("GET", server.url)

    assert (reply.status, reply.headers["location"]) == (302, "/y")


def test_a_server_that_is_not_there_is_told_from_one_that_breaks_off(server: Server, client: Client) -> None:
    server.close()

    with pytest.raises(ConnectFailed, match="Connection refused"):
        client.request("GET", server.url)


@pytest.mark.parametrize("url", ["ftp://a.example/x", "http:///x", "http://user:word@127.0.0.1:1/x", "http://a b/x"])
def test_a_url_that_is_none_is_an_error_without_its_password(client: Client, url: str) -> None:
    with pytest.raises(Unreachable) as error:
        client.request("GET", url)
    assert "word" not in str(error.value)


class Body:
    """A body without an end; `reply_wait_s` is for the client."""

    reply_wait_s = 0.0
    sent = 0

    def read(self, size: int = -1, /) -> bytes:
        self.sent += size
        return bytes(size)


def test_a_refusal_in_the_middle_of_a_body_is_read_when_the_client_waits_for_it(server: Server, client: Client) -> None:
    def refuse(connection: socket.socket) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")  # close with a reset
        connection.recv(100)
        connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
        time.sleep(0.2)

    server.scripts, body = [refuse, refuse], Body()
    headers = {"Content-Length": str(10**12)}
    with suppress(Interrupted):  # the reset may discard the answer
        client.request("PUT", server.url, headers=headers, body=body)
    assert body.sent > 0

    body = Body()
    body.reply_wait_s = 5.0
    assert client.request("PUT", server.url, headers=headers, body=body).status == 403
    assert body.sent == 0


def test_persist_repeats_what_may_pass_after_the_time_that_the_server_asks_for(server: Server, client: Client) -> None:
    busy = b"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n"
    server.scripts, pauses = [answer(busy, busy, OK)], list[float]()

    reply = client.persist("GET", server.url, until=time.monotonic() + 60, wait=pauses.append)

    assert (reply.status, pauses) == (200, [7.0, 7.0])


@pytest.mark.parametrize(("until_s", "tries_max", "gives_up"), [(3, 9, False), (60, 1, False), (60, 9, True)])
def test_persist_ends_with_its_time_its_tries_or_a_wait_that_says_so(
    server: Server, client: Client, until_s: float, tries_max: int, gives_up: bool
) -> None:
    server.scripts = [answer(b"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n", OK)]

    with pytest.raises(Transient, match="503 Busy"):
        client.persist(
            "GET", server.url, until=time.monotonic() + until_s, wait=lambda _: gives_up, tries_max=tries_max
        )


def test_pauses_double_up_to_the_longest_and_begin_again_after_a_success() -> None:
    backoff, expected = Backoff(1.0, 5.0), [1.0, 2.0, 4.0, 5.0, 5.0]

    assert all(0.7 * pause_s <= backoff.next_s() <= pause_s for pause_s in expected)
    assert backoff.next_s(at_least_s=30.0) == 30.0
    backoff.reset()
    assert 0.7 <= backoff.next_s() <= 1.0


def test_the_pieces_of_a_stream_come_one_by_one_for_longer_than_one_timeout(server: Server) -> None:
    def drip(connection: socket.socket) -> None:
        answer(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")(connection)
        for _ in range(8):
            connection.sendall(b"x")
            time.sleep(0.1)
        connection.recv(1)  # until the client closes

    server.scripts = [drip]
    with closing(Client(timeout_s=0.5)) as client, client.stream("GET", server.url) as (head, pieces):
        content = b"".join(next(pieces) for _ in range(8))

        assert (head.status, content) == (200, b"x" * 8)
        with pytest.raises(TimedOut):
            next(pieces)
