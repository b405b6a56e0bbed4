"""Amazon SQS as the carrier of wake-ups. A queue with a name is created if it is missing; a queue with a URL is not."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from windlass.contracts.lease.wakeups.carriers.aws import AwsClient, ClientError, code_of, translate_errors
from windlass.contracts.lease.wakeups.carriers.internal import ServerCalls
from windlass.contracts.lease.wakeups.carriers.options import CarrierOptions
from windlass.contracts.lease.wakeups.carriers.port import Call, CarrierUnavailable, Message
from windlass.contracts.lease.wakeups.rules import WakeupMessage
from windlass.contracts.lease.wire.wakeup import Route, message_of

BATCH = 10
WAIT_MAX_S = 20
VISIBILITY_MAX_S = 43_200
KEPT_S = 14 * 86400
MISSING = {"QueueDoesNotExist", "NonExistentQueue"}
NOT_OURS = {"ReceiptHandleIsInvalid", "MessageNotInflight", "InvalidParameterValue", "InvalidIdFormat"}


class _Urls:
    """The URLs of queues."""

    def __init__(self, client: AwsClient) -> None:
        self._client = client
        self._known: dict[str, str] = {}

    async def find(self, address: str) -> str:
        if "://" in address:
            return address
        if address not in self._known:
            try:
                found = await self._client.call("get_queue_url", QueueName=address)
            except ClientError as error:
                if code_of(error) not in MISSING:
                    raise CarrierUnavailable(f"SQS: {error}") from None
                kept = {"MessageRetentionPeriod": str(KEPT_S)}
                found = await self._client.call("create_queue", QueueName=address, Attributes=kept)
            self._known[address] = str(found["QueueUrl"])
        return self._known[address]

    def forget(self, error: ClientError) -> CarrierUnavailable:
        """Forget the URLs if the queue is missing. Returns the error to raise, so that the call is tried again."""
        if code_of(error) in MISSING:
            self._known.clear()
        return CarrierUnavailable(f"SQS: {error}")


class SqsSender:
    def __init__(self, options: CarrierOptions) -> None:
        self._client = AwsClient("sqs", options)
        self._urls = _Urls(self._client)

    async def send(self, messages: Sequence[WakeupMessage]) -> None:
        by_address: dict[str, list[WakeupMessage]] = {}
        for message in messages:
            by_address.setdefault(message.address, []).append(message)
        batches = [
            self._send(address, group[start : start + BATCH])
            for address, group in by_address.items()
            for start in range(0, len(group), BATCH)
        ]
        for outcome in await asyncio.gather(*batches, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def _send(self, address: str, messages: list[WakeupMessage]) -> None:
        try:
            url = await self._urls.find(address)
            entries = [_entry(place, message, fifo=url.endswith(".fifo")) for place, message in enumerate(messages)]
            answer = await self._client.call("send_message_batch", QueueUrl=url, Entries=entries)
        except ClientError as error:
            raise self._urls.forget(error) from None
        if failed := answer.get("Failed"):
            raise CarrierUnavailable(f"SQS did not take {len(failed)} messages: {failed[0].get('Message', '')}")

    async def check(self) -> str:
        try:
            await self._client.call("list_queues", MaxResults=1)
        except ClientError as error:
            if code_of(error) not in ("AccessDenied", "AccessDeniedException"):
                raise CarrierUnavailable(f"SQS: {error}") from None
        return "SQS answers"

    async def close(self) -> None:
        await self._client.close()


def _entry(place: int, message: WakeupMessage, *, fifo: bool) -> dict[str, str]:
    entry = {"Id": str(place), "MessageBody": message_of(message.task_id).decode()}
    if fifo:
        entry |= {"MessageGroupId": str(message.task_id), "MessageDeduplicationId": str(message.effect_id)}
    return entry


class SqsConsumer(ServerCalls):
    """See `port.Consumer`."""

    def __init__(self, route: Route, call: Call, options: CarrierOptions) -> None:
        super().__init__(route, call)
        self._client = AwsClient("sqs", options)
        self._urls = _Urls(self._client)

    async def receive(self, limit: int, wait_s: float) -> list[Message]:
        url = await self._url()
        receiving = self._client.begin(
            "receive_message",
            QueueUrl=url,
            MaxNumberOfMessages=max(1, min(limit, BATCH)),
            WaitTimeSeconds=min(WAIT_MAX_S, math.ceil(wait_s)),
            VisibilityTimeout=self._hidden_s(),
            AttributeNames=["ApproximateReceiveCount"],
        )
        try:
            with translate_errors():
                answer = await asyncio.wrap_future(receiving)
        except asyncio.CancelledError:
            receiving.add_done_callback(lambda done: self._release(url, done))
            raise
        except ClientError as error:
            raise self._urls.forget(error) from None
        return [_message(received) for received in answer.get("Messages", ())]

    async def extend(self, message: Message) -> bool:
        return await self._hide(message, self._hidden_s())

    async def ack(self, message: Message) -> None:
        url = await self._url()
        try:
            await self._client.call("delete_message", QueueUrl=url, ReceiptHandle=message.receipt)
        except ClientError as error:
            if code_of(error) not in NOT_OURS:
                raise self._urls.forget(error) from None

    async def nack(self, message: Message, delay_s: float = 0.0) -> None:
        await self._hide(message, min(math.ceil(delay_s), VISIBILITY_MAX_S))

    async def close(self) -> None:
        await self._client.close()

    def _hidden_s(self) -> int:
        return min(math.ceil(self.visibility_s), VISIBILITY_MAX_S)

    async def _url(self) -> str:
        try:
            return await self._urls.find(self._route.address)
        except ClientError as error:
            raise self._urls.forget(error) from None

    async def _hide(self, message: Message, seconds: int) -> bool:
        url = await self._url()
        try:
            await self._client.call(
                "change_message_visibility", QueueUrl=url, ReceiptHandle=message.receipt, VisibilityTimeout=seconds
            )
        except ClientError as error:
            if code_of(error) in NOT_OURS:
                return False
            raise self._urls.forget(error) from None
        return True

    def _release(self, url: str, done: Future[Any]) -> None:
        """Make messages of a cancelled `receive` visible again, so that other workers need not wait for them. Runs in
        the thread that received them, also after `close`; in the event loop it only starts the calls."""
        if done.cancelled() or done.exception() is not None:
            return
        call = self._client.begin if _in_event_loop() else self._client.now
        for received in done.result().get("Messages", ()):
            receipt = received["ReceiptHandle"]
            with contextlib.suppress(ClientError, CarrierUnavailable), translate_errors():
                call("change_message_visibility", QueueUrl=url, ReceiptHandle=receipt, VisibilityTimeout=0)


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _message(received: dict[str, Any]) -> Message:
    deliveries = int(received.get("Attributes", {}).get("ApproximateReceiveCount", 1))
    return Message(str(received["MessageId"]), str(received["Body"]).encode(), deliveries, received["ReceiptHandle"])
