"""One attempt that was pushed to us: its handler in the event loop of the service, its talk on the line.

Everything here that is called by the line hands over to the other side by `call_soon_threadsafe`; only the set of those
that are told to cancel is shared, so that a handler that blocks its event loop can still ask.
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

from windlass.core.check import LARGE_MAX_BYTES, check_payload
from windlass.core.command import Claimed
from windlass.core.failure import Category, Failure
from windlass.core.task import Task
from windlass.core.text import REASON_MAX, clean, clean_middle, words_of
from windlass.core.trace import is_traceparent
from windlass.core.transition import State
from windlass.sdk.callback.line import Line
from windlass.sdk.callback.post import Poster
from windlass.sdk.callback.said import Said
from windlass.sdk.callback.talk import Over, Talk
from windlass.sdk.context import told_to_cancel
from windlass.sdk.handler import Handler
from windlass.sdk.leaving import Leaving
from windlass.sdk.note import Saying
from windlass.sdk.outcome import Outcome, log_failure, outcome_of, tried
from windlass.sdk.signals import Cancel, Fail, unfit_is_bad_data
from windlass.sdk.trace import attempting
from windlass.wire.envelope import Completed, TaskEnvelope, TaskError
from windlass.wire.id import parse_id

log = logging.getLogger("windlass.worker")

STOPPED = Failure(
    Category.INFRASTRUCTURE, "the worker was stopped before this was done", "WORKER_STOPPED", retryable=True
)
TRACE_MAX, MESSAGE_MAX = 60_000, 60_000


class AtTheDoor:
    """What surrounds an attempt that was pushed: it came with all that there is."""

    def __init__(self, envelope: TaskEnvelope, notes: Saying) -> None:
        self._envelope, self.notes = envelope, notes

    async def left_behind(self) -> bytes | None:
        checkpoint = self._envelope.checkpoint
        return None if isinstance(checkpoint, msgspec.UnsetType) else bytes(checkpoint)

    async def results(self, ids: Sequence[UUID]) -> dict[UUID, bytes]:
        raise Fail(f"what task {ids[0]} returned was not pushed with this one", category=Category.CONFIGURATION)

    async def close(self) -> None:
        pass


class PushedAttempt:
    """From its acceptance until its handler has ended and the engine knows."""

    def __init__(
        self,
        task_id: UUID,
        envelope: TaskEnvelope,
        handler: Handler[..., Any],
        worker: str,
        base_url: str,
        ended: Callable[[PushedAttempt], None],
    ) -> None:
        self.task_id, self.number = task_id, envelope.attempt
        self._envelope, self._handler, self._worker, self._base_url = envelope, handler, worker, base_url
        self._ended = ended  # told when the handler or the talk has
        self._home = asyncio.get_running_loop()
        self._talk: Talk | None = None
        self._talking: Future[None] | None = None
        self._running: asyncio.Task[Outcome] | None = None
        self._agreed = False  # by the engine: it is to be run
        self._told_to_cancel = self._stopping = self._lost = self.silent = False

    # ----------------------------------------------------------------------------------------- in the service's loop

    def begin(self, line: Line, poster: Poster) -> None:
        self._talking = line.begin(self._converse(poster))

    def supersede(self) -> None:
        """A newer attempt has come: this one is over."""
        self._lost = True
        if self._talk is not None:
            self._talk.give_up()
        self._interrupt()

    def stop_for_good(self) -> None:
        """The worker stops, and does not wait any longer. One that the engine does not know to have begun is left
        unsaid: it will be pushed to somebody else."""
        self._stopping = True
        if not self._agreed and self._talking is not None:
            self._talking.cancel()
        self._interrupt()

    def leave_behind(self) -> None:
        """It does not stop: say that it was not done, while we still can."""
        if self._talk is not None:
            self._talk.end(self._given_back())

    def _interrupt(self) -> None:
        told_to_cancel.add((self.task_id, self.number))
        if self._running is not None:
            self._running.cancel()

    def _run(self, said: Said) -> None:
        """The engine has agreed."""
        assert self._talk is not None
        if self._lost:
            self._talk.give_up()
            return
        self._agreed = True
        if self._stopping:
            self.leave_behind()
            return
        self._running = asyncio.create_task(self._attempt(said))
        self._running.add_done_callback(self._handler_ended)

    async def _attempt(self, said: Said) -> Outcome:
        return await outcome_of(self._result(said), self._handler.failure)

    async def _result(self, said: Said) -> bytes:
        claimed = Claimed(self._task(), bytes(self._envelope.payload))
        with attempting(claimed.task):
            result = await self._handler.run(claimed, AtTheDoor(self._envelope, said))
        with unfit_is_bad_data():
            check_payload("result", result, LARGE_MAX_BYTES)
        return result

    def _handler_ended(self, ended: asyncio.Task[Outcome]) -> None:
        report = self._report(ended)
        self._running = None
        assert self._talk is not None
        self._talk.end(report)
        self._tell_ended()

    def _talk_ended(self) -> None:
        self.silent = True
        self._tell_ended()

    def _tell_ended(self) -> None:
        if self.over:
            told_to_cancel.discard((self.task_id, self.number))
        self._ended(self)

    @property
    def over(self) -> bool:
        """Nothing runs and nothing is said any more."""
        return self.silent and self._running is None

    # ----------------------------------------------------------------------------------------- on the line

    async def _converse(self, poster: Poster) -> None:
        self._talk = talk = Talk(
            self._envelope, poster, worker=self._worker, base_url=self._base_url, stop=self._heard_stop
        )
        lost = True
        try:
            await talk.start()
            self._at_home(self._run, talk.said)
            await talk.finish()
            lost = False
        except Over:
            pass
        except Exception:
            log.exception("the talk about task %s broke off", self._envelope.task_id)
            self._heard_stop(False)
        finally:
            talk.said.close(lost=lost)
            self._at_home(self._talk_ended)

    def _heard_stop(self, by_cancel: bool) -> None:
        """The engine asks for a cancel, or does not want this attempt any more."""
        told_to_cancel.add((self.task_id, self.number))
        self._at_home(self._stop_by_engine, by_cancel)

    def _stop_by_engine(self, by_cancel: bool) -> None:
        if by_cancel and self._told_to_cancel:
            return  # it was told once; what it does meanwhile is to clean up
        self._told_to_cancel, self._lost = self._told_to_cancel or by_cancel, self._lost or not by_cancel
        self._interrupt()

    def _at_home(self, call: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop of the service has been closed
            self._home.call_soon_threadsafe(call, *arguments)

    # ----------------------------------------------------------------------------------------- what came of it

    def _report(self, ended: asyncio.Task[Outcome]) -> Completed:
        if ended.cancelled() and ended.cancelling():
            return self._cancelled("") if self._told_to_cancel else self._given_back()
        # Cancelled, but not by us: something inside the handler was.
        error = asyncio.CancelledError() if ended.cancelled() else ended.exception()
        outcome = ended.result() if error is None else tried(self._handler.failure, error)
        match outcome:
            case Cancel():
                return self._cancelled(clean(words_of(outcome), MESSAGE_MAX))
            case Failure():
                log_failure(self._task(), outcome)
                return self._failed(outcome)
            case Leaving():  # a workflow, which none of ours is
                return self._failed(tried(self._handler.failure, outcome))
        output = msgspec.Raw(outcome)
        return Completed(attempt=self.number, worker_id=self._worker, outcome="SUCCEEDED", output=output)

    def _cancelled(self, message: str) -> Completed:
        amount = self._talk.said.amount if self._talk is not None else None
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

    def _given_back(self) -> Completed:
        """For others to run; an engine that does not know the word takes it for a failure that is tried again."""
        return msgspec.structs.replace(self._failed(STOPPED), released=True)

    def _task(self) -> Task:
        """As handlers know it. What a pushed envelope does not tell has its default."""
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
