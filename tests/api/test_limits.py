"""What callers can do to a server without a key, and with one: a real `windlass serve`, real sockets, few files."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import httpx
import pytest
from tests.cli.command import SOON_S, WINDLASS, environment

FILES = 1024
KEY = "k"
MIB = 1024 * 1024


class Server:
    """A process, where it listens, and how much memory it has used at most."""

    def __init__(self, process: subprocess.Popen[str], places: dict[str, Any], log: Path) -> None:
        self.url = places["api"].removesuffix("/api/v1")
        self.grpc = places["grpc"].removeprefix("http://")
        self.at = ("127.0.0.1", urlsplit(self.url).port)
        self._process, self._log = process, log
        self._before = self._peak()

    def _peak(self) -> int:
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024

    @property
    def grown(self) -> int:
        return self._peak() - self._before

    @property
    def log(self) -> str:
        return self._log.read_text()

    def connect(self, address: str = "127.0.0.1") -> socket.socket:
        return socket.create_connection(self.at, timeout=SOON_S, source_address=(address, 0))

    def ping(self) -> float:
        """An honest client on a connection of its own, and how long it takes."""
        began_s = time.monotonic()
        assert httpx.get(f"{self.url}/livez", timeout=SOON_S).status_code == 200
        return time.monotonic() - began_s


@contextmanager
def serving(database: str, folder: Path, **variables: str) -> Iterator[Server]:
    log = folder / "log"
    flags = ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--json", "--api-key", KEY, "--database-url", database]
    blobs = {"WINDLASS_BLOBS": str(folder / "blobs")}
    with log.open("w") as errors:
        process = subprocess.Popen(
            ["sh", "-c", f'ulimit -n {FILES}; exec "$@"', "sh", str(WINDLASS), "serve", *flags],
            cwd=folder, env=environment(**blobs, **variables),
            stdout=subprocess.PIPE, stderr=errors, text=True,
        )  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, log.read_text()
        yield Server(process, json.loads(line), log)
    finally:
        process.terminate()
        process.communicate(timeout=SOON_S)


@pytest.fixture
def server(database: str, tmp_path: Path) -> Iterator[Server]:
    with serving(database, tmp_path) as server:
        yield server


@pytest.fixture(autouse=True)
def files() -> Iterator[None]:
    """Enough for those who attack."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def received(connection: socket.socket) -> bytes:
    """All that comes until the end, however that comes."""
    connection.settimeout(SOON_S)
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionError:
        pass
    return b"".join(parts)


# --------------------------------------------------------------------------------------------- headers


def test_a_huge_header_is_refused_before_it_has_arrived(server: Server) -> None:
    """48 MB of one stopped the API for 13 seconds."""
    with server.connect() as one:
        one.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\nx-long: ")
        sending = threading.Thread(target=_pour, args=(one, b"a" * 65536, 48 * MIB))
        sending.start()
        slowest = max(server.ping() for _ in range(20))
        answer = received(one)
        sending.join()
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b'"code":"header_too_large"' in answer
    assert slowest < 2
    assert server.grown < 16 * MIB
    assert "The header of the request is too large" in server.log
    assert "http_header_bytes" in server.log


def _pour(connection: socket.socket, piece: bytes, size: int) -> None:
    try:
        for _ in range(size // len(piece)):
            connection.sendall(piece)
    except OSError:
        pass


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /livez HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 20_000 + b"\r\n\r\n", b"200"),
        (b"GET /livez HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 40_000 + b"\r\n\r\n", b"431"),
        (b"GET /livez?" + b"a" * 40_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n", b"431"),
        (b"GET /livez HTTP/1.1\r\nhost: x\r\n" + b"x: y\r\n" * 99 + b"\r\n", b"200"),
        (b"GET /livez HTTP/1.1\r\nhost: x\r\n" + b"x: y\r\n" * 100 + b"\r\n", b"431"),
        (b"NOTHING\r\n\r\n", b"400"),
    ],
    ids=["long", "too long", "long path", "many", "too many", "garbage"],
)
async def test_a_header_has_a_size_and_a_count(url: str, head: bytes, status: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
    writer.write(head)
    writer.write_eof()
    async with asyncio.timeout(SOON_S):
        answer = await reader.read()
    assert answer.split(b" ", 2)[1] == status, answer
    assert answer.lower().count(b"x-content-type-options: nosniff") == 1
    writer.close()


async def test_a_trailer_is_as_bounded_as_a_header(url: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
    writer.write(b"POST /livez HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nx: ")
    async with asyncio.timeout(SOON_S):
        assert b"405" in await reader.readuntil(b"\r\n\r\n")
        for _ in range(20):
            writer.write(b"a" * 65536)
            await asyncio.sleep(0)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):  # noqa: PT012
            while True:
                await reader.readexactly(4096)
    writer.close()


# --------------------------------------------------------------------------------------------- connections and time


def test_half_sent_requests_do_not_end_all_service(server: Server) -> None:
    """1,100 of them at 1,024 files did."""
    with ExitStack() as stack:
        for _ in range(1100):
            one = stack.enter_context(server.connect("127.0.0.2"))
            one.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\n")
        assert max(server.ping() for _ in range(5)) < 5
        for _ in range(1100):  # and from the address of the honest client
            one = stack.enter_context(server.connect())
            one.sendall(b"GET /livez HTTP/1.1\r\n")
        assert max(server.ping() for _ in range(5)) < 5
        said = httpx.get(f"{server.url}/api/v1/tasks", headers={"Authorization": f"Bearer {KEY}"}, timeout=SOON_S)
        assert said.status_code == 200, said.text
    lines = [line for line in server.log.splitlines() if "too many connections" in line]
    assert 1 <= len(lines) <= 4, lines
    assert "http_address_connections" in lines[0]


def test_silent_grpc_connections_do_not_end_all_service(server: Server) -> None:
    host, _, port = server.grpc.partition(":")
    with ExitStack() as stack:
        for _ in range(1100):
            stack.enter_context(socket.create_connection((host, int(port)), timeout=SOON_S))
        assert max(server.ping() for _ in range(5)) < 5
    with grpc.insecure_channel(server.grpc) as channel:
        health = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert health(b"", timeout=SOON_S, wait_for_ready=True)


@pytest.mark.slow
def test_a_request_must_arrive_in_time(database: str, tmp_path: Path) -> None:
    with serving(database, tmp_path, WINDLASS_HTTP_REQUEST_S="1") as server:
        for begin, answer in [
            (b"", b""),
            (b"GET /livez HTTP/1.1\r\n", b"HTTP/1.1 408 "),
            (b"POST /api/v1/tasks HTTP/1.1\r\nhost: x\r\nauthorization: Bearer k\r\ncontent-length: 9\r\n\r\n", b""),
        ]:
            with server.connect() as one:
                trickle = threading.Thread(target=_trickle, args=(one, begin))
                trickle.start()
                assert received(one).startswith(answer)
                trickle.join()
        assert "did not arrive in time" in server.log
        with server.connect() as one:  # answered at once, and then it goes on sending
            one.sendall(b"POST /api/v1/tasks HTTP/1.1\r\nhost: x\r\ncontent-length: 99999\r\n\r\n")
            trickle = threading.Thread(target=_trickle, args=(one, b""))
            trickle.start()
            assert received(one).startswith(b"HTTP/1.1 401 ")
            trickle.join()


def _trickle(connection: socket.socket, begin: bytes) -> None:
    try:
        if begin:
            connection.sendall(begin)
            while True:
                connection.sendall(b"x")
                time.sleep(0.2)
    except OSError:
        pass


# --------------------------------------------------------------------------------------------- bodies


@pytest.mark.parametrize(
    "path", ["/v1/tasks/task_01HGW0000000000000000000AB/completed", "/callback/mods_1_abcdef", "/api/v1/tasks"]
)
def test_nobody_s_bodies_are_not_kept(server: Server, path: str) -> None:
    """300 of 2 MiB made the server grow by 581 MiB."""
    body = b" " * (2 * MIB - 1)
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer x.y.z\r\ncontent-length: {2 * MIB}\r\n\r\n"
    with ExitStack() as stack:
        those = [stack.enter_context(server.connect()) for _ in range(300)]
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda one: _pour(one, head.encode() + body, len(head) + len(body)), those[:200]))
            list(pool.map(lambda one: _pour(one, head.encode() + body, len(head) + len(body)), those[200:]))
        server.ping()
        assert server.grown < 40 * MIB


@pytest.mark.slow
def test_large_bodies_at_once_stay_within_the_memory_for_them(server: Server) -> None:
    """16 of 50 MB made it grow by three times their size."""
    payload = b'{"kind": "x", "payload": "' + b"a" * 50_000_000 + b'"}'
    head = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}

    def submit(_: int) -> int:
        answer = httpx.post(f"{server.url}/api/v1/tasks", content=payload, headers=head, timeout=SOON_S)
        return answer.status_code

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(submit, range(16)))
    assert set(answers) <= {201, 503}, answers
    assert answers.count(201) >= 4
    assert server.grown < 600 * MIB
    assert server.ping() < 5


# --------------------------------------------------------------------------------------------- gRPC


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", ["/windlass.v1.Client/Call", "/kagzi.WorkflowService/StartWorkflow", "/windlass.v1.Worker/Session",
               "/kagzi.WorkflowService/HealthCheck", "/grpc.health.v1.Health/Check", "/no.Such/Method"],
)  # fmt: skip
def test_grpc_takes_no_large_message_before_the_key(server: Server, method: str) -> None:
    """10 of 64 MiB made the server grow by 1.1 GiB."""
    body = b"\x0a\x80\x80\x80\x1e" + b"x" * (60 * MIB)

    def call(_: int) -> grpc.StatusCode:
        options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(server.grpc, options=options) as channel:
            try:
                list(channel.stream_stream(method)(iter([body]), timeout=SOON_S))
            except grpc.RpcError as error:
                return error.code()
        return grpc.StatusCode.OK

    with ThreadPoolExecutor(10) as pool:
        codes = set(pool.map(call, range(10)))
    assert server.grown < (64 if "Health" not in method else 400) * MIB, codes
    assert "Traceback" not in server.log
