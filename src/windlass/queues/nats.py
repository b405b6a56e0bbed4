"""NATS JetStream as the carrier of wake-ups.

All subjects are in one stream that keeps a message until it is done with; the workers of a queue share one durable
consumer. A message that the outbox sends twice is told by its id, one that is sent again on purpose has another.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from windlass.core.carrier import SUBJECTS, word_of
from windlass.core.wakeup import Letter
from windlass.queues.internal import bury, unheard
from windlass.queues.option import CarrierOptions, not_installed, not_set
from windlass.queues.port import Call, CarrierAway, Message
from windlass.wire.wakeup import Route, message_of

try:
    import nats
    import nats.errors
    from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy, StreamConfig
    from nats.js.errors import NotFoundError
except ImportError:
    raise not_installed("nats") from None

ANSWER_S, CONNECT_S = 5.0, 5.0
FETCH_LEAST_S = 0.1
NOT_DONE_MAX = 10_000  # messages that the workers of a queue hold at a time
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
        """JetStream, if NATS is there now."""
        async with self._connecting:
            if self._client is None or self._client.is_closed:
                self._client = await self._connect()
        if not self._client.is_connected:
            raise CarrierAway("NATS does not answer")
        return self._client.jetstream(timeout=ANSWER_S)

    async def _connect(self) -> Any:
        options, credentials = self._options, self._options.nats_credentials
        assert options.nats_url is not None
        with _told():
            async with asyncio.timeout(CONNECT_S):
                return await nats.connect(
                    servers=options.nats_url.split(","),
                    name="windlass",
                    connect_timeout=int(CONNECT_S),
                    reconnect_time_wait=0.5,
                    max_reconnect_attempts=-1,
                    error_cb=_quietly,
                    **({} if credentials is None else {"user_credentials": str(credentials)}),
                )

    async def stream(self, js: Any, subject: str) -> str:
        """The stream of a subject; one that is not there is made."""
        if subject not in self._streams:
            ours = subject.startswith(SUBJECTS + ".")
            with _told():
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
        """Streams may have gone with the server that had them."""
        self._streams.clear()

    async def close(self) -> None:
        if self._client is not None and not self._client.is_closed:
            with contextlib.suppress(nats.errors.Error, OSError):
                await self._client.close()


class NatsSender:
    def __init__(self, options: CarrierOptions) -> None:
        self._link = _Link(options)

    async def send(self, letters: Sequence[Letter]) -> None:
        js = await self._link.js()
        subjects = [letter.address for letter in letters]
        try:
            for subject in set(subjects):
                await self._link.stream(js, subject)
            sending = [_publish(js, subject, letter) for subject, letter in zip(subjects, letters, strict=True)]
            for outcome in await asyncio.gather(*sending, return_exceptions=True):
                if isinstance(outcome, BaseException):
                    raise outcome
        except CarrierAway:
            self._link.forget()
            raise

    async def check(self) -> str:
        js = await self._link.js()
        with _told():
            account = await js.account_info()
        return f"NATS answers; JetStream holds {account.streams} streams"

    async def close(self) -> None:
        await self._link.close()


async def _publish(js: Any, subject: str, letter: Letter) -> None:
    with _told():
        await js.publish(
            subject, message_of(letter.task_id), timeout=ANSWER_S, headers={"Nats-Msg-Id": str(letter.effect_id)}
        )


class NatsConsumer:
    """See `port.Consumer`. A message that is kept is kept for the visibility of its queue, from each `extend` on."""

    def __init__(self, route: Route, call: Call, options: CarrierOptions) -> None:
        self._route, self._call, self._link = route, call, _Link(options)
        self.visibility_s, self.max_deliveries = route.visibility_s, route.max_deliveries
        self._subscription: Any = None
        self._subscribing = asyncio.Lock()

    async def receive(self, limit: int, wait_s: float) -> list[Message]:
        js = await self._link.js()
        subscription = await self._subscribed(js)
        try:
            found = await subscription.fetch(limit, timeout=max(wait_s, FETCH_LEAST_S))
        except TimeoutError:  # of NATS too: nothing came, or nobody is there any more
            await self._link.js()
            return []
        except nats.errors.Error as error:
            await self._unsubscribe()
            raise CarrierAway(f"NATS: {error}") from None
        return [_message(one) for one in found]

    async def extend(self, message: Message) -> bool:
        with _told():
            await message.receipt.in_progress()
        return True

    async def unheard(self) -> None:
        await unheard(self._call, self._route)

    async def ack(self, message: Message) -> None:
        """Where nobody answers, its consumer has gone with all that it had: then there is nothing left to be done."""
        with _told(), contextlib.suppress(nats.errors.MsgAlreadyAckdError, nats.errors.NoRespondersError):
            await message.receipt.ack_sync(timeout=ANSWER_S)

    async def nack(self, message: Message, delay_s: float = 0.0) -> None:
        with contextlib.suppress(nats.errors.MsgAlreadyAckdError), _told():
            await message.receipt.nak(delay=delay_s or None)

    async def bury(self, message: Message, reason: str) -> None:
        await bury(self._call, self._route, message, reason)
        await self.ack(message)

    async def close(self) -> None:
        await self._link.close()

    async def _subscribed(self, js: Any) -> Any:
        async with self._subscribing:
            if self._subscription is None:
                subject = self._route.address
                stream = await self._link.stream(js, subject)
                with _told():
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
        """Stream or consumer may have gone: both are looked for again."""
        subscription, self._subscription = self._subscription, None
        self._link.forget()
        if subscription is not None:
            with contextlib.suppress(nats.errors.Error, OSError):
                await subscription.unsubscribe()


def _message(one: Any) -> Message:
    told = one.metadata
    return Message(f"{told.stream}:{told.sequence.stream}", bytes(one.data), told.num_delivered, one)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """What goes wrong with NATS, in our words. Whatever it is, asking again later is all that can be done."""
    try:
        yield
    except nats.errors.MsgAlreadyAckdError:
        raise
    except (nats.errors.Error, OSError, TimeoutError) as error:
        raise CarrierAway(f"NATS: {str(error) or type(error).__name__}") from None


async def _quietly(_error: Exception) -> None:
    """Its client would log each try to connect."""
