"""A server far away, as a client and as a source of work: what an app and a worker need, over one gRPC channel.

Needs no database driver and no credentials but an API key. Calls are in `wire.call`, sessions in `remote_session`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import grpc
import msgspec
from msgspec.structs import replace

from windlass.core.check import LARGE_MAX_BYTES, PAYLOAD_MAX_BYTES, check_seconds
from windlass.core.command import Claimed, Complete, Fail, Report
from windlass.core.error import Invalid, InvalidState, NotFound, Unavailable, WindlassError
from windlass.core.failure import Category, Failure
from windlass.core.lease import IDLE, Activity, Extension, Lease, Reach
from windlass.core.note import Note, Progress
from windlass.core.retry import Policy
from windlass.core.schedule import ScheduleSpec
from windlass.core.step import Step
from windlass.core.step_command import StepCommand
from windlass.core.submission import Submission, check_submission
from windlass.core.task import Task
from windlass.sdk.remote_session import RemoteSession, Wanted
from windlass.wire import call as calls
from windlass.wire.call import Call
from windlass.wire.channel import CALL, REPORT_LATE, error_of, open_channel
from windlass.wire.problem import error_from
from windlass.wire.protos import session_pb2 as pb
from windlass.wire.session import report_message

CALL_S = 30.0
WAIT_S = 20.0
POLL_LEAST_S = 0.05
AFTER_ERROR_S = 0.2


@dataclass(frozen=True, slots=True)
class Seen:
    """A task as a waiting caller sees it."""

    task: Task


class Remote:
    """Made by `connect`. The same calls as an engine in this process has."""

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
        return Reach("windlass.wire.keeper", {"server": self._server, "api_key": self._api_key})

    # ----------------------------------------------------------------------------------------- as a client

    async def submit(self, submission: Submission) -> UUID:
        return (await self.submit_many([submission]))[0]

    async def submit_many(self, submissions: Sequence[Submission]) -> list[UUID]:
        for submission in submissions:
            check_submission(submission, LARGE_MAX_BYTES)
        ids: list[UUID] = await self._ask(calls.SubmitMany(list(submissions)))
        return ids

    async def submit_batch(self, submission: Submission, payloads: Sequence[bytes]) -> list[UUID]:
        return await self.submit_many([replace(submission, payload=payload) for payload in payloads])

    async def wait(self, task_id: UUID, timeout_s: float) -> Seen:
        """Asked again and again for as long as it takes; each time the server answers when the task has ended."""
        check_seconds("timeout_s", timeout_s)
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        while True:
            left_s = max(0.0, deadline_s - asyncio.get_running_loop().time())
            try:
                task: Task = await self._ask(calls.Wait(task_id, min(left_s, WAIT_S)))
            except Unavailable:
                if left_s <= AFTER_ERROR_S:
                    raise
                await asyncio.sleep(AFTER_ERROR_S)
                continue
            if task.terminal or left_s <= POLL_LEAST_S:
                return Seen(task)

    async def cancel(self, task_id: UUID, reason: str = "", *, force: bool = False) -> Task:
        task: Task = await self._ask(calls.Cancel(task_id, reason, force))
        return task

    async def cancel_run(self, run_id: UUID, reason: str = "") -> int:
        asked: int = await self._ask(calls.CancelRun(run_id, reason))
        return asked

    async def results(self, ids: Sequence[UUID], namespace: str | None = None) -> dict[UUID, bytes]:
        results: dict[UUID, bytes] = await self._ask(calls.GetResults(list(ids), namespace))
        return results

    async def progress(self, task_id: UUID) -> Progress | None:
        progress: Progress | None = await self._ask(calls.GetProgress(task_id))
        return progress

    async def checkpoint(self, task_id: UUID) -> bytes | None:
        left: bytes | None = await self._ask(calls.GetCheckpoint(task_id))
        return left

    async def note(self, notes: Sequence[Note]) -> list[WindlassError | None]:
        answers: list[calls.Problem | None] = await self._ask(calls.WriteNotes(list(notes)))
        return [None if said is None else error_from(said.code, said.message) for said in answers]

    async def load_steps(self, task_id: UUID) -> list[Step]:
        steps: list[Step] = await self._ask(calls.LoadSteps(task_id))
        return steps

    async def record_step(self, said: StepCommand) -> Step:
        record = msgspec.Raw(msgspec.msgpack.encode(said))
        step: Step = await self._ask(calls.RecordStep(type(said).__name__, record))
        return step

    async def signal(
        self, task_id: UUID, name: str, payload: bytes = b"null", *, signal_id: UUID | None = None
    ) -> Task:
        task: Task = await self._ask(calls.SendSignal(task_id, name, payload, signal_id))
        return task

    async def declare_schedules(
        self, app: str, specs: Sequence[ScheduleSpec], *, namespace: str = "default", anew: bool = True
    ) -> int:
        left: int = await self._ask(calls.DeclareSchedules(app, list(specs), namespace, anew))
        return left

    async def declare_kinds(
        self, app: str, policies: Mapping[str, Policy | None], *, namespace: str = "default"
    ) -> None:
        await self._ask(calls.DeclareKinds(app, dict(policies), namespace))

    async def _ask(self, asked: Call) -> Any:
        request = pb.CallRequest(name=type(asked).__name__, body=msgspec.msgpack.encode(asked))
        try:
            reply = await self._call(request, metadata=self._metadata, timeout=CALL_S)
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from None
        except grpc.aio.UsageError:
            raise InvalidState("the connection to the server was closed") from None
        return msgspec.msgpack.decode(reply.body, type=asked.answer)

    # ----------------------------------------------------------------------------------------- as a source of work

    async def open_lease(self, worker: str, queues: Sequence[str], *, kinds: Sequence[str] | None = None,
                         labels: Sequence[str] = (), namespace: str = "default", ttl_s: float = 30.0,
                         host: str = "", pid: int = 0, version: str = "",
                         concurrency: int = 0) -> Lease:  # fmt: skip
        wanted = Wanted(worker, tuple(queues), None if kinds is None else tuple(kinds), tuple(labels), namespace,
                        ttl_s, host, pid, version, concurrency)  # fmt: skip
        session = await RemoteSession.open(self._channel, self._metadata, wanted)
        self._sessions[session.lease.id] = session
        return session.lease

    async def claim(self, lease: Lease, limit: int = 1, *, wait_s: float = 0.0) -> list[Claimed]:
        return await self._session(lease).claim(limit, wait_s)

    async def extend_lease(
        self, lease: Lease, active: Sequence[UUID] | None = None, activity: Activity = IDLE
    ) -> Extension:
        return await self._session(lease).extend(active or (), activity)

    async def await_news(self, lease: Lease, timeout_s: float) -> bool:
        return await self._session(lease).await_news(timeout_s)

    async def end_lease(self, lease: Lease) -> None:
        session = self._sessions.pop(lease.id, None)
        if session is not None:
            await session.end()

    async def report(self, reports: Sequence[Report]) -> list[WindlassError | None]:
        """By the session they belong to; when that is over, by themselves: the current attempt may still be heard."""
        reports = [self._fitting(report) for report in reports]
        answers: dict[int, WindlassError | None] = {}
        for lease_id in {report.lease_id for report in reports}:
            mine = [(place, report) for place, report in enumerate(reports) if report.lease_id == lease_id]
            session = self._sessions.get(lease_id)
            said = [report for _, report in mine]
            outcomes = await (self._late(lease_id, said) if session is None or session.over else session.report(said))
            answers |= {place: outcome for (place, _), outcome in zip(mine, outcomes, strict=True)}
        return [answers[place] for place in range(len(reports))]

    def _fitting(self, report: Report) -> Report:
        """The server would break off at a message that is too long: its attempt has failed, and is told so instead."""
        session = self._sessions.get(report.lease_id)
        self._result_max_bytes = self._result_max_bytes if session is None else session.result_max_bytes
        most = self._result_max_bytes
        if not isinstance(report, Complete) or report.result is None or len(report.result) <= most:
            return report
        setting = "WINDLASS_BLOBS" if most == PAYLOAD_MAX_BYTES else "WINDLASS_PAYLOAD_MAX_BYTES"
        problem = f"result: has {len(report.result)} bytes, the server takes {most}; with {setting} it takes more"
        failure = Failure(Category.CONFIGURATION, problem, "RESULT_TOO_LARGE", retryable=False)
        return Fail(report.task_id, report.attempt, report.lease_id, failure)

    async def _late(self, lease_id: UUID, reports: Sequence[Report]) -> list[WindlassError | None]:
        messages = [report_message(number, report) for number, report in enumerate(reports)]
        request = pb.LateReports(lease_id=lease_id.bytes, reports=messages)
        try:
            answers = await self._report_late(request, metadata=self._metadata, timeout=CALL_S)
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from None
        refused = {one.number: error_from(one.code, one.message) for one in answers.refused}
        return [refused.get(number) for number in range(len(reports))]

    def _session(self, lease: Lease) -> RemoteSession:
        if lease.id not in self._sessions:
            raise NotFound("there is no session of this lease here", lease_id=lease.id)
        return self._sessions[lease.id]


@asynccontextmanager
async def connect(server: str, api_key: str) -> AsyncIterator[Remote]:
    """A server by its URL: `http://HOST:PORT`, or `https://` with TLS. Nothing is sent before the first call."""
    for field, value in (("server", server), ("api_key", api_key)):
        if not isinstance(value, str) or not value.isprintable() or not value.isascii() or not value:
            raise Invalid("must be text without spaces or control characters", field=field)
    remote = Remote(open_channel(checked_server(server)), server, api_key)
    try:
        yield remote
    finally:
        await remote.close()


def checked_server(server: str) -> str:
    try:
        parts = urlsplit(server)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port is not None:
            return server
    except ValueError:
        pass
    raise Invalid("must be like http://HOST:PORT or https://HOST:PORT", field="server")
