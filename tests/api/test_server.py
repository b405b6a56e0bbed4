"""The application as a whole: its document, methods, health, and a real socket."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from tests.api.conftest import problem
from tests.api.test_task import submit
from tests.kit.ports import free_port
from tests.kit.work import soon
from tests.kit.world import ROOT

from windlass import Engine, Invalid
from windlass.api.app import ROUTES
from windlass.cli import serve
from windlass.contracts.lease.tls.certificates import Files, issue_server, make_authority, write
from windlass.net.server.server import bind
from windlass.serve import open_server, open_sessions
from windlass.settings import Settings


async def test_every_route_is_in_the_document_and_nothing_else(api: httpx.AsyncClient) -> None:
    document = (await api.get("/api/v1/openapi.json")).json()

    told = {(method.upper(), path) for path, operations in document["paths"].items() for method in operations}
    assert told == {(route.method, route.path) for route in ROUTES}
    assert document["openapi"] == "3.1.0"
    operations = [operation for operations in document["paths"].values() for operation in operations.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    assert all(operation["summary"] for operation in operations)


async def test_every_path_says_which_methods_it_has(api: httpx.AsyncClient) -> None:
    by_path: dict[str, set[str]] = {}
    for route in ROUTES:
        by_path.setdefault(route.path, set()).add(route.method)
    for path, methods in by_path.items():
        response = await api.request("TRACE", path.replace("{", "").replace("}", ""))
        problem(response, 405, "method_not_allowed")
        if "{" not in path:
            assert set(response.headers["allow"].split(", ")) - {"HEAD"} == methods


async def test_an_unknown_path_is_a_problem_too(api: httpx.AsyncClient) -> None:
    for path in ("/", "/api", "/api/v1", "/api/v2/tasks", "/api/v1/tasks/", "/api/v1/nothing", "/%00"):
        problem(await api.get(path), 404, "not_found")


async def test_head_is_answered_like_get_where_there_is_an_end(url: str) -> None:
    async with httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {ROOT}"}, timeout=60) as client:
        answer = await client.head("/api/v1/tasks")
        assert (answer.status_code, answer.content) == (200, b"")
        assert (await client.head("/api/v1/changes")).status_code == 405


async def test_health_needs_no_key(nobody: httpx.AsyncClient) -> None:
    assert (await nobody.get("/livez")).json() == (await nobody.get("/readyz")).json() == {"status": "ok"}


async def test_a_database_that_is_away_is_503_with_a_time_to_come_back(api: httpx.AsyncClient, engine: Engine) -> None:
    await engine.store.close()
    engine.store._pool._dsn = "postgresql://nobody@127.0.0.1:1/nothing"

    for path in ("/readyz", "/api/v1/tasks"):
        response = await api.get(path)
        problem(response, 503, "store_busy")
        assert response.headers["retry-after"] == "1"
    assert (await api.get("/livez")).status_code == 200


async def test_nobody_is_told_where_the_database_is(engine: Engine) -> None:
    async with open_server(engine, http="127.0.0.1:0") as url, open_sessions(engine, grpc="127.0.0.1:0") as grpc_url:
        await engine.store.close()
        engine.store._pool._dsn = "postgresql://secret_user:secret@127.0.0.9:1/secret_name"
        said = []
        async with httpx.AsyncClient(base_url=url, timeout=60, headers={"Authorization": "Bearer x.y.z"}) as client:
            for method, path in [
                ("GET", "/readyz"), ("GET", "/api/v1/tasks"), ("GET", "/metrics"), ("GET", "/v1/openapi.json"),
                ("POST", "/v1/tasks/task_01HGW0000000000000000000AB/started"), ("POST", "/callback/mods_1_a?sig=1"),
                ("POST", "/export/mods"), ("GET", "/status/export_mods_1_00000000"),
            ]:  # fmt: skip
                answer = await client.request(method, path)
                assert answer.status_code in (404, 503), (path, answer.text)
                said.append(answer.text)
        async with grpc.aio.insecure_channel(grpc_url.removeprefix("http://")) as channel:
            for path in (
                "/kagzi.WorkflowService/HealthCheck", "/kagzi.WorkflowService/ListWorkers", "/windlass.v1.Client/Call",
                "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            ):  # fmt: skip
                call = channel.stream_stream(path)(iter([b""]), metadata=[("authorization", "Bearer x")], timeout=60)
                try:
                    said.append(str(await call.read()))
                except grpc.aio.AioRpcError as error:
                    said.append(f"{error.details()} {error.trailing_metadata()}")
        for text in said:
            assert "secret" not in text, text
            assert "127.0.0.9" not in text, text
        assert sum("the database is away or busy" in text for text in said) >= 8, said


async def test_every_json_answer_says_that_it_is_what_it_says(url: str) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        for path in ("/livez", "/readyz", "/nothing", "/api/v1/tasks", "/metrics", "/v1/tasks/x/started", "/v1/x",
                     "/status/x", "/callback/x"):  # fmt: skip
            for headers in ({}, {"Authorization": f"Bearer {ROOT}"}):
                answer = await client.get(path, headers=headers)
                assert answer.headers.get_list("x-content-type-options") == ["nosniff"], path


async def test_tls_and_its_certificate_can_be_replaced(engine: Engine, tmp_path: Path) -> None:
    now, files = datetime.now(UTC), Files(tmp_path / "server.pem", tmp_path / "server.key")
    authorities = [make_authority(now, 1) for _ in range(2)]
    old, new = (issue_server(authority, ["127.0.0.1"], now, 1) for authority in authorities)
    trusts = [
        ssl.create_default_context(cadata=one.certificate.public_bytes(Encoding.PEM).decode()) for one in authorities
    ]

    async def reached(trust: ssl.SSLContext) -> bool:
        try:
            async with httpx.AsyncClient(base_url=url, timeout=60, verify=trust) as client:
                return (await client.get("/livez")).json() == {"status": "ok"}
        except httpx.ConnectError:
            return False

    write(old, files)
    async with open_server(engine, http="127.0.0.1:0", certificate=files.certificate, key=files.key) as url:
        assert url.startswith("https://127.0.0.1:")
        assert [await reached(trust) for trust in trusts] == [True, False]
        write(new, files, replace=True)
        assert [await reached(trust) for trust in trusts] == [False, True]
        files.key.write_bytes(b"nothing")
        assert [await reached(trust) for trust in trusts] == [False, True]
        port = int(url.rsplit(":", 1)[1])
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        assert await reached(trusts[1])
        for _, writer in silent:
            writer.close()
    for certificate, key, says in [
        (files.certificate, None, "go together"), (files.certificate, tmp_path / "none", "cannot be read"),
        (files.certificate, files.key, "not a certificate"),
    ]:  # fmt: skip
        with pytest.raises(Invalid, match=says):
            async with open_server(engine, http="127.0.0.1:0", certificate=certificate, key=key):
                pass


async def test_a_defect_is_a_problem_without_a_traceback(
    api: httpx.AsyncClient, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(**_: object) -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(engine.tasks, "page", broken)

    response = await api.get("/api/v1/tasks")
    problem(response, 500, "internal")
    assert "secret" not in response.text
    assert "Traceback" not in response.text


# --------------------------------------------------------------------------------------------- a real socket


async def test_a_server_listens_on_loopback_and_ends_what_was_begun(engine: Engine) -> None:
    async with open_server(engine, http="127.0.0.1:0", api_key=ROOT) as url:
        assert url.startswith("http://127.0.0.1:")
        async with httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {ROOT}"}, timeout=60) as client:
            task = await submit(client)
            assert (await client.get(f"/api/v1/tasks/{task['id']}")).json() == task
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
            writer.write(b"GARBAGE\r\n\r\n")
            assert b"400" in await soon(reader.readline())
            writer.close()
    async with httpx.AsyncClient(timeout=60) as client:
        with pytest.raises(httpx.ConnectError):
            await client.get(url + "/livez")


def listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as way:
        return way.connect_ex((host, int(port))) == 0


async def test_a_server_that_says_that_it_is_ready_can_be_reached_by_grpc_too(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long gRPC takes to begin, nobody is told before."""
    began, goes_on = asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def late(*given: Any, **options: Any) -> AsyncIterator[str]:
        began.set()
        await goes_on.wait()
        async with open_sessions(*given, **options) as url:
            yield url

    monkeypatch.setattr(serve, "open_sessions", late)
    settings = Settings(http=f"127.0.0.1:{free_port()}", grpc=f"127.0.0.1:{free_port()}")
    async with AsyncExitStack() as stack, httpx.AsyncClient(base_url=f"http://{settings.http}", timeout=60) as client:
        starting = asyncio.create_task(stack.enter_async_context(serve.servers(engine, settings)))
        await soon(began.wait())
        assert not listens(settings.http)
        goes_on.set()
        places = await soon(starting)

        assert (await client.get("/readyz")).json() == {"status": "ok"}
        assert listens(settings.grpc)
        assert places["grpc"] == f"http://{settings.grpc}"


async def test_no_answer_waits_for_an_acknowledgement() -> None:
    """asyncio turns Nagle's delay off only where the protocol is named; left on, it is 40 ms on every answer."""
    with bind("127.0.0.1", 0) as bound:
        assert bound.proto == socket.IPPROTO_TCP


async def test_an_address_in_use_is_said_at_once(engine: Engine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(Invalid, match="cannot listen on"):
        async with open_server(engine, http=f"127.0.0.1:{taken.getsockname()[1]}"):
            pass


async def test_a_wrong_address_is_refused(engine: Engine) -> None:
    for address in ("", "8420", "127.0.0.1", "127.0.0.1:", ":80", "a:b", "127.0.0.1:70000", 8420):
        with pytest.raises(Invalid, match=r"must be HOST:PORT|at most 65535"):
            async with open_server(engine, http=address):  # type: ignore[arg-type]
                pass
