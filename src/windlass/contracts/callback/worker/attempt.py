"""One attempt that was pushed: its handler runs in the event loop of the service, its client in the loop thread.

What the client calls here is handed over to the service's loop by `call_soon_threadsafe`. Only the set of cancel
requests is shared, so that a handler that blocks its event loop still sees them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any
from uuid import UUID

import msgspec

from windlass.contracts.callback.wire.envelope import Completed, TaskEnvelope, TaskError
from windlass.contracts.callback.worker.client import CallbackClient, Over
from windlass.contracts.callback.worker.loop_thread import LoopThread
from windlass.contracts.callback.worker.progress import LatestProgress
from windlass.core.command import Claimed
from windlass.core.failure import Category, Failure
from windlass.core.states import State
from windlass.core.task import Task
from windlass.core.text import REASON_MAX, clean, clean_middle, words_of
from windlass.core.trace import is_traceparent
from windlass.core.validation import LARGE_MAX_BYTES, check_payload
from windlass.net.http_threads import ThreadedClient
from windlass.net.ids import parse_id
from windlass.sdk.context import cancel_requests
from windlass.sdk.handler.handler import Handler
from windlass.sdk.signals import Cancel, Fail, invalid_is_bad_data
from windlass.sdk.trace import attempt_span
from windlass.sdk.worker.outcome import Outcome, log_failure, outcome_of, safe_failure
from windlass.sdk.worker.progress import ProgressSink
from windlass.sdk.workflow.exits import WorkflowExit

log = logging.getLogger("windlass.worker")

STOPPED = Failure(
    Category.INFRASTRUCTURE, "the worker was stopped before this was done", "WORKER_STOPPED", retryable=True
)
TRACE_MAX, MESSAGE_MAX = 60_000, 60_000


class PushedEnvironment:
    """The environment of an attempt that was pushed: everything came with the request."""

    def __init__(self, envelope: TaskEnvelope, progress: ProgressSink) -> None:
        self._envelope, self.progress = envelope, progress

    async def last_checkpoint(self) -> bytes | None:
        checkpoint = self._envelope.checkpoint
        return None if isinstance(checkpoint, msgspec.UnsetType) else bytes(checkpoint)

    async def results(self, ids: Sequence[UUID]) -> dict[UUID, bytes]:
        raise Fail(f"the result of task {ids[0]} was not pushed with this one", category=Category.CONFIGURATION)

    async def close(self) -> None:
        pass


class PushedAttempt:
    """One attempt, from its acceptance until its handler has ended and the engine has the outcome."""

    def __init__(
        self,
        task_id: UUID,
        envelope: TaskEnvelope,
        handler: Handler[..., Any],
        worker: str,
        base_url: str,
        on_end: Callable[[PushedAttempt], None],
    ) -> None:
        self.task_id, self.number = task_id, envelope.attempt
        self._envelope, self._handler, self._worker, self._base_url = envelope, handler, worker, base_url
        self._on_end = on_end  # called when the handler has ended, and when the client has
        self._loop = asyncio.get_running_loop()
        self._client: CallbackClient | None = None
        self._reporting: Future[None] | None = None
        self._running: asyncio.Task[Outcome] | None = None
        self._started = False  # the engine knows that it runs here
        self._cancel_requested = self._stopping = self._lost = self.reported = False

    # ----------------------------------------------------------------------------------------- in the service's loop

    def start(self, thread: LoopThread, http: ThreadedClient) -> None:
        self._reporting = thread.start(self._report_to_engine(http))

    def supersede(self) -> None:
        """A newer attempt has come: this one is over."""
        self._lost = True
        if self._client is not None:
            self._client.give_up()
        self._interrupt()

    def stop(self) -> None:
        """The worker stops, and does not wait any longer. If the engine does not know that the attempt started, nothing
        is reported: it will push the task to another worker."""
        self._stopping = True
        if not self._started and self._reporting is not None:
            self._reporting.cancel()
        self._interrupt()

    def release(self) -> None:
        """Its handler does not stop: report that it was not done, while that is possible."""
        if self._client is not None:
            self._client.end(self._release_report())

    def _interrupt(self) -> None:
        cancel_requests.add((self.task_id, self.number))
        if self._running is not None:
            self._running.cancel()

    def _run(self, progress: LatestProgress) -> None:
        """The engine has accepted the start."""
        assert self._client is not None
        if self._lost:
            self._client.give_up()
            return
        self._started = True
        if self._stopping:
            self.release()
            return
        self._running = asyncio.create_task(outcome_of(self._result(progress), self._handler.failure))
        self._running.add_done_callback(self._on_handler_end)

    async def _result(self, progress: LatestProgress) -> bytes:
        claimed = Claimed(self._task(), bytes(self._envelope.payload))
        with attempt_span(claimed.task):
            result = await self._handler.run(claimed, PushedEnvironment(self._envelope, progress))
        with invalid_is_bad_data:
            check_payload("result", result, LARGE_MAX_BYTES)
        return result

    def _on_handler_end(self, ended: asyncio.Task[Outcome]) -> None:
        assert self._client is not None
        self._client.end(self._report(ended))
        self._running = None
        self._notify_end()

    def _on_client_end(self) -> None:
        self.reported = True
        self._notify_end()

    def _notify_end(self) -> None:
        if self.over:
            cancel_requests.discard((self.task_id, self.number))
        self._on_end(self)

    @property
    def over(self) -> bool:
        """Nothing runs and nothing is sent any more."""
        return self.reported and self._running is None

    # ----------------------------------------------------------------------------------------- in the loop thread

    async def _report_to_engine(self, http: ThreadedClient) -> None:
        self._client = client = CallbackClient(
            self._envelope, http, worker=self._worker, base_url=self._base_url, on_stop=self._on_stop
        )
        lost = True
        try:
            await client.start()
            self._call_soon(self._run, client.progress)
            await client.finish()
            lost = False
        except Over:
            pass
        except Exception:
            log.exception("the reports about task %s failed", self._envelope.task_id)
            self._on_stop(False)
        finally:
            client.progress.close(lost=lost)
            self._call_soon(self._on_client_end)

    def _on_stop(self, by_cancel: bool) -> None:
        """The engine requests a cancel, or does not accept this attempt any more."""
        cancel_requests.add((self.task_id, self.number))
        self._call_soon(self._stop_by_engine, by_cancel)

    def _stop_by_engine(self, by_cancel: bool) -> None:
        if by_cancel and self._cancel_requested:
            return  # the handler was interrupted once, and may be cleaning up
        self._cancel_requested |= by_cancel
        self._lost |= not by_cancel
        self._interrupt()

    def _call_soon(self, call: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop of the service has been closed
            self._loop.call_soon_threadsafe(call, *arguments)

    # ----------------------------------------------------------------------------------------- the report

    def _report(self, ended: asyncio.Task[Outcome]) -> Completed:
        if ended.cancelled() and ended.cancelling():
            return self._cancelled("") if self._cancel_requested else self._release_report()
        # Cancelled, but not by us: something inside the handler was.
        error = asyncio.CancelledError() if ended.cancelled() else ended.exception()
        outcome = ended.result() if error is None else safe_failure(self._handler.failure, error)
        match outcome:
            case Cancel():
                return self._cancelled(clean(words_of(outcome), MESSAGE_MAX))
            case Failure():
                log_failure(self._task(), outcome)
                return self._failed(outcome)
            case WorkflowExit():  # a workflow, which none of ours is
                return self._failed(safe_failure(self._handler.failure, outcome))
        output = msgspec.Raw(outcome)
        return Completed(attempt=self.number, worker_id=self._worker, outcome="SUCCEEDED", output=output)

    def _cancelled(self, message: str) -> Completed:
        amount = self._client.progress.amount if self._client is not None else None
        return Completed(
            attempt=self.number,
            worker_id=self._worker,
            outcome="CANCELLED",
            error=TaskError(category="CANCELLED", message=message) if message else None,
            cancelled_during_phase=(amount.message[:REASON_MAX] or None) if amount is not None else None,
            partial_progress=msgspec.UNSET if amount is None else msgspec.Raw(msgspec.json.encode(amount)),
        )

    def _failed(self, failure: Failure) -> Completed:
        error = TaskError(
            category=failure.category.value,
            message=clean(failure.message, MESSAGE_MAX),
            stack_trace=clean_middle(failure.trace, TRACE_MAX) or None,
            retryable=failure.retryable,
            reason=failure.reason or None,
            retry_after_ms=None if failure.retry_after_s is None else int(failure.retry_after_s * 1000),
        )
        return Completed(attempt=self.number, worker_id=self._worker, outcome="FAILED", error=error)

    def _release_report(self) -> Completed:
        """Release it for other workers. An engine that does not know `released` reads a failure that is retried."""
        return msgspec.structs.replace(self._failed(STOPPED), released=True)

    def _task(self) -> Task:
        """The task for its handler. Fields that the envelope lacks have their defaults."""
        envelope = self._envelope
        return Task(
            id=self.task_id,
            namespace=envelope.tenant_id,
            queue=envelope.queue,
            kind=envelope.kind or envelope.asset_id,
            state=State.RUNNING,
            available_at=envelope.enqueued_at,
            attempt=envelope.attempt,
            failures=envelope.failures,
            worker=self._worker,
            deadline_at=envelope.deadline,
            timer_at=envelope.ends_at or envelope.deadline,
            run_id=parse_id("run", envelope.run_id),
            trace=envelope.traceparent if is_traceparent(envelope.traceparent) else None,
        )
