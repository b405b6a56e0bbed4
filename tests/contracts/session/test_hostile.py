"""Messages that no worker of ours would send: a clear status, nothing written, and others are not disturbed."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import msgspec
import pytest
from tests.contracts.session.work import ended
from tests.kit.work import job, soon, task
from tests.kit.world import KEY

from windlass import Engine, Invalid, State
from windlass.contracts.session.client.remote import Remote, connect
from windlass.contracts.session.wire import session_pb2 as pb
from windlass.contracts.session.wire.methods import SESSION
from windlass.core.command import Release
from windlass.errors import TooLarge


async def first_answer(server: str, *messages: pb.FromWorker) -> grpc.StatusCode:
    """How the server ends a session in which this is said."""
    metadata = (("authorization", f"Bearer {KEY}"),)
    async with grpc.aio.insecure_channel(server.removeprefix("http://")) as channel:
        stream = channel.stream_stream(SESSION, pb.FromWorker.SerializeToString, pb.ToWorker.FromString)(
            metadata=metadata
        )
        for message in messages:
            await stream.write(message)
        while True:
            try:
                await stream.read()
            except grpc.aio.AioRpcError as error:
                return error.code()


def hello(**fields: Any) -> pb.FromWorker:
    return pb.FromWorker(hello=pb.Hello(**{"worker": "x", "queues": ["default"], "lease_ttl_s": 30, **fields}))


@pytest.mark.parametrize(
    ("messages", "status"),
    [
        ([pb.FromWorker()], "INTERNAL"),
        ([pb.FromWorker(credit=pb.Credit(tasks=1))], "INTERNAL"),
        ([hello(), hello()], "INTERNAL"),
        ([hello(worker="")], "INVALID_ARGUMENT"),
        ([hello(queues=[])], "INVALID_ARGUMENT"),
        ([hello(queues=["a\x00b"])], "INVALID_ARGUMENT"),
        ([hello(lease_ttl_s=float("nan"))], "INVALID_ARGUMENT"),
        ([hello(lease_ttl_s=-1)], "INVALID_ARGUMENT"),
        ([hello(pid=2**32 - 1)], "INVALID_ARGUMENT"),
        ([hello(lease_id=b"short")], "INVALID_ARGUMENT"),
        ([hello(lease_id=b"x" * 16)], "NOT_FOUND"),
        ([hello(), pb.FromWorker(heartbeat=pb.Heartbeat(active=[b"x"]))], "INVALID_ARGUMENT"),
    ],
    ids=lambda value: None if isinstance(value, str) else str(value[-1])[:40].replace("\n", " "),
)
async def test_a_session_that_breaks_the_protocol_ends_with_a_clear_status(
    server: str, messages: list[pb.FromWorker], status: str
) -> None:
    assert (await soon(first_answer(server, *messages))).name == status


@pytest.mark.parametrize(
    "report",
    [
        pb.Report(number=1, task_id=b"short", attempt=1, what="complete"),
        pb.Report(number=1, task_id=b"x" * 16, attempt=0, what="complete"),
        pb.Report(number=1, task_id=b"x" * 16, attempt=2**32 - 1, what="complete"),
        pb.Report(number=1, task_id=b"x" * 16, attempt=1, what="explode"),
        pb.Report(number=1, task_id=b"x" * 16, attempt=1, what="complete", body=b"no JSON"),
        pb.Report(number=1, task_id=b"x" * 16, attempt=1, what="fail", body=b"{}"),
        pb.Report(number=1, task_id=b"x" * 16, attempt=1, what="fail", body=b"[" * 100_000),
        pb.Report(number=1, task_id=b"x" * 16, attempt=1, what="sleep", body=b'{"until": "tomorrow"}'),
    ],
    ids=lambda report: f"{report.what} {report.body[:12]!r} {report.attempt}",
)
async def test_a_report_that_cannot_be_read_is_refused_and_the_next_is_heard(
    live_engine: Engine, remote: Remote, report: pb.Report
) -> None:
    lease = await remote.open_lease("far", ["default"])
    id_ = await live_engine.submit(job())
    await soon(remote.claim(lease, 1, wait_s=20))
    session = remote._sessions[lease.id]
    answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    session._unanswered[10**9] = (report, answered)
    report.number = 10**9
    good = pb.Report(number=10**9 + 1, task_id=id_.bytes, attempt=1, what="complete", body=b"1")
    await session._send_reports([report, good])
    assert (await soon(answered)).code == "invalid"
    assert await ended(live_engine, id_) == [State.SUCCEEDED]
    await remote.end_lease(lease)


async def test_a_message_above_the_limit_is_refused(server: str, remote: Remote) -> None:
    with pytest.raises(TooLarge):
        await remote._ask(_Huge(b"x" * 9_000_000))


class _Huge(msgspec.Struct, frozen=True):
    body: bytes


@pytest.mark.parametrize(
    "body", [b"", b"\xc1", b"\x93" * 100_000, b"\x80"], ids=["empty", "no type", "deep", "no field"]
)
async def test_a_call_that_cannot_be_read_is_refused(remote: Remote, body: bytes) -> None:
    request = pb.CallRequest(name="Wait", body=body)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await remote._call(request, metadata=remote._metadata)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await remote._call(pb.CallRequest(name="Explode", body=body), metadata=remote._metadata)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("server", ["", "localhost:1", "ftp://x:1", "http://x", "http://x:99999"])
async def test_an_address_that_cannot_be_one_is_refused(server: str) -> None:
    with pytest.raises(Invalid):
        async with connect(server, KEY):
            pass


async def test_a_release_costs_nothing(live_engine: Engine, remote: Remote) -> None:
    lease = await remote.open_lease("far", ["default"])
    id_ = await live_engine.submit(job())
    [claimed] = await soon(remote.claim(lease, 1, wait_s=20))
    assert await remote.report([Release(id_, claimed.task.attempt, lease.id)]) == [None]
    seen = await task(live_engine, id_)
    assert (seen.state, seen.failures, seen.losses) == (State.QUEUED, 0, 0)
