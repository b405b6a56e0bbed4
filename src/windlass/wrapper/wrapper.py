"""The wrapper: takes wake-ups, claims what they name, runs it, and reports, so many at a time.

A message is done with after the report was accepted, or when there is nothing to run; until then it is kept from
others. While the dispatcher is away it is held, not given back: the carrier would count that as one delivery more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID, uuid4

from windlass.core.error import Malformed, Unavailable, WindlassError
from windlass.queues.port import Consumer, Message
from windlass.wire.wakeup import task_of
from windlass.wrapper.attempt import Attempt
from windlass.wrapper.child import Programs
from windlass.wrapper.dispatcher import Claimed, Dispatcher, NotClaimed, Refused
from windlass.wrapper.operator import ANY, Answer, Functions, Operator, OperatorFailed, Speech
from windlass.wrapper.patience import PAUSE_MAX_S, PAUSE_S, spread, until_heard

log = logging.getLogger("windlass.wrapper")

RECEIVE_WAIT_S = 20.0
EXTENSIONS = 3  # within the time for which a message is ours
GIVEN_BACK_S = 1.0
AT_ONCE_S = 1.0  # who answers sooner that there is nothing has not waited


class Line:
    """One queue: where its wake-ups come from, whether its code is trusted, and the secrets that trusted code gets."""

    def __init__(
        self, queue: str, consumer: Consumer, *, namespace: str = "default", trusted: bool = True,
        secrets: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.queue, self.consumer, self.trusted, self.secrets = queue, consumer, trusted, tuple(secrets)
        self.namespace = namespace


class Wrapper:
    """Runs until `stop`, then finishes what it has begun; `stop_now` kills that and gives the messages back."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        operators: Mapping[str, Operator],
        programs: Programs,
        *,
        worker_id: str,
        concurrency: int = 4,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._dispatcher, self._operators, self._programs = dispatcher, operators, programs
        self._worker_id = worker_id
        self._environment = environment or {}  # where secrets are found
        self._functions = Functions(concurrency)
        self._places = asyncio.Semaphore(concurrency)
        self._concurrency = concurrency
        self._stopping = asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()
        self._leaving: set[asyncio.Task[None]] = set()
        self._lines: dict[tuple[str, str], Line] = {}

    async def run(self, lines: Sequence[Line]) -> None:
        self._lines = {(line.namespace, line.queue): line for line in lines}
        loops = [asyncio.create_task(self._receive(line)) for line in lines]
        try:
            await self._stopping.wait()
        finally:
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            while self._running:
                await asyncio.wait(self._running)
            for leaving in self._leaving:
                leaving.cancel()
            await asyncio.gather(*self._leaving, return_exceptions=True)
            self._functions.close()

    def stop(self) -> None:
        self._stopping.set()

    def stop_now(self) -> None:
        self._stopping.set()
        for running in self._running:
            running.cancel()

    @property
    def active_count(self) -> int:
        return len(self._running)

    # ------------------------------------------------------------------------------------------------- messages

    async def _receive(self, line: Line) -> None:
        """Whatever goes wrong, it goes on: a wrapper that is there and deaf would look well to everybody."""
        pause_s = PAUSE_S
        while True:
            while (free := self._concurrency - len(self._running)) <= 0:  # what we cannot run is for others
                await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
            receiving = asyncio.create_task(_received(line, free))
            try:
                messages = await asyncio.shield(receiving)
            except asyncio.CancelledError:
                self._leave(line, receiving)
                raise
            except WindlassError as error:
                log.warning("no wake-ups of %s: %s; trying again", line.queue, error)
                messages = None
            except Exception:
                log.exception("no wake-ups of %s; trying again", line.queue)
                messages = None
            if messages is None:
                await asyncio.sleep(spread(pause_s))
                pause_s = min(2 * pause_s, PAUSE_MAX_S)
                continue
            pause_s = PAUSE_S
            for message in messages:
                running = asyncio.create_task(self._handle(line, message))
                self._running.add(running)
                running.add_done_callback(self._running.discard)

    def _leave(self, line: Line, receiving: asyncio.Task[list[Message] | None]) -> None:
        """Nothing more is taken, but a carrier that was asked may still answer while the last tasks are finished: what
        it gives us then would be kept from others for as long as a message is ours."""

        async def give_back() -> None:
            with contextlib.suppress(WindlassError):
                for message in await receiving or ():
                    await line.consumer.nack(message)

        leaving = asyncio.create_task(give_back())
        self._leaving.add(leaving)

    async def _handle(self, line: Line, message: Message) -> None:
        """Until the message is done with, or was given back."""
        keeping = asyncio.create_task(_keep(line.consumer, message))
        try:
            async with self._places:
                reason = await self._work(line, message)
            await _done_with(line.consumer, message, reason)
        except asyncio.CancelledError:
            with contextlib.suppress(WindlassError, TimeoutError):
                await asyncio.wait_for(line.consumer.nack(message, GIVEN_BACK_S), GIVEN_BACK_S * 5)
        except Exception:
            log.exception("the message %s of %s is left to be delivered again", message.id, line.queue)
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    async def _work(self, line: Line, message: Message) -> str | None:
        """None when the message is done with, else why it is to be buried."""
        try:
            task_id = task_of(message.body)
        except Malformed as error:
            return str(error)
        if message.deliveries > line.consumer.max_deliveries:
            return f"it was delivered {message.deliveries} times, and its task was never reported"
        claimed = await self._claim(task_id)
        if claimed is not None:
            attempt = Attempt(self._dispatcher, claimed, lambda task, speech: self._operate(line, task, speech))
            outcome = await attempt.run()
            log.info("task %s: attempt %s: %s", task_id, claimed.attempt, outcome)
        return None

    async def _claim(self, task_id: UUID) -> Claimed | None:
        try:
            claim_id = uuid4()
            found = await until_heard("a claim", lambda: self._dispatcher.claim(task_id, self._worker_id, claim_id))
        except Refused as error:
            log.warning("task %s: the claim was refused: %s", task_id, error)
            return None
        if isinstance(found, NotClaimed):
            log.debug("task %s: not claimed: %s %s", task_id, found.reason, found.detail)
            return None
        return found

    # ------------------------------------------------------------------------------------------------- operators

    async def _operate(self, line: Line, task: Mapping[str, Any], speech: Speech) -> Answer:
        line, name = self._line_of(task, line), str(task.get("operator"))
        operator = self._operators.get(name) or self._operators.get(ANY)
        if operator is None:
            raise OperatorFailed(f"this wrapper has no operator {name}")
        if not line.trusted:
            operator = operator.distrusted()
        if operator.in_process:
            return await self._functions.run(operator, task, speech)
        return await self._programs.run(operator, task, speech, self._secrets(line) if operator.trusted else {})

    def _line_of(self, task: Mapping[str, Any], line: Line) -> Line:
        """A message is a hint: one that names a task of another queue must not get it run as this one's."""
        namespace, queue = task.get("namespace"), task.get("queue")
        if namespace is None or queue is None:  # a dispatcher that does not say
            return line
        if (namespace, queue) not in self._lines:
            raise OperatorFailed(f"a message of the queue {line.queue} named it, and it is of {queue} in {namespace}")
        return self._lines[namespace, queue]

    def _secrets(self, line: Line) -> dict[str, str]:
        missing = [name for name in line.secrets if name not in self._environment]
        if missing:
            raise OperatorFailed(
                f"the secret {missing[0]} of the queue {line.queue} is not in the wrapper's environment"
            )
        return {name: self._environment[name] for name in line.secrets}


async def _received(line: Line, limit: int) -> list[Message] | None:
    """What came. None if nobody waited for it: who asks again at once does so for ever. Whoever waited in vain says
    so."""
    began_s = time.monotonic()
    messages = await line.consumer.receive(limit, RECEIVE_WAIT_S)
    if messages:
        return messages
    if time.monotonic() - began_s < AT_ONCE_S:
        return None
    try:
        await line.consumer.unheard()
    except WindlassError as error:
        log.debug("that no wake-ups of %s came was not heard: %s", line.queue, error)
    return messages


async def _done_with(consumer: Consumer, message: Message, reason: str | None) -> None:
    """Said until it was heard, but not for ever: a carrier may have forgotten the message, and one that is delivered
    again tells its worker that there is nothing to run."""
    try:
        async with asyncio.timeout(consumer.visibility_s):
            if reason is None:
                await until_heard("a message", lambda: consumer.ack(message))
            else:
                await until_heard("a message", lambda: consumer.bury(message, reason))
    except TimeoutError:
        log.warning("the message %s is left to be delivered again: its carrier does not answer", message.id)


async def _keep(consumer: Consumer, message: Message) -> None:
    """Nobody else needs to look at it meanwhile. If it is taken from us, the lease keeps others away all the same."""
    while True:
        await asyncio.sleep(consumer.visibility_s / EXTENSIONS)
        try:
            if not await consumer.extend(message):
                log.info("the message %s was delivered to somebody else", message.id)
                return
        except Unavailable as error:
            log.warning("the message %s cannot be kept: %s", message.id, error)
        except WindlassError as error:
            log.warning("the message %s cannot be kept: %s", message.id, error)
            return
