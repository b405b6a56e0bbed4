"""A worker of the registry contract: registers, polls, executes workflows, beats its heart, drains, and goes.

Heartbeats go on until the last run has ended, also while the worker drains. They name what runs, so that a run whose
poll was answered to nobody is given to others.
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

from windlass.core.check import check_able, check_count, check_name, check_seconds, check_text
from windlass.core.error import Conflict, Invalid, InvalidState
from windlass.core.text import line_of
from windlass.registry.call import (
    ACTIVE,
    ATTEMPT,
    CONTEXT,
    FIRST_PAUSE_S,
    LEASE_TOKEN,
    LONGEST_PAUSE_S,
    WORKER_ID,
    Line,
    Refused,
)
from windlass.registry.context import Over, WorkflowContext
from windlass.registry.option import detail_of
from windlass.registry.value import read_value, write_value
from windlass.wire.channel import error_of
from windlass.wire.protos import kagzi_pb2 as pb

log = logging.getLogger("windlass.registry.worker")

Workflow = Callable[[WorkflowContext, Any], Awaitable[Any]]

POLL_S = 65.0  # somewhat longer than a server waits
POLLS_MAX = 4
LABEL_MAX = 200


class Worker:
    """Runs the workflows that are registered with it, up to `max_concurrent` side by side. `address` is that of the
    server's gRPC port. After `drain_timeout_s` of a shutdown, what still runs is given back."""

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
        self._line = Line(address, api_key)
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
        """Let this workflow type be run by `workflow(context, input)`, an async function. Without one it is a
        decorator. Before `run`."""
        check_name("name", name)
        if workflow is None:
            return lambda function: self.register(name, function)
        check_able("workflow", workflow, "__call__")
        if not inspect.iscoroutinefunction(workflow):
            raise Invalid("must be an async function; put blocking work into steps", field="workflow")
        if self._loop is not None:
            raise InvalidState("the worker runs already: register workflows before")
        if name in self._workflows:
            raise Conflict(f"there is a workflow {name} already", name=name)
        self._workflows[name] = workflow
        return workflow

    @property
    def worker_id(self) -> str | None:
        """The id that the server gave; None before it has registered."""
        return self._worker_id

    @property
    def is_registered(self) -> bool:
        return self._worker_id is not None

    @property
    def active_count(self) -> int:
        """How many runs are executed now."""
        return len(self._runs)

    def shutdown(self) -> None:
        """Take no more runs, finish those that are under way, and end; called again, end at once. From any thread."""
        loop = self._loop
        if loop is None or loop.is_closed():
            self._stop()
        else:
            loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        if self._stopping.is_set():
            self._stopping_now.set()
        self._stopping.set()

    # ----------------------------------------------------------------------------------------- life

    async def run(self, *, handle_signals: bool = True) -> None:
        """Register, work until `shutdown`, drain, deregister. SIGTERM and SIGINT shut it down."""
        if not self._workflows:
            raise InvalidState("no workflow is registered: call register() before run()")
        self._loop = asyncio.get_running_loop()
        with _signals(self._loop, self._stop) if handle_signals else contextlib.nullcontext():
            try:
                if await self._until_stopping(self._register()):
                    await self._work()
            finally:
                self._worker_id, self._loop = None, None
                await self._line.close()

    async def _until_stopping(self, work: Any) -> bool:
        """Whether it came to its end before the shutdown did."""
        task: asyncio.Future[Any] = asyncio.ensure_future(work)
        stop = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                return False
            task.result()
            return True
        finally:
            await _ended(task, stop)

    async def _register(self) -> None:
        asked = pb.RegisterWorkerRequest(
            namespace_id=self._namespace, task_queue=self._queue, workflow_types=list(self._workflows),
            hostname=self._hostname, pid=os.getpid(), version=self._version, max_concurrent=self._max_concurrent,
            labels=self._labels,
        )  # fmt: skip
        try:
            answer, beside = await self._line.ask("RegisterWorker", asked)
        except Refused as refused:
            raise error_of(refused.error) from None
        self._worker_id, self._token = answer.worker_id, str(beside.get(LEASE_TOKEN, ""))
        self._every_s = max(1.0, float(answer.heartbeat_interval_secs))
        log.info("worker %s registered for the queue %s", self._worker_id, self._queue)

    async def _work(self) -> None:
        beats = asyncio.create_task(self._beat_loop())
        polls = [asyncio.create_task(self._poll_loop()) for _ in range(min(POLLS_MAX, self._max_concurrent))]
        try:
            await self._until_stopping(asyncio.wait([beats, *polls], return_when=asyncio.FIRST_EXCEPTION))
            await _ended(*polls)
            await self._drain()
        finally:
            await _ended(*polls, beats, *self._runs)
            await self._deregister()
        for loop in (beats, *polls):
            if not loop.cancelled():
                loop.result()

    async def _drain(self) -> None:
        if self._runs:
            log.info("draining: %d runs are under way", len(self._runs))
            now = asyncio.ensure_future(self._stopping_now.wait())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._drain_timeout_s):
                    while self._runs and not now.done():
                        await asyncio.wait({now, *self._runs}, return_when=asyncio.FIRST_COMPLETED)
            await _ended(now)

    async def _deregister(self) -> None:
        """The last counts go with a heartbeat, the rest is recovered now; a server that is away finds out by itself."""
        with contextlib.suppress(Refused, TimeoutError):
            async with asyncio.timeout(self._every_s):
                await self._beat()
                await self._line.call("DeregisterWorker", pb.DeregisterWorkerRequest(worker_id=self._worker_id or ""))
                log.info("worker %s deregistered", self._worker_id)

    # ----------------------------------------------------------------------------------------- signs of life

    async def _beat_loop(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            await self._beat_or_register()

    async def _beat_or_register(self) -> None:
        """Who was silent for too long is gone, and begins again, once; what it runs may still be reported."""
        async with self._registering:
            await self._beat_or_register_alone()

    async def _beat_or_register_alone(self) -> None:
        try:
            answer = await self._beat()
        except Refused as refused:
            if refused.status is not grpc.StatusCode.NOT_FOUND:
                log.warning("no heartbeat: %s", refused)
                return
            answer = pb.WorkerHeartbeatResponse(accepted=False)
        if self._stopping.is_set():
            return
        if answer.should_drain:
            log.info("the server asks this worker to drain")
            self._stop()
        elif not answer.accepted:
            log.warning("worker %s is not known any more, and registers again", self._worker_id)
            await self._register()

    async def _beat(self) -> pb.WorkerHeartbeatResponse:
        completed, failed = self._completed, self._failed
        asked = pb.WorkerHeartbeatRequest(
            worker_id=self._worker_id or "", active_count=len(self._runs), completed_delta=completed,
            failed_delta=failed,
        )  # fmt: skip
        token = ((LEASE_TOKEN, self._token),) if self._token else ()
        answer: pb.WorkerHeartbeatResponse = await self._line.call(
            "WorkerHeartbeat", asked, (*token, (ACTIVE, ",".join(self._runs.values()))), timeout_s=self._every_s
        )
        self._completed, self._failed = self._completed - completed, self._failed - failed
        return answer

    # ----------------------------------------------------------------------------------------- runs

    async def _poll_loop(self) -> None:
        """A server that is away is asked again, less and less often."""
        pause_s = FIRST_PAUSE_S
        while True:
            await self._slots.acquire()
            begun = False
            try:
                begun = await self._poll()
                pause_s = FIRST_PAUSE_S
            except Refused as refused:
                if refused.status is grpc.StatusCode.FAILED_PRECONDITION:  # it drains, or is thought gone
                    await self._beat_or_register()
                elif pause_s == FIRST_PAUSE_S and refused.status is not grpc.StatusCode.DEADLINE_EXCEEDED:
                    log.warning("cannot poll, trying again: %s", refused)
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
            finally:
                if not begun:
                    self._slots.release()

    async def _poll(self) -> bool:
        """Whether it brought a run. Raises Refused."""
        asked = pb.PollActivityRequest(
            worker_id=self._worker_id or "", task_queue=self._queue, namespace_id=self._namespace,
            supported_workflow_types=list(self._workflows),
        )  # fmt: skip
        polled, beside = await self._line.once("PollActivity", asked, timeout_s=POLL_S)
        if not polled.run_id:
            return False
        task = asyncio.create_task(self._execute(polled, beside))
        self._runs[task] = polled.run_id
        task.add_done_callback(self._forget)
        return True

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._runs.pop(task, None)
        self._slots.release()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a run ended without a report: %s", line_of(error))

    async def _execute(self, polled: pb.PollActivityResponse, beside: dict[str, Any]) -> None:
        named = ((LEASE_TOKEN, beside.get(LEASE_TOKEN)), (WORKER_ID, beside.get(WORKER_ID)))
        fence = tuple((key, str(value)) for key, value in named if value)
        context = WorkflowContext(
            self._line, polled.run_id, polled.workflow_type, int(beside.get(ATTEMPT, 0) or 0),
            read_value("context", beside.get(CONTEXT, b"")), fence,
        )  # fmt: skip
        try:
            try:
                given = read_value("input", polled.workflow_input)
                output = write_value("result", await self._workflows[polled.workflow_type](context, given))
            except (Exception, SystemExit) as error:  # a failure of the workflow is data
                detail = detail_of(error)
                log.warning("run %s (%s) failed: %s", context.run_id, context.workflow_type, detail.message)
                await context.call("FailWorkflow", pb.FailWorkflowRequest(run_id=context.run_id, error=detail))
                self._failed += 1
            else:
                done = pb.CompleteWorkflowRequest(run_id=context.run_id, output=output)
                await context.call("CompleteWorkflow", done)
                self._completed += 1
        except Over as over:
            if str(over):
                log.info("run %s is not ours any more: %s", context.run_id, over)


async def _ended(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.contextmanager
def _signals(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> Any:
    """SIGTERM and SIGINT, where they can be heard: in the main thread, on a system that has them."""
    numbers = (signal.SIGTERM, signal.SIGINT) if threading.current_thread() is threading.main_thread() else ()
    heard = []
    for number in numbers:
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, stop)
            heard.append(number)
    try:
        yield
    finally:
        for number in heard:
            loop.remove_signal_handler(number)
