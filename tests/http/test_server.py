"""The application as a whole: its document, methods, health, and a real socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest
from tests.http.conftest import ROOT, problem
from tests.http.test_task import submit
from tests.support.ports import free_port
from tests.support.work import soon

from windlass import Engine, Invalid
from windlass.app import open_server, open_sessions
from windlass.cli import serve
from windlass.http.api import ROUTES
from windlass.http.server import _bind
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


async def test_a_defect_is_a_problem_without_a_traceback(
    api: httpx.AsyncClient, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(**_: object) -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(engine.views, "page", broken)

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
    with _bind("127.0.0.1", 0) as bound:
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
