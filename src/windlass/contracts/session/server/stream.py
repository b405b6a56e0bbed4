"""The session of one worker on the server: its lease, tasks pushed within its credit, its reports and heartbeats.

It calls the engine and decides nothing itself. It reads and writes messages and does not know their transport. When a
session ends without a goodbye, the lease stays until it expires, so that the worker can resume it; tasks that were
claimed but never sent are given back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

from windlass.contracts.session.server.namespaces import AttemptAccess
from windlass.contracts.session.wire import messages as wire
from windlass.contracts.session.wire import session_pb2 as pb
from windlass.contracts.session.wire.messages import to_id
from windlass.core.access import Principal, Role, check_reach, check_role
from windlass.core.command import Claimed, Release, Report
from windlass.core.lease import Activity, Lease
from windlass.engine.debounce import Debounce
from windlass.engine.engine import Engine
from windlass.errors import ContractViolation, Invalid, Unavailable, WindlassError
from windlass.net.status import known_code, public_message

log = logging.getLogger("windlass.session")

CREDIT_MAX = 100_000
CLAIM_MAX = 500
CLAIM_WAIT_S = 60.0
NOTIFICATION_WAIT_S = 300.0
AFTER_ERROR_S = 1.0
UNKNOWN_TASK_LEASES = 2
GATHER_S = 1.0  # a heartbeat waits so long for others, so that the engine extends their leases together
PART_OF_LEASE = 0.05  # longest such wait, as a part of the lease
REPORTING_MAX = 8  # groups of reports in progress; a worker that sends more is read more slowly

Send = Callable[[pb.ToWorker], Awaitable[None]]
Refusals = Callable[[list[tuple[UUID, UUID]]], Awaitable[Mapping[tuple[UUID, UUID], WindlassError]]]


class Session:
    """One session. Calls of `send` are serialized: a peer that does not read blocks all messages after the first."""

    def __init__(
        self, engine: Engine, principal: Principal, send: Send, debounce: Debounce, access: AttemptAccess
    ) -> None:
        """`debounce` is shared by all sessions of the server."""
        self._engine, self._principal, self._write = engine, principal, send
        self._debounce, self._access = debounce, access
        self._sending = asyncio.Lock()
        self._credit = 0
        self._credit_changed = asyncio.Event()
        self._pushed_at_s = -math.inf
        self._reporting = asyncio.Semaphore(REPORTING_MAX)
        self._revoked = asyncio.Event()
        self._pending: set[asyncio.Task[None]] = set()
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # ----------------------------------------------------------------------------------------- lifecycle

    async def open(self, hello: pb.Hello) -> Lease:
        """Returns the lease of this session: a new one, or that of a broken session."""
        namespace = hello.namespace or self._principal.namespace or "default"
        check_role(self._principal, Role.SUBMITTER)
        check_reach(self._principal, namespace)
        if hello.lease_id:
            lease = await self._access.lease(self._principal, to_id("lease_id", hello.lease_id))
            active = [to_id("active", task_id) for task_id in hello.active]
            resumed = await self._engine.parts.leases.resume(lease, active)
            self._pushed_at_s = asyncio.get_running_loop().time()  # the broken session may have pushed until now
            return resumed
        return await self._engine.open_lease(
            hello.worker, list(hello.queues), kinds=None if hello.every_kind else list(hello.kinds),
            labels=list(hello.labels), namespace=namespace, ttl_s=hello.lease_ttl_s, host=hello.host, pid=hello.pid,
            version=hello.version, concurrency=hello.concurrency,
        )  # fmt: skip

    async def run(self, lease: Lease, messages: AsyncIterator[pb.FromWorker]) -> None:
        """Runs until the worker says goodbye, or its stream ends or breaks. Hello has been read."""
        welcome = pb.Welcome(
            lease_id=lease.id.bytes, expires_at_us=wire.to_us(lease.expires_at), lease_ttl_s=lease.ttl_s,
            result_max_bytes=self._engine.parts.objects.limit_bytes,
        )  # fmt: skip
        await self._send(pb.ToWorker(welcome=welcome))
        work = (self._read(messages, lease), self._push(lease), self._send_cancels(lease))
        loops = [asyncio.ensure_future(each) for each in work]
        try:
            await asyncio.wait([*loops, self._failed], return_when=asyncio.FIRST_COMPLETED)
            for loop in [self._failed, *loops]:
                if loop.done():
                    loop.result()
        finally:
            self._failed.cancel()
            for task in [*loops, *self._pending]:
                task.cancel()
            await asyncio.gather(*loops, *self._pending, return_exceptions=True)

    async def _send(self, message: pb.ToWorker) -> None:
        async with self._sending:
            await self._write(message)

    # ----------------------------------------------------------------------------------------- from the worker

    async def _read(self, messages: AsyncIterator[pb.FromWorker], lease: Lease) -> None:
        async for message in messages:
            match message.WhichOneof("message"):
                case "credit":
                    if message.credit.revoke:
                        self._credit = 0
                        self._revoked.set()
                    self._credit = min(self._credit + message.credit.tasks, CREDIT_MAX)
                    self._credit_changed.set()
                case "reports":
                    await self._reporting.acquire()
                    self._start(self._report(message.reports.reports, lease))
                case "heartbeat":
                    self._start(self._extend(message.heartbeat, lease))
                case "goodbye":
                    await asyncio.gather(*self._pending)
                    await self._engine.end_lease(lease)
                    return
                case "hello":
                    raise ContractViolation("hello was sent twice: a session starts with one hello")
                case _:
                    pass  # a message of a newer worker

    def _start(self, work: Any) -> None:
        """Runs work beside reading, so that a slow report does not delay a heartbeat. A failure ends the session."""
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._pending.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._pending.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._failed.done():
            self._failed.set_exception(error)

    async def _report(self, messages: Sequence[pb.Report], lease: Lease) -> None:
        try:
            answers = await answers_to(self._engine, messages, lease.id)
        finally:
            self._reporting.release()
        await self._send(pb.ToWorker(answers=answers))

    async def _extend(self, heartbeat: pb.Heartbeat, lease: Lease) -> None:
        received_s = asyncio.get_running_loop().time()
        try:
            active = [to_id("active", task_id) for task_id in heartbeat.active]
            # The lease may have tasks that the worker does not know. Tasks pushed long ago were either named since or
            # taken from the worker, so the heartbeat of an idle worker need not look for such tasks.
            pushed_lately = received_s - self._pushed_at_s < UNKNOWN_TASK_LEASES * lease.ttl_s
            named = active if active or pushed_lately else None
            activity = Activity(heartbeat.completed, heartbeat.failed, heartbeat.draining)
            if lease.ttl_s * PART_OF_LEASE >= GATHER_S:
                await self._debounce.together()
            extension = await self._engine.parts.leases.extend(lease, named, activity, received_s=received_s)
        except Unavailable as error:
            log.warning("cannot extend the lease of %s: %s", lease.worker, error)
            return
        await self._send(pb.ToWorker(extended=wire.extended_message(heartbeat.number, extension)))

    # ----------------------------------------------------------------------------------------- to the worker

    async def _push(self, lease: Lease) -> None:
        """Claims tasks as long as there is credit. Revoked credit ends a waiting claim."""
        while True:
            if self._credit == 0:
                self._credit_changed.clear()
                await self._credit_changed.wait()
                continue
            self._revoked.clear()
            claimed = await self._claim(lease, min(self._credit, CLAIM_MAX))
            if claimed:
                self._credit = max(0, self._credit - len(claimed))
                self._pushed_at_s = asyncio.get_running_loop().time()
                await self._deliver(claimed, lease)

    async def _claim(self, lease: Lease, limit: int) -> list[Claimed]:
        claiming = asyncio.ensure_future(self._engine.claim(lease, limit, wait_s=CLAIM_WAIT_S))
        revoked = asyncio.ensure_future(self._revoked.wait())
        try:
            await asyncio.wait({claiming, revoked}, return_when=asyncio.FIRST_COMPLETED)
            if not claiming.done():
                claiming.cancel()  # the engine gives back what it claimed at this moment
            return await claiming
        except asyncio.CancelledError:
            claiming.cancel()
            if (me := asyncio.current_task()) is not None and me.cancelling():
                raise
            return []
        except Unavailable as error:
            log.warning("cannot claim for %s: %s", lease.worker, error)
            await asyncio.sleep(AFTER_ERROR_S)
            return []
        finally:
            revoked.cancel()

    async def _deliver(self, claimed: list[Claimed], lease: Lease) -> None:
        """Sends tasks. A message in flight when the session breaks may have arrived: the worker reports that when it
        resumes. Tasks that were not sent are given back."""
        waiting = list(wire.parts(claimed, lambda task: len(task.payload)))
        try:
            while waiting:
                async with self._sending:
                    part = waiting.pop(0)
                    await self._write(pb.ToWorker(tasks=pb.Tasks(tasks=[wire.task_message(task) for task in part])))
        finally:
            left = [Release(c.task.id, c.task.attempt, lease.id) for part in waiting for c in part]
            if left:
                with contextlib.suppress(Unavailable):
                    await asyncio.shield(self._engine.report(left))

    async def _send_cancels(self, lease: Lease) -> None:
        """Sends cancellations as soon as they are requested. Their grace period starts now."""
        while True:
            if await self._engine.await_notification(lease, NOTIFICATION_WAIT_S):
                with contextlib.suppress(Unavailable):
                    extension = await self._engine.extend_lease(lease, None)
                    cancels = pb.Cancels(cancels=wire.cancel_messages(extension.cancels))
                    await self._send(pb.ToWorker(cancels=cancels))


async def answers_to(
    engine: Engine, messages: Sequence[pb.Report], lease_id: UUID, refusals: Refusals | None = None
) -> pb.Answers:
    """Carries out reports. An unreadable report is refused by itself. Without `refusals`, the lease is known to belong
    to the caller."""
    reports: list[tuple[int, Report]] = []
    answers = pb.Answers()
    for message in messages:
        try:
            reports.append((message.number, wire.report_from(message, lease_id)))
        except Invalid as error:
            _refuse(answers, message.number, error)
    if refusals is not None:
        refused = await refusals([(report.task_id, lease_id) for _, report in reports])
        for number, report in reports:
            if (refusal := refused.get((report.task_id, lease_id))) is not None:
                _refuse(answers, number, refusal)
        reports = [(number, report) for number, report in reports if (report.task_id, lease_id) not in refused]
    for (number, _), outcome in zip(reports, await _outcomes(engine, [r for _, r in reports]), strict=True):
        if isinstance(outcome, WindlassError):
            _refuse(answers, number, outcome)
        else:
            answers.accepted.append(number)
    return answers


async def _outcomes(engine: Engine, reports: list[Report]) -> Sequence[object]:
    """The engine validates a whole group before it starts. If one report is invalid, each is sent by itself."""
    try:
        return await engine.report(reports)
    except Invalid as error:
        if len(reports) == 1:
            return [error]
        return [outcome for report in reports for outcome in await _outcomes(engine, [report])]
    except Unavailable as error:
        return [error] * len(reports)


def _refuse(answers: pb.Answers, number: int, error: WindlassError) -> None:
    answers.refused.append(pb.Refusal(number=number, code=known_code(error), message=public_message(error)))
