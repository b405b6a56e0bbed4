"""The wrapper: receives wake-ups, claims their tasks, runs them and reports, up to `concurrency` at a time.

A message is acknowledged after the report was accepted, or when there is nothing to run; until then other wrappers do
not get it. While the dispatcher does not answer, the message is kept: the carrier would count its return as one more
delivery.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from msgspec.structs import replace

from windlass.contracts.lease.wakeups.carriers.port import Consumer, Message
from windlass.contracts.lease.wire.wakeup import task_of
from windlass.contracts.lease.worker.attempt import Attempt
from windlass.contracts.lease.worker.child import Programs
from windlass.contracts.lease.worker.dispatcher import Claimed, Dispatcher, NotClaimed, Refused
from windlass.contracts.lease.worker.operator import ANY, Answer, Functions, MessageSink, Operator, OperatorFailed
from windlass.contracts.lease.worker.retry import PAUSE_MAX_S, PAUSE_S, cancel_all, until_answered
from windlass.errors import Malformed, Unavailable, WindlassError
from windlass.net.backoff import Backoff

log = logging.getLogger("windlass.wrapper")

RECEIVE_WAIT_S = 20.0
EXTENSIONS = 3  # per visibility timeout of a message
NACK_DELAY_S = 1.0
AT_ONCE_S = 1.0  # a carrier that answers sooner without a message has not waited


class Line(NamedTuple):
    """One queue: the carrier of its wake-ups, whether its code is trusted, and the secrets that trusted code gets."""

    queue: str
    consumer: Consumer
    namespace: str = "default"
    trusted: bool = True
    secrets: Sequence[str] = ()


class Wrapper:
    """Runs until `stop`, then finishes its running tasks. `stop_now` kills them and returns their messages."""

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
        self._environment = environment or {}  # holds the secrets
        self._functions = Functions(concurrency)
        self._slots = asyncio.Semaphore(concurrency)
        self._concurrency = concurrency
        self._stopping = asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()
        self._returning: set[asyncio.Task[None]] = set()
        self._lines: dict[tuple[str, str], Line] = {}

    async def run(self, lines: Sequence[Line]) -> None:
        self._lines = {(line.namespace, line.queue): line for line in lines}
        loops = [asyncio.create_task(self._receive(line)) for line in lines]
        try:
            await self._stopping.wait()
        finally:
            await cancel_all(*loops)
            while self._running:
                await asyncio.wait(self._running)
            await cancel_all(*self._returning)
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
        """Goes on after every error: a wrapper that stopped receiving would still look healthy."""
        backoff = Backoff(PAUSE_S, PAUSE_MAX_S)
        while True:
            while (free := self._concurrency - len(self._running)) <= 0:  # leave messages that we cannot run to others
                await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
            receiving = asyncio.create_task(_receive_messages(line, free))
            try:
                messages = await asyncio.shield(receiving)
            except asyncio.CancelledError:
                self._return_late_messages(line, receiving)
                raise
            except WindlassError as error:
                log.warning("cannot receive wake-ups of %s: %s; trying again", line.queue, error)
                messages = None
            except Exception:
                log.exception("cannot receive wake-ups of %s; trying again", line.queue)
                messages = None
            if messages is None:
                await asyncio.sleep(backoff.next_s())
                continue
            backoff.reset()
            for message in messages:
                running = asyncio.create_task(self._handle(line, message))
                self._running.add(running)
                running.add_done_callback(self._running.discard)

    def _return_late_messages(self, line: Line, receiving: asyncio.Task[list[Message] | None]) -> None:
        """A carrier may still answer an open request while the last tasks finish. Return those messages, or other
        wrappers would not get them before their visibility timeout."""

        async def give_back() -> None:
            with contextlib.suppress(WindlassError):
                for message in await receiving or ():
                    await line.consumer.nack(message)

        self._returning.add(asyncio.create_task(give_back()))

    async def _handle(self, line: Line, message: Message) -> None:
        """Run the task of a message, until the message is settled or returned."""
        extending = asyncio.create_task(_extend(line.consumer, message))
        try:
            async with self._slots:
                reason = await self._work(line, message)
            await _settle(line.consumer, message, reason)
        except asyncio.CancelledError:
            with contextlib.suppress(WindlassError, TimeoutError):
                await asyncio.wait_for(line.consumer.nack(message, NACK_DELAY_S), NACK_DELAY_S * 5)
        except Exception:
            log.exception("message %s of %s will be delivered again", message.id, line.queue)
        finally:
            await cancel_all(extending)

    async def _work(self, line: Line, message: Message) -> str | None:
        """None to acknowledge the message, else the reason to dead-letter it."""
        try:
            task_id = task_of(message.body)
        except Malformed as error:
            return str(error)
        if message.deliveries > line.consumer.max_deliveries:
            return f"it was delivered {message.deliveries} times, and its task was never reported"
        claimed = await self._claim(task_id)
        if claimed is not None:
            attempt = Attempt(self._dispatcher, claimed, lambda task, messages: self._operate(line, task, messages))
            outcome = await attempt.run()
            log.info("task %s: attempt %s: %s", task_id, claimed.attempt, outcome)
        return None

    async def _claim(self, task_id: UUID) -> Claimed | None:
        try:
            claim_id = uuid4()
            found = await until_answered("a claim", lambda: self._dispatcher.claim(task_id, self._worker_id, claim_id))
        except Refused as error:
            log.warning("task %s: the claim was refused: %s", task_id, error)
            return None
        if isinstance(found, NotClaimed):
            log.debug("task %s: not claimed: %s %s", task_id, found.reason, found.detail)
            return None
        return found

    # ------------------------------------------------------------------------------------------------- operators

    async def _operate(self, line: Line, task: Mapping[str, Any], messages: MessageSink) -> Answer:
        line, name = self._line_of(task, line), str(task.get("operator"))
        operator = self._operators.get(name) or self._operators.get(ANY)
        if operator is None:
            raise OperatorFailed(f"this wrapper has no operator {name}")
        if not line.trusted:
            operator = replace(operator, trusted=False)
        if operator.in_process:
            return await self._functions.run(operator, task, messages)
        return await self._programs.run(operator, task, messages, self._secrets(line, task) if operator.trusted else {})

    def _line_of(self, task: Mapping[str, Any], line: Line) -> Line:
        """The line of the task's own queue. A message is only a hint: if it names a task of another queue, that queue
        decides whether the task is trusted."""
        namespace, queue = task.get("namespace"), task.get("queue")
        if namespace is None or queue is None:  # a dispatcher that does not send them
            return line
        if (namespace, queue) not in self._lines:
            raise OperatorFailed(f"a message of queue {line.queue} named a task of queue {queue} in {namespace}")
        return self._lines[namespace, queue]

    def _secrets(self, line: Line, task: Mapping[str, Any]) -> dict[str, str]:
        """The secrets of the queue; of a job of a DAG, those that it names."""
        named = task.get("secrets")
        try:
            return {name: self._environment[name] for name in line.secrets if named is None or name in named}
        except KeyError as error:
            missing = f"the secret {error.args[0]} of queue {line.queue} is not in the wrapper's environment"
            raise OperatorFailed(missing) from None


async def _receive_messages(line: Line, limit: int) -> list[Message] | None:
    """The messages that came. None if the carrier answered without waiting: the caller pauses, or it would ask in a
    busy loop. Reports to the server when a full wait brought no message."""
    began_s = time.monotonic()
    messages = await line.consumer.receive(limit, RECEIVE_WAIT_S)
    if messages:
        return messages
    if time.monotonic() - began_s < AT_ONCE_S:
        return None
    try:
        await line.consumer.report_idle()
    except WindlassError as error:
        log.debug("the server could not be informed that no wake-ups of %s came: %s", line.queue, error)
    return messages


async def _settle(consumer: Consumer, message: Message, reason: str | None) -> None:
    """Acknowledge or dead-letter the message. Repeats for at most one visibility timeout: the carrier may have dropped
    the message, and if it is delivered again, its claim finds nothing to run."""
    try:
        async with asyncio.timeout(consumer.visibility_s):
            await until_answered(
                "a message", lambda: consumer.ack(message) if reason is None else consumer.dead_letter(message, reason)
            )
    except TimeoutError:
        log.warning("message %s will be delivered again: its carrier does not answer", message.id)


async def _extend(consumer: Consumer, message: Message) -> None:
    """Keep the message from other wrappers while it is handled. If that fails, the lease still protects the task."""
    while True:
        await asyncio.sleep(consumer.visibility_s / EXTENSIONS)
        try:
            if not await consumer.extend(message):
                log.info("message %s was delivered to another wrapper", message.id)
                return
        except WindlassError as error:
            log.warning("message %s cannot be extended: %s", message.id, error)
            if not isinstance(error, Unavailable):
                return
