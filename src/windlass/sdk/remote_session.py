"""A worker's session with a server: one stream after the other under one lease.

A report is sent until it was answered, over as many streams as that takes. A stream that breaks is opened again at once
under the same lease; the server then gives back what this side does not know of. A lease that cannot be taken up again
is lost, and everybody who waits here is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any
from uuid import UUID

import grpc

from windlass.core.check import LARGE_MAX_BYTES
from windlass.core.command import Claimed, Release, Report
from windlass.core.error import InvalidState, LeaseLost, NotFound, Rejected, Unavailable, WindlassError
from windlass.core.lease import Activity, Extension, Lease
from windlass.core.text import line_of
from windlass.wire.channel import SESSION, error_of
from windlass.wire.problem import error_from
from windlass.wire.protos import session_pb2 as pb
from windlass.wire.session import claimed_from, extension_from, from_us, parts, report_message, to_id

log = logging.getLogger("windlass.worker")

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 1.0
OPEN_S = 30.0
END_S = 10.0

Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the worker asks for when it says hello."""

    worker: str
    queues: tuple[str, ...]
    kinds: tuple[str, ...] | None
    labels: tuple[str, ...]
    namespace: str
    ttl_s: float
    host: str
    pid: int
    version: str
    concurrency: int = 0

    def hello(self) -> pb.Hello:
        return pb.Hello(
            worker=self.worker, namespace=self.namespace, queues=self.queues, kinds=self.kinds or (),
            every_kind=self.kinds is None, labels=self.labels, lease_ttl_s=self.ttl_s, host=self.host, pid=self.pid,
            version=self.version, concurrency=self.concurrency,
        )  # fmt: skip


class RemoteSession:
    """Made by `open`. `over` when its lease is lost or was ended."""

    def __init__(self, channel: Any, metadata: Metadata, wanted: Wanted) -> None:
        self._open_stream = channel.stream_stream(SESSION, pb.FromWorker.SerializeToString, pb.ToWorker.FromString)
        self._metadata, self._wanted = metadata, wanted
        self._stream: Any = None
        self._writing = asyncio.Lock()
        self._numbers = count(1)
        self._unanswered: dict[int, tuple[pb.Report, asyncio.Future[WindlassError | None]]] = {}
        self._beats: dict[int, asyncio.Future[Extension]] = {}
        self._inbox: deque[Claimed] = deque()
        self._held: set[UUID] = set()  # pushed to us, and not reported
        self._credit = 0
        self._wanted_none = True  # nobody waits for tasks: what still arrives is given back
        self._arrived = asyncio.Event()
        self._news = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._background: set[asyncio.Future[Any]] = set()
        self._end: WindlassError | None = None
        self.lease: Lease
        self.result_max_bytes = LARGE_MAX_BYTES  # as the server says

    # ----------------------------------------------------------------------------------------- life

    @classmethod
    async def open(cls, channel: Any, metadata: Metadata, wanted: Wanted) -> RemoteSession:
        session = cls(channel, metadata, wanted)
        async with asyncio.timeout(OPEN_S):
            welcome = await session._greet(wanted.hello())
        session.lease = Lease(
            to_id("lease_id", welcome.lease_id), wanted.namespace, wanted.worker, wanted.queues, wanted.kinds,
            wanted.labels, wanted.ttl_s, from_us(welcome.expires_at_us), wanted.host, wanted.pid, wanted.version,
        )  # fmt: skip
        session._running = asyncio.create_task(session._keep_open())
        session._running.add_done_callback(session._reader_ended)
        return session

    def _reader_ended(self, reader: asyncio.Task[None]) -> None:
        """Whatever ended it: nobody would hear an answer any more, so that the lease is as good as lost."""
        error = None if reader.cancelled() else reader.exception()
        if error is not None:
            log.error("the session is over: %s", line_of(error))
        self._finish(LeaseLost("the session ended", lease_id=self.lease.id))

    @property
    def over(self) -> bool:
        return self._end is not None

    async def end(self) -> None:
        """Say goodbye, so that the lease ends now and not when it runs out."""
        self._give_back_inbox()
        await asyncio.gather(*self._background, return_exceptions=True)
        with contextlib.suppress(TimeoutError, WindlassError, grpc.aio.AioRpcError):
            async with asyncio.timeout(END_S):
                await self._write(pb.FromWorker(goodbye=pb.Goodbye()))
                if self._running is not None:
                    await asyncio.wait({self._running})
        await self.close()

    async def close(self) -> None:
        self._finish(LeaseLost("the session was closed", lease_id=self.lease.id))
        for task in [*self._background, *([self._running] if self._running else [])]:
            task.cancel()
        await asyncio.gather(*self._background, *([self._running] if self._running else []), return_exceptions=True)
        if self._stream is not None:
            self._stream.cancel()

    async def _greet(self, hello: pb.Hello) -> pb.Welcome:
        """A new stream, up to the server's welcome."""
        try:
            stream = self._open_stream(metadata=self._metadata)
        except grpc.aio.UsageError:
            raise InvalidState("the connection to the server was closed") from None
        try:
            await stream.write(pb.FromWorker(hello=hello))
            message = await stream.read()
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from None
        except asyncio.InvalidStateError:  # it ended while we wrote
            raise await _ended(stream) from None
        except BaseException:
            stream.cancel()
            raise
        if message is grpc.aio.EOF:
            raise await _ended(stream)
        self._stream = stream
        welcome: pb.Welcome = message.welcome
        self.result_max_bytes = welcome.result_max_bytes or LARGE_MAX_BYTES
        return welcome

    async def _keep_open(self) -> None:
        """Read until the stream ends; open it again until the lease is lost."""
        pause_s = FIRST_PAUSE_S
        while not self.over:
            try:
                if self._stream is None:
                    await self._return()
                pause_s = FIRST_PAUSE_S
                await self._read(self._stream)
                log.info("the server ended the session stream")
                self._stream = None
            except (LeaseLost, NotFound, Rejected) as error:
                self._finish(error if isinstance(error, LeaseLost) else LeaseLost(error.message))
                return
            except (WindlassError, asyncio.InvalidStateError) as error:
                log.warning("the session stream broke, opening it again: %s", error)
                self._stream = None
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    async def _return(self) -> None:
        """Take up the lease again, say what we hold, and send once more what was not answered."""
        hello = self._wanted.hello()
        hello.lease_id = self.lease.id.bytes
        hello.active.extend(task_id.bytes for task_id in self._held)
        await self._greet(hello)
        for future in self._beats.values():
            if not future.done():
                future.set_exception(Unavailable("the session stream broke"))
        self._beats.clear()
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
                    raise await _ended(stream)
                return
            match message.WhichOneof("message"):
                case "tasks":
                    self._take(message.tasks.tasks)
                case "answers":
                    self._hear(message.answers)
                case "extended":
                    waiting = self._beats.pop(message.extended.number, None)
                    if waiting is not None and not waiting.done():
                        waiting.set_result(extension_from(message.extended))
                case "cancels":
                    self._news.set()

    async def _write(self, message: pb.FromWorker) -> None:
        """On the stream that is open now. One that is broken is the reader's business: it sends again what matters."""
        async with self._writing:
            if self._stream is not None:
                with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    await self._stream.write(message)

    def _finish(self, error: WindlassError) -> None:
        """Everybody who waits here is told that it is over."""
        if self._end is None:
            self._end = error
        self._arrived.set()
        self._news.set()
        for beat in self._beats.values():
            if not beat.done():
                beat.set_exception(self._end)
        for _, answered in self._unanswered.values():
            if not answered.done():
                answered.set_exception(Unavailable("the session is over"))  # sent again, by itself

    def _check_open(self) -> None:
        if self._end is not None:
            raise self._end

    # ----------------------------------------------------------------------------------------- tasks

    async def claim(self, limit: int, wait_s: float) -> list[Claimed]:
        """What was pushed; gives credit so that up to `limit` may be. Who is cancelled here takes its credit back."""
        self._check_open()
        self._wanted_none = False
        more = limit - len(self._inbox) - self._credit
        try:
            if more > 0:
                self._credit += more
                await self._write(pb.FromWorker(credit=pb.Credit(tasks=more)))
            if not self._inbox and not self.over:  # which it may have become while the credit was written
                self._arrived.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._arrived.wait()
        except asyncio.CancelledError:
            self._credit, self._wanted_none = 0, True
            self._do(self._write(pb.FromWorker(credit=pb.Credit(revoke=True))))
            self._give_back_inbox()
            raise
        self._check_open()
        return [self._inbox.popleft() for _ in range(min(limit, len(self._inbox)))]

    def _take(self, messages: Sequence[pb.Task]) -> None:
        lease = self.lease
        for message in messages:
            claimed = claimed_from(message, lease.namespace, lease.id, lease.worker)
            self._inbox.append(claimed)
            self._held.add(claimed.task.id)
        self._credit = max(0, self._credit - len(messages))
        if self._wanted_none:
            self._give_back_inbox()
        else:
            self._arrived.set()

    def _give_back_inbox(self) -> None:
        given = [Release(one.task.id, one.task.attempt, self.lease.id) for one in self._inbox]
        self._inbox.clear()
        if given and not self.over:
            self._do(self.report(given))

    def _do(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Future[Any]) -> None:
        """Nobody waits for it; what it could not say is made good by the lease, which runs out."""
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.debug("not said before the session ended: %s", line_of(error))

    # ----------------------------------------------------------------------------------------- reports

    async def report(self, reports: Sequence[Report]) -> list[WindlassError | None]:
        """One answer each: None, or the error. Raises Unavailable when the session ends before all are answered."""
        self._check_open()
        waiting: list[asyncio.Future[WindlassError | None]] = []
        messages = []
        for report in reports:
            number = next(self._numbers)
            message = report_message(number, report)
            answered: asyncio.Future[WindlassError | None] = asyncio.get_running_loop().create_future()
            self._unanswered[number] = (message, answered)
            messages.append(message)
            waiting.append(answered)
        try:
            await self._send_reports(messages)
            answers = [await answered for answered in waiting]
        finally:
            for message in messages:
                self._unanswered.pop(message.number, None)
            for answered in waiting:  # if the session ended, all of them have failed: each is looked at
                if answered.done() and not answered.cancelled():
                    answered.exception()
        self._held.difference_update(
            report.task_id for report, said in zip(reports, answers, strict=True) if not isinstance(said, Unavailable)
        )
        return answers

    async def _send_reports(self, messages: Sequence[pb.Report]) -> None:
        for part in parts(messages, lambda message: len(message.body)):
            await self._write(pb.FromWorker(reports=pb.Reports(reports=part)))

    def _hear(self, answers: pb.Answers) -> None:
        for number in answers.accepted:
            self._answer(number, None)
        for refused in answers.refused:
            self._answer(refused.number, error_from(refused.code, refused.message))

    def _answer(self, number: int, said: WindlassError | None) -> None:
        known = self._unanswered.get(number)
        if known is not None and not known[1].done():
            known[1].set_result(said)

    # ----------------------------------------------------------------------------------------- heartbeats

    async def extend(self, active: Sequence[UUID], activity: Activity) -> Extension:
        self._check_open()
        number = next(self._numbers)
        waiting: asyncio.Future[Extension] = asyncio.get_running_loop().create_future()
        self._beats[number] = waiting
        held = [task_id.bytes for task_id in {*active, *self._held}]
        try:
            beat = pb.Heartbeat(
                number=number, active=held, completed=activity.completed, failed=activity.failed,
                draining=activity.draining,
            )  # fmt: skip
            await self._write(pb.FromWorker(heartbeat=beat))
            async with asyncio.timeout(self.lease.ttl_s / 3):
                return await waiting
        except TimeoutError:
            raise Unavailable("the server did not answer a heartbeat in time") from None
        finally:
            self._beats.pop(number, None)

    async def await_news(self, timeout_s: float) -> bool:
        """True at once when the server has told of a cancel, or that the lease is lost: the heartbeat tells which."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        heard = self._news.is_set()
        if not self.over:
            self._news.clear()
        return heard


async def _ended(stream: Any) -> WindlassError:
    """Why a stream ended, as the server said it."""
    code, details, trailing = await stream.code(), await stream.details(), await stream.trailing_metadata()
    return error_of(grpc.aio.AioRpcError(code, None, trailing, details))
