"""The client of AWS against a server that answers when a test lets it: nothing is left open, whenever it is closed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.kit.carriers import AWS_ENVIRONMENT
from tests.kit.work import soon

from windlass.contracts.lease.wakeups.carriers.aws import AwsClient
from windlass.contracts.lease.wakeups.carriers.options import CarrierOptions
from windlass.contracts.lease.wakeups.carriers.port import CarrierUnavailable
from windlass.contracts.lease.wakeups.carriers.sqs import SqsConsumer
from windlass.contracts.lease.wire.wakeup import Route

pytestmark = pytest.mark.slow

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-amz-json-1.0\r\nContent-Length: %d\r\n\r\n%s"
URL = "http://127.0.0.1/1/q"


class Slow:
    """Answers each request with the next of `answers`, once it may. `ended` is how many connections were closed."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[bytes] = asyncio.Queue()
        self.may = asyncio.Event()
        self.answers: list[bytes] = []
        self.open = 0
        self.all_closed = asyncio.Event()
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            while head := await _request(reader):
                self.asked.put_nowait(head)
                await self.may.wait()
                body = self.answers.pop(0) if self.answers else b"{}"
                writer.write(ANSWER % (len(body), body))
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            self.open -= 1
            if self.open == 0:
                self.all_closed.set()

    @property
    def options(self) -> CarrierOptions:
        return CarrierOptions(aws_region="eu-west-1", aws_endpoint_url=f"http://127.0.0.1:{self.port}")


async def _request(reader: asyncio.StreamReader) -> bytes:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""
    length = next(int(line[15:]) for line in head.lower().splitlines() if line.startswith(b"content-length:"))
    return head + await reader.readexactly(length)


@pytest.fixture
async def slow(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Slow]:
    for name, value in AWS_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    made = Slow()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    yield made
    made.may.set()
    server.close()


async def test_a_client_that_is_closed_while_it_asks_closes_its_connection_when_it_was_answered(slow: Slow) -> None:
    client = AwsClient("sqs", slow.options)
    asked = client.begin("receive_message", QueueUrl=URL, WaitTimeSeconds=20)
    await soon(slow.asked.get())
    await client.close()
    with pytest.raises(CarrierUnavailable, match="closed"):
        await client.call("list_queues")

    slow.may.set()
    assert (await soon(asyncio.wrap_future(asked)))["ResponseMetadata"]["HTTPStatusCode"] == 200
    await soon(slow.all_closed.wait())


async def test_a_client_that_is_closed_before_it_has_a_connection_leaves_none_behind(slow: Slow) -> None:
    """It would have opened one behind the back of who closed it."""
    client, begun, go_on = AwsClient("sqs", slow.options), threading.Event(), threading.Event()

    def hold(**_: Any) -> None:
        begun.set()
        go_on.wait(60)

    client._client.meta.events.register("before-send", hold)
    slow.may.set()
    asked = client.begin("receive_message", QueueUrl=URL, WaitTimeSeconds=20)
    await soon(asyncio.to_thread(begun.wait))
    await client.close()
    go_on.set()

    await soon(asyncio.wrap_future(asked))
    await soon(slow.all_closed.wait())


async def test_what_waits_for_a_thread_when_a_client_is_closed_is_not_asked(slow: Slow) -> None:
    client = AwsClient("sqs", slow.options)
    asked = [client.begin("receive_message", QueueUrl=URL) for _ in range(20)]
    for _ in range(8):
        await soon(slow.asked.get())
    await client.close()
    slow.may.set()
    done = await soon(asyncio.gather(*map(asyncio.wrap_future, asked), return_exceptions=True))

    assert sum(isinstance(one, asyncio.CancelledError) for one in done) == 12
    assert slow.asked.empty()
    await soon(slow.all_closed.wait())


async def test_a_client_that_asked_nothing_is_closed_and_twice_does_no_harm(slow: Slow) -> None:
    client = AwsClient("sqs", slow.options)
    await client.close()
    await client.close()
    assert slow.open == 0


async def test_messages_that_come_when_nobody_waits_any_more_are_let_go(slow: Slow) -> None:
    """Also by a consumer that is closed: nobody else would see them for as long as they are hidden."""
    route = Route(
        queue="q", namespace="default", carrier="sqs", address=URL, visibility_s=60.0, max_deliveries=3, trusted=True,
        secrets=[],
    )  # fmt: skip

    async def nobody(*_: object) -> tuple[int, bytes]:
        raise AssertionError("no server is asked")

    consumer = SqsConsumer(route, nobody, slow.options)
    slow.answers = [b'{"Messages": [{"MessageId": "m", "Body": "{}", "ReceiptHandle": "the handle"}]}']
    receiving = asyncio.create_task(consumer.receive(1, 20.0))
    await soon(slow.asked.get())
    receiving.cancel()
    await asyncio.gather(receiving, return_exceptions=True)
    await consumer.close()
    slow.may.set()

    request = await soon(slow.asked.get())
    assert b"ChangeMessageVisibility" in request
    assert b"the handle" in request
    await soon(slow.all_closed.wait())
