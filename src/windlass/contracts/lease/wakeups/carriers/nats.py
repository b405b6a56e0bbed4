"""NATS JetStream as the carrier of wake-ups.

All subjects are in one stream that keeps a message until it is acknowledged; the workers of a queue share one durable
consumer. NATS drops a message that the outbox sends twice by its id; a message that is sent again on purpose has a new
id.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from windlass.contracts.lease.wakeups.addresses import SUBJECTS, word_of
from windlass.contracts.lease.wakeups.carriers.internal import ServerCalls
from windlass.contracts.lease.wakeups.carriers.options import CarrierOptions, not_installed, not_set
from windlass.contracts.lease.wakeups.carriers.port import Call, CarrierUnavailable, Message
from windlass.contracts.lease.wakeups.rules import WakeupMessage
from windlass.contracts.lease.wire.wakeup import Route, message_of

try:
    import nats
    import nats.errors
    from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy, StreamConfig
    from nats.js.errors import NotFoundError
except ImportError:
    raise not_installed("nats") from None

ANSWER_S, CONNECT_S = 5.0, 5.0
FETCH_LEAST_S = 0.1
NOT_DONE_MAX = 10_000  # unacknowledged messages of a queue
DUPLICATES_S = 120.0
STREAM = "WINDLASS_WAKEUPS"


def durable_of(subject: str) -> str:
    """The consumer that the workers of a queue share."""
    return "windlass_" + word_of(subject)


class _Link:
    """A connection to NATS, made when it is first needed and kept up by its client."""

    def __init__(self, options: CarrierOptions) -> None:
        if options.nats_url is None:
            raise not_set("nats_url", "NATS")
        self._options = options
        self._client: Any = None
        self._connecting = asyncio.Lock()
        self._streams: dict[str, str] = {}

    async def js(self) -> Any:
        """JetStream. Raises CarrierUnavailable while NATS is not connected."""
        async with self._connecting:
            if self._client is None or self._client.is_closed:
                self._client = await self._connect()
        if not self._client.is_connected:
            raise CarrierUnavailable("NATS does not answer")
        return self._client.jetstream(timeout=ANSWER_S)

    async def _connect(self) -> Any:
        options, credentials = self._options, self._options.nats_credentials
        assert options.nats_url is not None
        with translate_errors():
            async with asyncio.timeout(CONNECT_S):
                return await nats.connect(
                    servers=options.nats_url.split(","),
                    name="windlass",
                    connect_timeout=int(CONNECT_S),
                    reconnect_time_wait=0.5,
                    max_reconnect_attempts=-1,
                    error_cb=_ignore_error,
                    **({} if credentials is None else {"user_credentials": str(credentials)}),
                )

    async def stream(self, js: Any, subject: str) -> str:
        """The stream of a subject. Creates it if there is none."""
        if subject not in self._streams:
            ours = subject.startswith(SUBJECTS + ".")
            with translate_errors():
                try:
                    self._streams[subject] = await js.find_stream_name_by_subject(subject)
                except NotFoundError:
                    name = STREAM if ours else f"WINDLASS_{word_of(subject)}"
                    await js.add_stream(
                        StreamConfig(
                            name=name,
                            subjects=[f"{SUBJECTS}.>" if ours else subject],
                            retention=RetentionPolicy.WORK_QUEUE,
                            duplicate_window=DUPLICATES_S,
                        )
                    )
                    self._streams[subject] = name
        return self._streams[subject]

    def forget(self) -> None:
        """Look up streams again: they may be lost with their server."""
        self._streams.clear()

    async def close(self) -> None:
        if self._client is not None and not self._client.is_closed:
            with contextlib.suppress(nats.errors.Error, OSError):
                await self._client.close()


class NatsSender:
    def __init__(self, options: CarrierOptions) -> None:
        self._link = _Link(options)

    async def send(self, messages: Sequence[WakeupMessage]) -> None:
        js = await self._link.js()
        subjects = [message.address for message in messages]
        try:
            for subject in set(subjects):
                await self._link.stream(js, subject)
            sending = [_publish(js, subject, message) for subject, message in zip(subjects, messages, strict=True)]
            for outcome in await asyncio.gather(*sending, return_exceptions=True):
                if isinstance(outcome, BaseException):
                    raise outcome
        except CarrierUnavailable:
            self._link.forget()
            raise

    async def check(self) -> str:
        js = await self._link.js()
        with translate_errors():
            account = await js.account_info()
        return f"NATS answers; JetStream holds {account.streams} streams"

    async def close(self) -> None:
        await self._link.close()


async def _publish(js: Any, subject: str, message: WakeupMessage) -> None:
    with translate_errors():
        await js.publish(
            subject, message_of(message.task_id), timeout=ANSWER_S, headers={"Nats-Msg-Id": str(message.effect_id)}
        )


class NatsConsumer(ServerCalls):
    """See `port.Consumer`. Each `extend` keeps a message for the visibility timeout of its queue."""

    def __init__(self, route: Route, call: Call, options: CarrierOptions) -> None:
        super().__init__(route, call)
        self._link = _Link(options)
        self._subscription: Any = None
        self._subscribing = asyncio.Lock()

    async def receive(self, limit: int, wait_s: float) -> list[Message]:
        js = await self._link.js()
        subscription = await self._subscribed(js)
        try:
            found = await subscription.fetch(limit, timeout=max(wait_s, FETCH_LEAST_S))
        except TimeoutError:  # also NATS's own: nothing came, or the connection is lost
            await self._link.js()
            return []
        except nats.errors.Error as error:
            await self._unsubscribe()
            raise CarrierUnavailable(f"NATS: {error}") from None
        return [_message(received) for received in found]

    async def extend(self, message: Message) -> bool:
        with translate_errors():
            await message.receipt.in_progress()
        return True

    async def ack(self, message: Message) -> None:
        """If there is no responder, the consumer was lost with its messages, and there is nothing to acknowledge."""
        with translate_errors(), contextlib.suppress(nats.errors.MsgAlreadyAckdError, nats.errors.NoRespondersError):
            await message.receipt.ack_sync(timeout=ANSWER_S)

    async def nack(self, message: Message, delay_s: float = 0.0) -> None:
        with contextlib.suppress(nats.errors.MsgAlreadyAckdError), translate_errors():
            await message.receipt.nak(delay=delay_s or None)

    async def close(self) -> None:
        await self._link.close()

    async def _subscribed(self, js: Any) -> Any:
        async with self._subscribing:
            if self._subscription is None:
                subject = self._route.address
                stream = await self._link.stream(js, subject)
                with translate_errors():
                    await js.add_consumer(
                        stream,
                        ConsumerConfig(
                            durable_name=durable_of(subject),
                            filter_subject=subject,
                            ack_policy=AckPolicy.EXPLICIT,
                            ack_wait=self.visibility_s,
                            max_ack_pending=NOT_DONE_MAX,
                        ),
                    )
                    self._subscription = await js.pull_subscribe_bind(durable_of(subject), stream)
            return self._subscription

    async def _unsubscribe(self) -> None:
        """Look up stream and consumer again: either may be lost."""
        subscription, self._subscription = self._subscription, None
        self._link.forget()
        if subscription is not None:
            with contextlib.suppress(nats.errors.Error, OSError):
                await subscription.unsubscribe()


def _message(received: Any) -> Message:
    metadata = received.metadata
    id_ = f"{metadata.stream}:{metadata.sequence.stream}"
    return Message(id_, bytes(received.data), metadata.num_delivered, received)


@contextlib.contextmanager
def translate_errors() -> Iterator[None]:
    """Raise CarrierUnavailable for every error of NATS: all that a caller can do is try later."""
    try:
        yield
    except nats.errors.MsgAlreadyAckdError:
        raise
    except (nats.errors.Error, OSError, TimeoutError) as error:
        raise CarrierUnavailable(f"NATS: {str(error) or type(error).__name__}") from None


async def _ignore_error(_error: Exception) -> None:
    """Without a callback, the client logs each failed attempt to connect."""
