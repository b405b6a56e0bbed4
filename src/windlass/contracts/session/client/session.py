"""A worker's session with a server: a lease, and one stream after another under it.

A report is sent until it is answered, over any number of streams. A stream that breaks is opened again at once under
the same lease; the server then releases tasks that never arrived here. When the server refuses the lease, it is lost,
and every waiting call fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Sequence
from itertools import count
from typing import Any
from uuid import UUID

import grpc

from windlass.contracts.session.wire import session_pb2 as pb
from windlass.contracts.session.wire.messages import claimed_from, extension_from, from_us, parts, report_message, to_id
from windlass.contracts.session.wire.methods import SESSION
from windlass.core.command import Claimed, Release, Report
from windlass.core.lease import Activity, Extension, Lease
from windlass.core.text import line_of
from windlass.core.validation import LARGE_MAX_BYTES
from windlass.errors import InvalidState, LeaseLost, NotFound, Rejected, Unavailable, WindlassError
from windlass.net.backoff import Backoff
from windlass.net.grpc_channel import error_of
from windlass.net.problem import error_from

log = logging.getLogger("windlass.worker")

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 1.0
OPEN_S = 30.0
END_S = 10.0
WRITE_RACE = "Internal error from Core"  # grpcio's own error if the server ends a call during a write

Metadata = tuple[tuple[str, str], ...]


class RemoteSession:
    """Made by `open`. It is `over` when its lease was lost or has ended."""

    def __init__(self, channel: Any, metadata: Metadata, hello: pb.Hello) -> None:
        self._open_stream = channel.stream_stream(SESSION, pb.FromWorker.SerializeToString, pb.ToWorker.FromString)
        self._metadata, self._hello = metadata, hello
        self._stream: Any = None
        self._writing = asyncio.Lock()
        self._numbers = count(1)
        self._unanswered: dict[int, tuple[pb.Report, asyncio.Future[WindlassError | None]]] = {}
        self._heartbeats: dict[int, asyncio.Future[Extension]] = {}
        self._inbox: deque[Claimed] = deque()
        self._held: set[UUID] = set()  # pushed to us, and not reported
        self._credit = 0
        self._claiming = False  # if not, tasks that still arrive are released
        self._arrived = asyncio.Event()
        self._news = asyncio.Event()
        self._running: asyncio.Task[None]
        self._background: set[asyncio.Future[Any]] = set()
        self._end: WindlassError | None = None
        self.lease: Lease
        self.result_max_bytes = LARGE_MAX_BYTES  # until the server sends its own limit

    # ----------------------------------------------------------------------------------------- lifecycle

    @classmethod
    async def open(cls, channel: Any, metadata: Metadata, hello: pb.Hello) -> RemoteSession:
        session = cls(channel, metadata, hello)
        async with asyncio.timeout(OPEN_S):
            welcome = await session._greet(hello)
        session.lease = Lease(
            to_id("lease_id", welcome.lease_id), hello.namespace, hello.worker, tuple(hello.queues),
            None if hello.every_kind else tuple(hello.kinds), tuple(hello.labels), hello.lease_ttl_s,
            from_us(welcome.expires_at_us), hello.host, hello.pid, hello.version,
        )  # fmt: skip
        session._running = asyncio.create_task(session._keep_open())
        session._running.add_done_callback(session._on_reader_end)
        return session

    def _on_reader_end(self, reader: asyncio.Task[None]) -> None:
        """Without the reader no answer arrives, so the lease counts as lost."""
        error = None if reader.cancelled() else reader.exception()
        if error is not None:
            log.error("the session is over: %s", line_of(error))
        self._finish(LeaseLost("the session ended", lease_id=self.lease.id))

    @property
    def over(self) -> bool:
        return self._end is not None

    async def end(self) -> None:
        """End the lease now, instead of letting it expire."""
        self._release_inbox()
        await asyncio.gather(*self._background, return_exceptions=True)
        with contextlib.suppress(TimeoutError, WindlassError, grpc.aio.AioRpcError):
            async with asyncio.timeout(END_S):
                await self._write(pb.FromWorker(goodbye=pb.Goodbye()))
                await asyncio.wait({self._running})
        await self.close()

    async def close(self) -> None:
        self._finish(LeaseLost("the session was closed", lease_id=self.lease.id))
        tasks = [*self._background, self._running]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._stream is not None:
            self._stream.cancel()

    async def _greet(self, hello: pb.Hello, *, again: bool = True) -> pb.Welcome:
        """Open a new stream, send the hello, and wait for the server's welcome. `WRITE_RACE` hides the status of the
        server, such as UNAUTHENTICATED, so try once more after it."""
        try:
            stream = self._open_stream(metadata=self._metadata)
        except grpc.aio.UsageError:
            raise InvalidState("the connection to the server was closed") from None
        try:
            await stream.write(pb.FromWorker(hello=hello))
            message = await stream.read()
        except grpc.aio.AioRpcError as error:
            if again and error.details() == WRITE_RACE:
                return await self._greet(hello, again=False)
            raise error_of(error) from None
        except asyncio.InvalidStateError:  # it ended before we wrote
            raise await _stream_error(stream) from None
        except BaseException:
            stream.cancel()
            raise
        if message is grpc.aio.EOF:
            raise await _stream_error(stream)
        self._stream = stream
        welcome: pb.Welcome = message.welcome
        self.result_max_bytes = welcome.result_max_bytes or LARGE_MAX_BYTES
        return welcome

    async def _keep_open(self) -> None:
        """Read until the stream ends; open it again until the lease is lost."""
        backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        while not self.over:
            try:
                if self._stream is None:
                    await self._resume()
                backoff.reset()
                await self._read(self._stream)
                log.info("the server ended the session stream")
                self._stream = None
            except (LeaseLost, NotFound, Rejected) as error:
                self._finish(error if isinstance(error, LeaseLost) else LeaseLost(error.message))
                return
            except (WindlassError, asyncio.InvalidStateError) as error:
                log.warning("the session stream broke, opening it again: %s", error)
                self._stream = None
            await asyncio.sleep(backoff.next_s())

    async def _resume(self) -> None:
        """Resume the lease with the tasks that we hold, and repeat reports without an answer."""
        hello = pb.Hello(lease_id=self.lease.id.bytes, active=[task_id.bytes for task_id in self._held])
        hello.MergeFrom(self._hello)
        await self._greet(hello)
        for future in self._heartbeats.values():
            if not future.done():
                future.set_exception(Unavailable("the session stream broke"))
        self._heartbeats.clear()
        if self._credit:
            await self._write(pb.FromWorker(credit=pb.Credit(tasks=self._credit)))
        await self._send_reports([message for message, _ in self._unanswered.values()])

    async def _read(self, stream: Any) -> None:
        while True:
            try:
                message = await stream.read()
            except grpc.aio.AioRpcError as error:
                raise error_of(error) from None
            if message is grpc.aio.EOF:
                if await stream.code() is not grpc.StatusCode.OK:
                    raise await _stream_error(stream)
                return
            match message.WhichOneof("message"):
                case "tasks":
                    self._receive(message.tasks.tasks)
                case "answers":
                    for number in message.answers.accepted:
                        self._answer(number, None)
                    for refused in message.answers.refused:
                        self._answer(refused.number, error_from(refused.code, refused.message))
                case "extended":
                    waiting = self._heartbeats.pop(message.extended.number, None)
                    if waiting is not None and not waiting.done():
                        waiting.set_result(extension_from(message.extended))
                case "cancels":
                    self._news.set()

    async def _write(self, message: pb.FromWorker) -> None:
        """Write to the open stream. If it is broken, the reader opens another and repeats credit and reports."""
        async with self._writing:
            if self._stream is not None:
                with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    await self._stream.write(message)

    def _finish(self, error: WindlassError) -> None:
        """End the session: every call that waits here fails."""
        if self._end is None:
            self._end = error
        self._arrived.set()
        self._news.set()
        for waiting in self._heartbeats.values():
            if not waiting.done():
                waiting.set_exception(self._end)
        for _, answer in self._unanswered.values():
            if not answer.done():
                answer.set_exception(Unavailable("the session is over"))  # it is reported again, outside of a session

    def _check_open(self) -> None:
        if self._end is not None:
            raise self._end

    # ----------------------------------------------------------------------------------------- tasks

    async def claim(self, limit: int, wait_s: float) -> list[Claimed]:
        """Return tasks that were pushed, and give the server credit to push up to `limit`. A cancelled call takes its
        credit back."""
        self._check_open()
        self._claiming = True
        more = limit - len(self._inbox) - self._credit
        try:
            if more > 0:
                self._credit += more
                await self._write(pb.FromWorker(credit=pb.Credit(tasks=more)))
            if not self._inbox and not self.over:  # it may have ended while the credit was written
                self._arrived.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._arrived.wait()
        except asyncio.CancelledError:
            self._credit, self._claiming = 0, False
            self._start(self._write(pb.FromWorker(credit=pb.Credit(revoke=True))))
            self._release_inbox()
            raise
        self._check_open()
        return [self._inbox.popleft() for _ in range(min(limit, len(self._inbox)))]

    def _receive(self, messages: Sequence[pb.Task]) -> None:
        lease = self.lease
        for message in messages:
            claimed = claimed_from(message, lease.namespace, lease.id, lease.worker)
            self._inbox.append(claimed)
            self._held.add(claimed.task.id)
        self._credit = max(0, self._credit - len(messages))
        if self._claiming:
            self._arrived.set()
        else:
            self._release_inbox()

    def _release_inbox(self) -> None:
        releases = [Release(one.task.id, one.task.attempt, self.lease.id) for one in self._inbox]
        self._inbox.clear()
        if releases and not self.over:
            self._start(self.report(releases))

    def _start(self, work: Any) -> None:
        """Run it in the background."""
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._on_background_end)

    def _on_background_end(self, task: asyncio.Future[Any]) -> None:
        """If it could not be sent, the lease expires, and its tasks go to other workers."""
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.debug("not sent before the session ended: %s", line_of(error))

    # ----------------------------------------------------------------------------------------- reports

    async def report(self, reports: Sequence[Report]) -> list[WindlassError | None]:
        """Return one answer for each: None, or the error. Raises Unavailable if the session ends before that."""
        self._check_open()
        waiting: list[asyncio.Future[WindlassError | None]] = []
        messages = []
        for report in reports:
            number = next(self._numbers)
            message = report_message(number, report)
            answer: asyncio.Future[WindlassError | None] = asyncio.get_running_loop().create_future()
            self._unanswered[number] = (message, answer)
            messages.append(message)
            waiting.append(answer)
        try:
            await self._send_reports(messages)
            answers = [await answer for answer in waiting]
        finally:
            for message in messages:
                self._unanswered.pop(message.number, None)
            for answer in waiting:  # if the session ended, all have failed: mark each exception as read
                if answer.done() and not answer.cancelled():
                    answer.exception()
        self._held.difference_update(
            report.task_id for report, error in zip(reports, answers, strict=True) if not isinstance(error, Unavailable)
        )
        return answers

    async def _send_reports(self, messages: Sequence[pb.Report]) -> None:
        for part in parts(messages, lambda message: len(message.body)):
            await self._write(pb.FromWorker(reports=pb.Reports(reports=part)))

    def _answer(self, number: int, error: WindlassError | None) -> None:
        waiting = self._unanswered.get(number)
        if waiting is not None and not waiting[1].done():
            waiting[1].set_result(error)

    # ----------------------------------------------------------------------------------------- heartbeats

    async def extend(self, active: Sequence[UUID], activity: Activity) -> Extension:
        self._check_open()
        number = next(self._numbers)
        waiting: asyncio.Future[Extension] = asyncio.get_running_loop().create_future()
        self._heartbeats[number] = waiting
        held = [task_id.bytes for task_id in {*active, *self._held}]
        try:
            heartbeat = pb.Heartbeat(
                number=number, active=held, completed=activity.completed, failed=activity.failed,
                draining=activity.draining,
            )  # fmt: skip
            await self._write(pb.FromWorker(heartbeat=heartbeat))
            async with asyncio.timeout(self.lease.ttl_s / 3):
                return await waiting
        except TimeoutError:
            raise Unavailable("the server did not answer a heartbeat in time") from None
        finally:
            self._heartbeats.pop(number, None)

    async def await_notification(self, timeout_s: float) -> bool:
        """Wait for a cancel or the loss of the lease; True if one has come. The next heartbeat returns which."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        arrived = self._news.is_set()
        if not self.over:
            self._news.clear()
        return arrived


async def _stream_error(stream: Any) -> WindlassError:
    """Why the server ended a stream."""
    code, details, trailing = await stream.code(), await stream.details(), await stream.trailing_metadata()
    return error_of(grpc.aio.AioRpcError(code, None, trailing, details))
