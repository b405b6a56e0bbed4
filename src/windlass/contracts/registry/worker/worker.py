"""A worker of the registry contract: registers, polls, executes workflows, sends heartbeats, drains and deregisters.

Heartbeats continue until the last run has ended, also while the worker drains. They name the active runs, so that a
run whose poll response was lost is given to another worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc

from windlass.contracts.registry.wire import kagzi_pb2 as pb
from windlass.contracts.registry.wire.service import ACTIVE, ATTEMPT, CONTEXT, LEASE_TOKEN, WORKER_ID
from windlass.contracts.registry.worker.call import FIRST_RETRY_S, MAX_RETRY_S, Connection, Refused
from windlass.contracts.registry.worker.context import ExecutionEnded, WorkflowContext
from windlass.contracts.registry.worker.options import detail_of
from windlass.contracts.registry.worker.value import read_value, write_value
from windlass.core.text import line_of
from windlass.core.validation import check_able, check_count, check_name, check_seconds, check_text
from windlass.errors import Conflict, Invalid, InvalidState
from windlass.net.backoff import Backoff
from windlass.net.grpc_channel import error_of

log = logging.getLogger("windlass.contracts.registry.worker.worker")

Workflow = Callable[[WorkflowContext, Any], Awaitable[Any]]

POLL_S = 65.0  # a little longer than a server waits
POLLS_MAX = 4
LABEL_MAX = 200


class Worker:
    """Runs the registered workflows, at most `max_concurrent` at the same time. `address` is the gRPC port of the
    server. Runs that have not ended `drain_timeout_s` after a shutdown are given back."""

    def __init__(
        self,
        address: str,
        queue: str,
        *,
        namespace: str = "default",
        max_concurrent: int = 100,
        hostname: str | None = None,
        version: str = "",
        labels: Mapping[str, str] | None = None,
        api_key: str | None = None,
        drain_timeout_s: float | None = None,
    ) -> None:
        check_name("queue", queue)
        check_name("namespace", namespace)
        check_count("max_concurrent", max_concurrent, least=1, most=100_000)
        for field, text in (("hostname", hostname), ("version", version)):
            if text:
                check_name(field, text)
        for key, value in (labels or {}).items():
            check_name("labels", key)
            check_text("labels", value, LABEL_MAX)
        if drain_timeout_s is not None:
            check_seconds("drain_timeout_s", drain_timeout_s)
        self._connection = Connection(address, api_key)
        self._queue, self._namespace, self._version = queue, namespace, version
        self._hostname, self._labels = hostname or socket.gethostname(), dict(labels or {})
        self._max_concurrent, self._drain_timeout_s = max_concurrent, drain_timeout_s
        self._workflows: dict[str, Workflow] = {}
        self._worker_id: str | None = None
        self._token = ""
        self._every_s = 10.0
        self._runs: dict[asyncio.Task[None], str] = {}
        self._completed, self._failed = 0, 0
        self._slots, self._registering = asyncio.Semaphore(max_concurrent), asyncio.Lock()
        self._stopping, self._stopping_now = asyncio.Event(), asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def register(self, name: str, workflow: Workflow | None = None) -> Any:
        """Registers `workflow(context, input)`, an async function, for a workflow type. Without it, returns a
        decorator. Call it before `run`."""
        check_name("name", name)
        if workflow is None:
            return lambda function: self.register(name, function)
        check_able("workflow", workflow, "__call__")
        if not inspect.iscoroutinefunction(workflow):
            raise Invalid("must be an async function; put blocking work into steps", field="workflow")
        if self._loop is not None:
            raise InvalidState("the worker is already running: register workflows before run()")
        if name in self._workflows:
            raise Conflict(f"workflow {name} is already registered", name=name)
        self._workflows[name] = workflow
        return workflow

    @property
    def worker_id(self) -> str | None:
        """The id from the server; None while the worker is not registered."""
        return self._worker_id

    @property
    def is_registered(self) -> bool:
        return self._worker_id is not None

    @property
    def active_count(self) -> int:
        """Number of active runs."""
        return len(self._runs)

    def shutdown(self) -> None:
        """Stops polling, finishes the active runs, and ends. A second call ends at once. Thread-safe."""
        loop = self._loop
        if loop is None or loop.is_closed():
            self._stop()
        else:
            loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        if self._stopping.is_set():
            self._stopping_now.set()
        self._stopping.set()

    # ----------------------------------------------------------------------------------------- lifecycle

    async def run(self, *, handle_signals: bool = True) -> None:
        """Registers, works until `shutdown`, drains and deregisters. SIGTERM and SIGINT shut it down."""
        if not self._workflows:
            raise InvalidState("no workflow is registered: call register() before run()")
        self._loop = asyncio.get_running_loop()
        with _signals(self._loop, self._stop) if handle_signals else contextlib.nullcontext():
            try:
                if await self._until_stopping(self._register()):
                    await self._work()
            finally:
                self._worker_id, self._loop = None, None
                await self._connection.close()

    async def _until_stopping(self, work: Any) -> bool:
        """Returns whether the work ended before the shutdown."""
        task: asyncio.Future[Any] = asyncio.ensure_future(work)
        stop = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                return False
            task.result()
            return True
        finally:
            await _cancel(task, stop)

    async def _register(self) -> None:
        request = pb.RegisterWorkerRequest(
            namespace_id=self._namespace, task_queue=self._queue, workflow_types=list(self._workflows),
            hostname=self._hostname, pid=os.getpid(), version=self._version, max_concurrent=self._max_concurrent,
            labels=self._labels,
        )  # fmt: skip
        try:
            answer, metadata = await self._connection.call_with_metadata("RegisterWorker", request)
        except Refused as refused:
            raise error_of(refused.error) from None
        self._worker_id, self._token = answer.worker_id, str(metadata.get(LEASE_TOKEN, ""))
        self._every_s = max(1.0, float(answer.heartbeat_interval_secs))
        log.info("worker %s registered for the queue %s", self._worker_id, self._queue)

    async def _work(self) -> None:
        heartbeats = asyncio.create_task(self._heartbeat_loop())
        polls = [asyncio.create_task(self._poll_loop()) for _ in range(min(POLLS_MAX, self._max_concurrent))]
        try:
            await self._until_stopping(asyncio.wait([heartbeats, *polls], return_when=asyncio.FIRST_EXCEPTION))
            await _cancel(*polls)
            await self._drain()
        finally:
            await _cancel(*polls, heartbeats, *self._runs)
            await self._deregister()
        for loop in (heartbeats, *polls):
            if not loop.cancelled():
                loop.result()

    async def _drain(self) -> None:
        if self._runs:
            log.info("draining: %d active runs", len(self._runs))
            now = asyncio.ensure_future(self._stopping_now.wait())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._drain_timeout_s):
                    while self._runs and not now.done():
                        await asyncio.wait({now, *self._runs}, return_when=asyncio.FIRST_COMPLETED)
            await _cancel(now)

    async def _deregister(self) -> None:
        """Sends the last counts with a heartbeat and deregisters. An unreachable server notices by itself."""
        with contextlib.suppress(Refused, TimeoutError):
            async with asyncio.timeout(self._every_s):
                await self._heartbeat()
                request = pb.DeregisterWorkerRequest(worker_id=self._worker_id or "")
                await self._connection.call("DeregisterWorker", request)
                log.info("worker %s deregistered", self._worker_id)

    # ----------------------------------------------------------------------------------------- heartbeats

    async def _heartbeat_loop(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            await self._heartbeat_or_register()

    async def _heartbeat_or_register(self) -> None:
        """Sends a heartbeat. A worker that the server has given up registers again, once; its runs can still report."""
        async with self._registering:
            try:
                answer = await self._heartbeat()
            except Refused as refused:
                if refused.status is not grpc.StatusCode.NOT_FOUND:
                    log.warning("heartbeat failed: %s", refused)
                    return
                answer = pb.WorkerHeartbeatResponse(accepted=False)
            if self._stopping.is_set():
                return
            if answer.should_drain:
                log.info("the server requested a drain")
                self._stop()
            elif not answer.accepted:
                log.warning("the server does not know worker %s any more: registering again", self._worker_id)
                await self._register()

    async def _heartbeat(self) -> pb.WorkerHeartbeatResponse:
        completed, failed = self._completed, self._failed
        request = pb.WorkerHeartbeatRequest(
            worker_id=self._worker_id or "", active_count=len(self._runs), completed_delta=completed,
            failed_delta=failed,
        )  # fmt: skip
        token = ((LEASE_TOKEN, self._token),) if self._token else ()
        answer: pb.WorkerHeartbeatResponse = await self._connection.call(
            "WorkerHeartbeat", request, (*token, (ACTIVE, ",".join(self._runs.values()))), timeout_s=self._every_s
        )
        self._completed, self._failed = self._completed - completed, self._failed - failed
        return answer

    # ----------------------------------------------------------------------------------------- runs

    async def _poll_loop(self) -> None:
        """Polls for runs, with backoff while the server is away."""
        backoff, failing = Backoff(FIRST_RETRY_S, MAX_RETRY_S), False
        while True:
            await self._slots.acquire()
            started = False
            try:
                started = await self._poll()
                failing = False
                backoff.reset()
            except Refused as refused:
                if refused.status is grpc.StatusCode.FAILED_PRECONDITION:  # the worker drains, or the server gave it up
                    await self._heartbeat_or_register()
                elif not failing and refused.status is not grpc.StatusCode.DEADLINE_EXCEEDED:
                    log.warning("poll failed, retrying: %s", refused)
                failing = True
                await asyncio.sleep(backoff.next_s())
            finally:
                if not started:
                    self._slots.release()

    async def _poll(self) -> bool:
        """Returns whether a run was received. Raises Refused."""
        request = pb.PollActivityRequest(
            worker_id=self._worker_id or "", task_queue=self._queue, namespace_id=self._namespace,
            supported_workflow_types=list(self._workflows),
        )  # fmt: skip
        polled, metadata = await self._connection.once("PollActivity", request, timeout_s=POLL_S)
        if not polled.run_id:
            return False
        task = asyncio.create_task(self._execute(polled, metadata))
        self._runs[task] = polled.run_id
        task.add_done_callback(self._forget)
        return True

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._runs.pop(task, None)
        self._slots.release()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a run ended without a report: %s", line_of(error))

    async def _execute(self, polled: pb.PollActivityResponse, metadata: dict[str, Any]) -> None:
        pairs = ((LEASE_TOKEN, metadata.get(LEASE_TOKEN)), (WORKER_ID, metadata.get(WORKER_ID)))
        fence = tuple((key, str(value)) for key, value in pairs if value)
        context = WorkflowContext(
            self._connection, polled.run_id, polled.workflow_type, int(metadata.get(ATTEMPT, 0) or 0),
            read_value("context", metadata.get(CONTEXT, b"")), fence,
        )  # fmt: skip
        try:
            try:
                value = read_value("input", polled.workflow_input)
                output = write_value("result", await self._workflows[polled.workflow_type](context, value))
            except (Exception, SystemExit) as error:  # a failure of the workflow is reported
                detail = detail_of(error)
                log.warning("run %s (%s) failed: %s", context.run_id, context.workflow_type, detail.message)
                await context.call("FailWorkflow", pb.FailWorkflowRequest(run_id=context.run_id, error=detail))
                self._failed += 1
            else:
                done = pb.CompleteWorkflowRequest(run_id=context.run_id, output=output)
                await context.call("CompleteWorkflow", done)
                self._completed += 1
        except ExecutionEnded as ended:
            if str(ended):
                log.info("run %s is no longer leased to this worker: %s", context.run_id, ended)


async def _cancel(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.contextmanager
def _signals(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> Any:
    """Handles SIGTERM and SIGINT, if this is the main thread and the system supports it."""
    numbers = (signal.SIGTERM, signal.SIGINT) if threading.current_thread() is threading.main_thread() else ()
    handled = []
    for number in numbers:
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, stop)
            handled.append(number)
    try:
        yield
    finally:
        for number in handled:
            loop.remove_signal_handler(number)
