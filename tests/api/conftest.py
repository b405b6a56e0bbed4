"""An API on an engine of its own, called in-process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest
from tests.kit.world import ROOT

from windlass import Engine
from windlass.api.app import make_api
from windlass.core.access import Role
from windlass.serve import open_server
from windlass.store.store import Store

NewClient = Callable[..., Awaitable[httpx.AsyncClient]]


def client_of(engine: Engine, key: str | None) -> httpx.AsyncClient:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    transport = httpx.ASGITransport(make_api(engine), raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://windlass", headers=headers)


@pytest.fixture
async def engine(database: str) -> AsyncIterator[Engine]:
    """An engine whose loops do not run, with a root key."""
    engine = Engine(Store(database), listen=False, poll_s=3600.0)
    engine.keys.accept_root(ROOT)
    yield engine
    await engine.close()


@pytest.fixture
async def url(engine: Engine) -> AsyncIterator[str]:
    """Where a server answers for this engine."""
    async with open_server(engine, http="127.0.0.1:0", api_key=ROOT) as url:
        yield url


@pytest.fixture
async def api(engine: Engine) -> AsyncIterator[httpx.AsyncClient]:
    """As an admin of all namespaces."""
    async with client_of(engine, ROOT) as client:
        yield client


@pytest.fixture
async def nobody(engine: Engine) -> AsyncIterator[httpx.AsyncClient]:
    """Without a key."""
    async with client_of(engine, None) as client:
        yield client


@pytest.fixture
async def as_role(engine: Engine) -> AsyncIterator[NewClient]:
    """A client with a key of this role."""
    clients: list[httpx.AsyncClient] = []

    async def made(role: Role | str, namespace: str | None = "default") -> httpx.AsyncClient:
        _, key = await engine.keys.create_key(name=f"a {role}", role=Role(role), namespace=namespace)
        clients.append(client_of(engine, key))
        return clients[-1]

    yield made
    for client in clients:
        await client.aclose()


def problem(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The problem in an answer, which must be this one."""
    assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json"), (
        response.text
    )
    body: dict[str, Any] = response.json()
    assert (body["status"], body["code"]) == (status, code), body
    return body
