"""The real carriers: a NATS server of its own, a server that speaks the API of AWS, and PostgreSQL by the routes of a
server. Each behind a gate that tests can close."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import asyncpg
import pytest
from tests.contracts.lease.wakeups.side import NatsSide, PostgresSide, Side, SqsSide
from tests.contracts.lease.wakeups.world import World

from windlass.engine.engine import Engine
from windlass.testing.clock import VirtualClock


@pytest.fixture
def mode() -> str:
    """Carriers do not care how the engine reaches its database."""
    return "direct"


@pytest.fixture(params=["postgres", "nats", "sqs"])
async def side(
    request: pytest.FixtureRequest, engine: Engine, other_connection: asyncpg.Connection, clock: VirtualClock
) -> AsyncIterator[Side]:
    """One carrier after the other."""
    async with AsyncExitStack() as stack:
        match request.param:
            case "postgres":
                yield PostgresSide(engine, other_connection, clock)
            case "nats":
                port = request.getfixturevalue("nats_port")
                yield await stack.enter_async_context(NatsSide.open(engine, port))
            case "sqs":
                port = request.getfixturevalue("aws_port")
                yield await stack.enter_async_context(SqsSide.open(engine, port))


@pytest.fixture
async def world(side: Side, engine: Engine, clock: VirtualClock, pace: float) -> AsyncIterator[World]:
    async with World.open(side, engine, clock, pace) as world:
        yield world
