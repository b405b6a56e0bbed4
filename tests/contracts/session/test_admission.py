"""Who is let in to the gRPC server, and what it makes of messages that are none."""

from __future__ import annotations

import asyncio
import logging
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from grpc_health.v1 import health_pb2
from tests.kit.work import SOON_S, soon
from tests.kit.world import KEY

from windlass import Engine
from windlass.contracts.lease.tls.certificates import Files, issue_server, make_authority, write
from windlass.contracts.registry.wire import kagzi_pb2
from windlass.contracts.session.client.session import WRITE_RACE
from windlass.contracts.session.wire import session_pb2
from windlass.net import memory
from windlass.net.grpc_admission import FREE_CALLS_MAX
from windlass.net.grpc_server import Limits
from windlass.net.memory import Memory
from windlass.serve import open_sessions

GARBAGE = b"\xff\xff\xff\xff\xff"
AUTHORIZED = [("authorization", f"Bearer {KEY}")]
METHODS = sorted(
    (service.full_name, method.name)
    for file in (kagzi_pb2, session_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
)


async def status(server: str, path: str, message: bytes, metadata: Any = ()) -> tuple[grpc.StatusCode, str]:
    """The status of a call with this message, whatever kind of call it is."""
    async with grpc.aio.insecure_channel(server.removeprefix("http://")) as channel:
        while True:
            call = channel.stream_stream(path)(iter([message]), metadata=metadata, timeout=SOON_S)
            try:
                await call.read()
            except grpc.aio.AioRpcError as error:
                if error.details() == WRITE_RACE:
                    continue
                return error.code(), error.details() or ""
            return grpc.StatusCode.OK, ""


@pytest.mark.parametrize(("service", "method"), METHODS)
async def test_garbage_is_refused_without_a_traceback(
    server: str, caplog: pytest.LogCaptureFixture, service: str, method: str
) -> None:
    with_key = await status(server, f"/{service}/{method}", GARBAGE, AUTHORIZED)
    without = await status(server, f"/{service}/{method}", GARBAGE)

    assert with_key[0] is grpc.StatusCode.INVALID_ARGUMENT
    free = method == "HealthCheck"
    assert without[0] is (grpc.StatusCode.INVALID_ARGUMENT if free else grpc.StatusCode.UNAUTHENTICATED)
    for told in (with_key[1], without[1], caplog.text):
        assert not re.search(r"Traceback|DecodeError|class|protobuf", told), told
    lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) <= 1, lines


async def test_reflection_and_health_take_no_garbage_either(server: str, caplog: pytest.LogCaptureFixture) -> None:
    reflection = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
    assert (await status(server, reflection, GARBAGE))[0] is grpc.StatusCode.UNAUTHENTICATED
    assert (await status(server, reflection, GARBAGE, AUTHORIZED))[0] is grpc.StatusCode.INVALID_ARGUMENT
    for method in ("Check", "Watch"):
        assert (await status(server, f"/grpc.health.v1.Health/{method}", GARBAGE))[0] is (
            grpc.StatusCode.INVALID_ARGUMENT
        )
    assert "Traceback" not in caplog.text


async def test_calls_without_a_key_do_not_use_up_those_with_one(live_engine: Engine) -> None:
    """Whoever watches health keeps a call open."""
    async with (
        open_sessions(live_engine, grpc="127.0.0.1:0", api_key=KEY) as server,
        grpc.aio.insecure_channel(server.removeprefix("http://")) as channel,
    ):
        watch = channel.unary_stream(
            "/grpc.health.v1.Health/Watch", health_pb2.HealthCheckRequest.SerializeToString, lambda raw: raw
        )
        calls = [watch(health_pb2.HealthCheckRequest()) for _ in range(FREE_CALLS_MAX)]
        for call in calls:
            assert await soon(call.read())
        with pytest.raises(grpc.aio.AioRpcError, match="too many calls"):
            await soon(watch(health_pb2.HealthCheckRequest()).read())
        code, _ = await status(server, "/windlass.v1.Client/Call", GARBAGE, AUTHORIZED)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        for call in calls:
            call.cancel()


async def test_calls_are_bounded_and_said_to_be(live_engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    poll = "/kagzi.WorkflowService/ListWorkers"
    async with open_sessions(live_engine, grpc="127.0.0.1:0", api_key=KEY, limits=Limits(calls=1)) as server:
        async with grpc.aio.insecure_channel(server.removeprefix("http://")) as channel:
            session = channel.stream_stream("/windlass.v1.Worker/Session")(metadata=AUTHORIZED)
            hello = session_pb2.Hello(worker="far", queues=["default"], lease_ttl_s=30)
            await session.write(session_pb2.FromWorker(hello=hello).SerializeToString())
            await soon(session.read())  # from here on its call is counted
            code = await status(server, poll, b"", AUTHORIZED)
            assert code == (grpc.StatusCode.UNAVAILABLE, "too many calls are open")  # as this contract says it
            session.cancel()
        assert "too many gRPC calls at once" in caplog.text


async def test_messages_wait_for_memory(live_engine: Engine) -> None:
    room = Memory(8 * 1024 * 1024, wait_s=0.1)
    async with open_sessions(live_engine, grpc="127.0.0.1:0", api_key=KEY, limits=Limits(memory=room)) as server:
        message = session_pb2.CallRequest(name="nothing", body=b"x" * (4 * 1024 * 1024)).SerializeToString()
        async with room.hold(6 * 1024 * 1024):
            code, _ = await status(server, "/windlass.v1.Client/Call", message, AUTHORIZED)
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        code, _ = await status(server, "/windlass.v1.Client/Call", message, AUTHORIZED)
        assert code is grpc.StatusCode.NOT_FOUND
        assert room.used_bytes == 0


async def test_room_is_given_in_the_order_in_which_it_was_asked_for() -> None:
    room, order = Memory(8 * memory.SMALL_BYTES), list[str]()
    large = 4 * memory.SMALL_BYTES

    async def use(name: str, size: int) -> None:
        async with room.hold(size):
            order.append(name)

    async with room.hold(large):
        waiting = [asyncio.create_task(use("a", large)), asyncio.create_task(use("b", memory.SMALL_BYTES + 1))]
        await asyncio.sleep(0)
        await use("small", 100)
        waiting[0].cancel()
        await soon(waiting[1])
    assert order == ["small", "b"]
    assert room.used_bytes == 0


async def test_a_replaced_certificate_holds_from_the_next_connection_on(live_engine: Engine, tmp_path: Path) -> None:
    now, files = datetime.now(UTC), Files(tmp_path / "server.pem", tmp_path / "server.key")
    authorities = [make_authority(now, 1) for _ in range(2)]
    old, new = (issue_server(authority, ["localhost", "127.0.0.1"], now, 1) for authority in authorities)
    trusted_before, trusted_after = (one.certificate.public_bytes(Encoding.PEM) for one in authorities)

    async def reached(authority: bytes) -> bool:
        credentials = grpc.ssl_channel_credentials(authority)
        options = [("grpc.ssl_target_name_override", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.secure_channel(address, credentials, options=options) as channel:
            try:
                await channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=10)
            except grpc.aio.AioRpcError:
                return False
        return True

    write(old, files)
    async with open_sessions(
        live_engine, grpc="127.0.0.1:0", api_key=KEY, certificate=files.certificate, key=files.key
    ) as url:
        address = url.removeprefix("https://")
        assert await reached(trusted_before)
        write(new, files, replace=True)
        assert await reached(trusted_after)
        assert not await reached(trusted_before)
        files.certificate.write_bytes(b"nothing")
        assert await reached(trusted_after)
