"""A remote server as a client and as a source of work: what an app and a worker need, over one gRPC channel.

Needs no database driver and no credentials but an API key. Calls are in `wire.calls`, sessions in `session`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit
from uuid import UUID

import grpc
import msgspec
from msgspec.structs import replace

from windlass.contracts.session.client.session import RemoteSession
from windlass.contracts.session.wire import calls
from windlass.contracts.session.wire import session_pb2 as pb
from windlass.contracts.session.wire.calls import Call
from windlass.contracts.session.wire.messages import report_message
from windlass.contracts.session.wire.methods import CALL, REPORT_LATE
from windlass.core.command import Claimed, Complete, Fail, Report
from windlass.core.failure import Category, Failure
from windlass.core.lease import IDLE, Activity, Extension, Lease, Reach
from windlass.core.progress import Progress, ProgressReport
from windlass.core.retry import Policy
from windlass.core.schedule import ScheduleSpec
from windlass.core.step import Step
from windlass.core.step_command import StepCommand
from windlass.core.submission import Submission, check_submission
from windlass.core.task import Task
from windlass.core.validation import LARGE_MAX_BYTES, PAYLOAD_MAX_BYTES, check_seconds
from windlass.errors import Invalid, InvalidState, NotFound, Unavailable, WindlassError
from windlass.net.grpc_channel import error_of, open_channel
from windlass.net.problem import error_from

T = TypeVar("T")
CALL_S = 30.0
WAIT_S = 20.0
POLL_LEAST_S = 0.05
AFTER_ERROR_S = 0.2


@dataclass(frozen=True, slots=True)
class TaskView:
    """A task, as `wait` returns it."""

    task: Task


class Remote:
    """Made by `connect`. Has the same methods as an engine in this process."""

    def __init__(self, channel: Any, server: str, api_key: str) -> None:
        self._channel, self._server, self._api_key = channel, server, api_key
        self._call = channel.unary_unary(CALL, pb.CallRequest.SerializeToString, pb.CallReply.FromString)
        self._report_late = channel.unary_unary(REPORT_LATE, pb.LateReports.SerializeToString, pb.Answers.FromString)
        self._metadata = (("authorization", f"Bearer {api_key}"),)
        self._sessions: dict[UUID, RemoteSession] = {}
        self._result_max_bytes = LARGE_MAX_BYTES

    async def close(self) -> None:
        for session in list(self._sessions.values()):
            await session.close()
        await self._channel.close()

    def reach(self) -> Reach:
        """How the heartbeat process of a worker reaches the same server."""
        return Reach(
            "windlass.contracts.session.client.lease_extender", {"server": self._server, "api_key": self._api_key}
        )

    # ----------------------------------------------------------------------------------------- as a client

    async def submit(self, submission: Submission) -> UUID:
        return (await self.submit_many([submission]))[0]

    async def submit_many(self, submissions: Sequence[Submission]) -> list[UUID]:
        for submission in submissions:
            check_submission(submission, LARGE_MAX_BYTES)
        return await self._ask(calls.SubmitMany(list(submissions)))

    async def submit_batch(self, submission: Submission, payloads: Sequence[bytes]) -> list[UUID]:
        return await self.submit_many([replace(submission, payload=payload) for payload in payloads])

    async def wait(self, task_id: UUID, timeout_s: float) -> TaskView:
        """Wait for the end of a task by long polls, up to `timeout_s`."""
        check_seconds("timeout_s", timeout_s)
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        while True:
            left_s = max(0.0, deadline_s - asyncio.get_running_loop().time())
            try:
                task = await self._ask(calls.Wait(task_id, min(left_s, WAIT_S)))
            except Unavailable:
                if left_s <= AFTER_ERROR_S:
                    raise
                await asyncio.sleep(AFTER_ERROR_S)
                continue
            if task.terminal or left_s <= POLL_LEAST_S:
                return TaskView(task)

    async def cancel(self, task_id: UUID, reason: str = "", *, force: bool = False) -> Task:
        return await self._ask(calls.Cancel(task_id, reason, force))

    async def cancel_run(self, run_id: UUID, reason: str = "") -> int:
        return await self._ask(calls.CancelRun(run_id, reason))

    async def results(self, ids: Sequence[UUID], namespace: str | None = None) -> dict[UUID, bytes]:
        return await self._ask(calls.GetResults(list(ids), namespace))

    async def progress(self, task_id: UUID) -> Progress | None:
        return await self._ask(calls.GetProgress(task_id))

    async def checkpoint(self, task_id: UUID) -> bytes | None:
        return await self._ask(calls.GetCheckpoint(task_id))

    async def note(self, notes: Sequence[ProgressReport]) -> list[WindlassError | None]:
        answers = await self._ask(calls.WriteNotes(list(notes)))
        return [None if problem is None else error_from(problem.code, problem.message) for problem in answers]

    async def load_steps(self, task_id: UUID) -> list[Step]:
        return await self._ask(calls.LoadSteps(task_id))

    async def record_step(self, command: StepCommand) -> Step:
        record = msgspec.Raw(msgspec.msgpack.encode(command))
        return await self._ask(calls.RecordStep(type(command).__name__, record))

    async def signal(
        self, task_id: UUID, name: str, payload: bytes = b"null", *, signal_id: UUID | None = None
    ) -> Task:
        return await self._ask(calls.SendSignal(task_id, name, payload, signal_id))

    async def declare_schedules(
        self, app: str, specs: Sequence[ScheduleSpec], *, namespace: str = "default", anew: bool = True
    ) -> int:
        return await self._ask(calls.DeclareSchedules(app, list(specs), namespace, anew))

    async def declare_kinds(
        self, app: str, policies: Mapping[str, Policy | None], *, namespace: str = "default"
    ) -> None:
        await self._ask(calls.DeclareKinds(app, dict(policies), namespace))

    async def _ask(self, call: Call[T]) -> T:
        request = pb.CallRequest(name=type(call).__name__, body=msgspec.msgpack.encode(call))
        reply = await self._invoke(self._call, request)
        answer: T = msgspec.msgpack.decode(reply.body, type=call.answer())
        return answer

    async def _invoke(self, method: Any, request: Any) -> Any:
        try:
            return await method(request, metadata=self._metadata, timeout=CALL_S)
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from None
        except grpc.aio.UsageError:
            raise InvalidState("the connection to the server was closed") from None

    # ----------------------------------------------------------------------------------------- as a source of work

    async def open_lease(self, worker: str, queues: Sequence[str], *, kinds: Sequence[str] | None = None,
                         labels: Sequence[str] = (), namespace: str = "default", ttl_s: float = 30.0,
                         host: str = "", pid: int = 0, version: str = "",
                         concurrency: int = 0) -> Lease:  # fmt: skip
        hello = pb.Hello(
            worker=worker, namespace=namespace, queues=queues, kinds=kinds or (), every_kind=kinds is None,
            labels=labels, lease_ttl_s=ttl_s, host=host, pid=pid, version=version, concurrency=concurrency,
        )  # fmt: skip
        session = await RemoteSession.open(self._channel, self._metadata, hello)
        self._sessions[session.lease.id] = session
        return session.lease

    async def claim(self, lease: Lease, limit: int = 1, *, wait_s: float = 0.0) -> list[Claimed]:
        return await self._session(lease).claim(limit, wait_s)

    async def extend_lease(
        self, lease: Lease, active: Sequence[UUID] | None = None, activity: Activity = IDLE
    ) -> Extension:
        return await self._session(lease).extend(active or (), activity)

    async def await_notification(self, lease: Lease, timeout_s: float) -> bool:
        return await self._session(lease).await_notification(timeout_s)

    async def end_lease(self, lease: Lease) -> None:
        session = self._sessions.pop(lease.id, None)
        if session is not None:
            await session.end()

    async def report(self, reports: Sequence[Report]) -> list[WindlassError | None]:
        """Send each report by the session of its lease. If that is over, send it by a call: the server still accepts
        the report of a current attempt."""
        reports = [self._limit_result(report) for report in reports]
        answers: dict[int, WindlassError | None] = {}
        for lease_id in {report.lease_id for report in reports}:
            places = [place for place, report in enumerate(reports) if report.lease_id == lease_id]
            batch = [reports[place] for place in places]
            session = self._sessions.get(lease_id)
            if session is None or session.over:
                outcomes = await self._report_after(lease_id, batch)
            else:
                outcomes = await session.report(batch)
            answers |= dict(zip(places, outcomes, strict=True))
        return [answers[place] for place in range(len(reports))]

    def _limit_result(self, report: Report) -> Report:
        """A failure in place of a result that is too long: the server would end the stream at such a message."""
        session = self._sessions.get(report.lease_id)
        self._result_max_bytes = self._result_max_bytes if session is None else session.result_max_bytes
        most = self._result_max_bytes
        if not isinstance(report, Complete) or report.result is None or len(report.result) <= most:
            return report
        setting = "WINDLASS_BLOBS" if most == PAYLOAD_MAX_BYTES else "WINDLASS_PAYLOAD_MAX_BYTES"
        problem = f"result: has {len(report.result)} bytes, the server accepts {most}; set {setting} to accept more"
        failure = Failure(Category.CONFIGURATION, problem, "RESULT_TOO_LARGE", retryable=False)
        return Fail(report.task_id, report.attempt, report.lease_id, failure)

    async def _report_after(self, lease_id: UUID, reports: Sequence[Report]) -> list[WindlassError | None]:
        messages = [report_message(number, report) for number, report in enumerate(reports)]
        answers = await self._invoke(self._report_late, pb.LateReports(lease_id=lease_id.bytes, reports=messages))
        refused = {one.number: error_from(one.code, one.message) for one in answers.refused}
        return [refused.get(number) for number in range(len(reports))]

    def _session(self, lease: Lease) -> RemoteSession:
        if lease.id not in self._sessions:
            raise NotFound("this client has no session of this lease", lease_id=lease.id)
        return self._sessions[lease.id]


@asynccontextmanager
async def connect(server: str, api_key: str) -> AsyncIterator[Remote]:
    """A server by its URL: `http://HOST:PORT`, or `https://` with TLS. Nothing is sent before the first call."""
    for field, value in (("server", server), ("api_key", api_key)):
        if not isinstance(value, str) or not value.isprintable() or not value.isascii() or not value:
            raise Invalid("must be text without spaces or control characters", field=field)
    check_server(server)
    remote = Remote(open_channel(server), server, api_key)
    try:
        yield remote
    finally:
        await remote.close()


def check_server(server: str) -> None:
    try:
        parts = urlsplit(server)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port is not None:
            return
    except ValueError:
        pass
    raise Invalid("must be like http://HOST:PORT or https://HOST:PORT", field="server")
