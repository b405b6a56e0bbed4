"""A revoked key ends everything that is open: sessions, long polls, live feeds, on each wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable

import grpc
import httpx
import msgspec
import pytest
from tests.kit.work import soon, until

from windlass import Engine, Submission
from windlass.contracts.registry.wire import kagzi_pb2
from windlass.contracts.session.wire import session_pb2
from windlass.contracts.session.wire.methods import CALL, SESSION
from windlass.core.access import Role
from windlass.core.worker import Registration
from windlass.engine.manage import open_calls
from windlass.engine.manage.keys import REMEMBER_S
from windlass.engine.manage.open_calls import CHECK_S
from windlass.serve import open_server, open_sessions
from windlass.store.store import Store

POLL = "/kagzi.WorkflowService/PollActivity"


@pytest.fixture
async def engines(database: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Engine, Engine]]:
    """One that serves, and another in which the key is revoked."""
    monkeypatch.setattr(open_calls, "CHECK_S", 0.05)
    async with Engine(Store(database)) as serving, Engine(Store(database)) as other:
        yield serving, other


async def status_of(asked: Awaitable[object]) -> str:
    try:
        await asked
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return "OK"


async def test_everything_that_is_open_ends_when_its_key_is_revoked(engines: tuple[Engine, Engine]) -> None:
    engine, other = engines
    made, key = await engine.keys.create_key(name="k", role=Role.SUBMITTER, namespace="default")
    _, stays = await engine.keys.create_key(name="k", role=Role.SUBMITTER, namespace="default")
    worker_id, _ = await engine.workers.register(Registration(namespace="default", queue="r", kinds=("job",)))
    waited_for = await engine.submit(Submission(kind="job", queue="nobody"))

    async with (
        open_server(engine, http="127.0.0.1:0") as url,
        open_sessions(engine, grpc="127.0.0.1:0") as address,
        grpc.aio.insecure_channel(address.removeprefix("http://")) as channel,
        httpx.AsyncClient(base_url=url, timeout=60) as http,
    ):

        async def poll(shown: str) -> str:
            said = kagzi_pb2.PollActivityRequest(
                worker_id=str(worker_id), task_queue="r", supported_workflow_types=["job"], namespace_id="default"
            )
            call = channel.unary_unary(POLL, kagzi_pb2.PollActivityRequest.SerializeToString, bytes)
            return await status_of(call(said, metadata=_shown(shown), timeout=50))

        async def wait(shown: str) -> str:
            body = msgspec.msgpack.encode({"task_id": waited_for, "timeout_s": 20.0})
            call = channel.unary_unary(CALL, session_pb2.CallRequest.SerializeToString, bytes)
            said = session_pb2.CallRequest(name="Wait", body=body)
            return await status_of(call(said, metadata=_shown(shown), timeout=50))

        async def session(shown: str) -> str:
            open_ = channel.stream_stream(SESSION, session_pb2.FromWorker.SerializeToString, bytes)
            stream = open_(metadata=_shown(shown))
            hello = session_pb2.Hello(worker="w", queues=["q"], lease_ttl_s=30, every_kind=True)
            await stream.write(session_pb2.FromWorker(hello=hello))

            async def read() -> None:
                while await stream.read() is not grpc.aio.EOF:
                    pass

            return await status_of(read())

        async def feed(shown: str) -> str:
            headers = {"Authorization": f"Bearer {shown}"}
            async with http.stream("GET", "/api/v1/changes", headers=headers) as answer:
                assert answer.status_code in (200, 401)  # 401: it was revoked before its first byte
                async for _ in answer.aiter_bytes():
                    pass
            return "ended"

        open_calls = (poll, wait, session, feed)
        revoked = [asyncio.create_task(one(key)) for one in open_calls]
        kept = [asyncio.create_task(one(stays)) for one in open_calls]
        await until(lambda: sum(len(calls) for calls in engine.keys._open._open.values()) == 8)

        await other.keys.revoke_key(made.id)

        assert await soon(asyncio.gather(*revoked)) == ["UNAUTHENTICATED"] * 3 + ["ended"]
        assert not any(one.done() for one in kept)
        for one in kept:
            one.cancel()
        await asyncio.gather(*kept, return_exceptions=True)


def test_what_was_looked_up_and_the_time_between_two_looks_are_within_five_seconds() -> None:
    assert REMEMBER_S + CHECK_S < 5.0


async def test_a_call_that_was_cancelled_by_its_caller_is_not_said_to_be_revoked(
    engines: tuple[Engine, Engine],
) -> None:
    engine, _ = engines
    _, key = await engine.keys.create_key(name="k", role=Role.VIEWER, namespace=None)

    async def call() -> None:
        with engine.keys.opened(key):
            await asyncio.Event().wait()

    waiting = asyncio.create_task(call())
    await until(lambda: bool(engine.keys._open._open))
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not engine.keys._open._open


def _shown(key: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {key}")]
