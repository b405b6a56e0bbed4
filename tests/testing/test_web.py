"""A web app whose lifespan opens the app, under the test kit: by FastAPI's TestClient, and by httpx in one loop."""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import httpx
import pytest
from fastapi import FastAPI

from windlass import InvalidState
from windlass.sdk import App, WorkflowContext
from windlass.testing import OpenKit, OpenSyncKit
from windlass.testing import loops as loops_module

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it would rather have another version of httpx
    from fastapi.testclient import TestClient


class Shop:
    """A program as people write it."""

    def __init__(self, app: App) -> None:
        self.app, self.opened = app, 0

        @app.workflow
        async def order(number: int, ctx: WorkflowContext) -> int:
            await ctx.sleep("30d")
            return 2 * number

        @asynccontextmanager
        async def lifespan(_: FastAPI) -> AsyncIterator[None]:
            async with app:
                self.opened += 1
                yield

        self.web = FastAPI(lifespan=lifespan)

        @self.web.post("/orders/{number}")
        async def create(number: int) -> dict[str, str]:
            return {"id": str((await order.submit(number)).id)}  # type: ignore[call-arg]

        @self.web.post("/threaded/{number}")
        def create_in_thread(number: int) -> dict[str, str]:
            return {"id": str(order.submit_sync(number).id)}  # type: ignore[call-arg]

        @self.web.get("/orders/{task_id}")
        async def read(task_id: UUID) -> dict[str, Any]:
            return {"result": await app.handle(task_id).result("30s")}


@pytest.fixture
def shop(app: App) -> Shop:
    return Shop(app)


@pytest.mark.parametrize("way", ["orders", "threaded"])
def test_with_the_test_client_of_fastapi(shop: Shop, windlass_kit_sync: OpenSyncKit, way: str) -> None:
    with windlass_kit_sync(shop.app) as kit, TestClient(shop.web) as client:
        task_id = client.post(f"/{way}/21").json()["id"]
        before = kit.now()
        kit.until(shop.app.handle(UUID(task_id)), "sleeping")
        kit.advance("30d")
        assert (kit.now() - before).days == 30
        assert kit.result(shop.app.handle(UUID(task_id))) == 42
        assert client.get(f"/orders/{task_id}").json() == {"result": 42}
    assert shop.opened == 1
    assert not shop.app.is_open


async def test_with_httpx_in_the_event_loop_of_the_test(shop: Shop, windlass_kit: OpenKit) -> None:
    async with windlass_kit(shop.app) as kit:
        for _ in range(2):
            async with shop.web.router.lifespan_context(shop.web):
                transport = httpx.ASGITransport(shop.web)
                async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
                    task_id = (await client.post("/orders/4")).json()["id"]
                    assert await kit.result(shop.app.handle(UUID(task_id))) == 8
                    assert (await client.get(f"/orders/{task_id}")).json() == {"result": 8}
        assert shop.app.is_open, "the kit has opened it, and closes it"
    assert (shop.opened, shop.app.is_open) == (2, False)


async def test_a_synchronous_client_in_an_async_test_is_told_what_to_use(
    shop: Shop, windlass_kit: OpenKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops_module, "BLOCKED_S", 0.1)
    async with windlass_kit(shop.app):
        with TestClient(shop.web) as client, pytest.raises(InvalidState, match="windlass_kit_sync"):
            client.post("/orders/1")
