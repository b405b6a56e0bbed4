"""One attempt that this wrapper has claimed, from the claim to the accepted report.

While the operator runs, heartbeats extend the lease and learn of a cancel, and the operator's messages are forwarded in
order. The report follows after all messages were accepted, and is repeated until it is accepted. The operator never
sees the lease.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Literal

from windlass.contracts.lease.worker.dispatcher import Claimed, Dispatcher, NotJson, Refused
from windlass.contracts.lease.worker.operator import Answer, MessageSink, OperatorFailed
from windlass.contracts.lease.worker.retry import cancel_all, until_answered
from windlass.core.text import clean, line_of
from windlass.errors import LeaseLost, Unavailable, WindlassError
from windlass.net.backoff import jittered

log = logging.getLogger("windlass.wrapper")

HEARTBEATS_PER_LEASE = 3
HEARTBEAT_MIN_S, HEARTBEAT_MAX_S = 0.1, 60.0
EVENTS_PER_CALL = 500
ERROR_MAX = 4000

Operate = Callable[[Mapping[str, Any], MessageSink], Awaitable[Answer]]
Outcome = Literal["Completed", "Failed", "Canceled", "lost"]


class Attempt:
    """Runs one claimed attempt. `operate` runs the operator; cancelling it stops the operator."""

    def __init__(self, dispatcher: Dispatcher, claimed: Claimed, operate: Operate) -> None:
        self._dispatcher, self.claimed, self._operate = dispatcher, claimed, operate
        self._messages = _MessageRelay(dispatcher, claimed)
        self._operator: asyncio.Task[Answer] | None = None
        self._cancelled = False
        self._lost: LeaseLost | None = None

    async def run(self) -> Outcome:
        """The status that was reported and accepted; `lost` if the lease is lost or the task is over."""
        heartbeats = asyncio.create_task(self._send_heartbeats())
        try:
            report = await self._run_operator()
            if report is None:
                log.warning("task %s: attempt %s lost its lease: %s", *self._names, self._lost)
                return "lost"
            if report["status"] == "Failed":
                log.info("task %s: attempt %s failed: %s", *self._names, report["error_message"])
            return await self._report(report)
        finally:
            await cancel_all(heartbeats)

    @property
    def _names(self) -> tuple[object, int]:
        return self.claimed.task_id, self.claimed.attempt

    # ------------------------------------------------------------------------------------------------- the operator

    async def _run_operator(self) -> dict[str, Any] | None:
        """The report, or None if there is nothing to report."""
        if await self._was_cancelled_before_start():
            return _canceled()
        if self._lost is not None:
            return None
        forwarding = asyncio.create_task(self._messages.forward())
        # The operator gets no lease, and a producer id that is the same in every attempt.
        task = {name: value for name, value in self.claimed.task.items() if not name.startswith("lease_")}
        task["producer_id"] = str(self.claimed.task_id)
        self._operator = asyncio.ensure_future(self._operate(task, self._messages))
        forwarding.add_done_callback(self._stop_if_it_failed)
        try:
            report = await self._outcome(self._operator)
            self._messages.close()
            await forwarding  # until all messages were accepted, also if the operator failed
            return report  # noqa: TRY300
        except asyncio.CancelledError:
            if asyncio.current_task().cancelling():  # type: ignore[union-attr]  # the wrapper itself stops
                raise
            return self._report_of_stop(forwarding)
        except Exception as error:
            return self._report_of_refusal(error)
        finally:
            await cancel_all(self._operator, forwarding)

    async def _outcome(self, operator: asyncio.Task[Answer]) -> dict[str, Any]:
        try:
            return _completed(await operator)
        except OperatorFailed as error:
            return _failed(str(error), error.retryable)
        except Exception as error:  # a defect of ours, not of the operator: reported too, so that people see it
            log.exception("task %s: attempt %s could not be run", *self._names)
            return _failed(f"the wrapper could not run the operator: {line_of(error)}", retryable=None)

    async def _was_cancelled_before_start(self) -> bool:
        if self.claimed.ours:  # our dispatcher gives out no cancelled task
            return False
        try:
            return await self._dispatcher.is_cancelled(self.claimed.task_id)
        except WindlassError:
            return False  # it was claimed a moment ago; heartbeats learn of a cancel

    def _stop_if_it_failed(self, forwarding: asyncio.Task[None]) -> None:
        """Stop the operator when its messages cannot be forwarded."""
        if not forwarding.cancelled() and forwarding.exception() is not None and self._operator is not None:
            self._operator.cancel()

    def _report_of_stop(self, forwarding: asyncio.Task[None]) -> dict[str, Any] | None:
        """The report of an operator that was stopped, or None if the lease is lost."""
        error = forwarding.exception() if forwarding.done() and not forwarding.cancelled() else None
        if error is not None:
            return self._report_of_refusal(error)
        if self._lost is not None:
            return None
        return _canceled() if self._cancelled else _failed("the operator cancelled itself", retryable=None)

    def _report_of_refusal(self, error: BaseException) -> dict[str, Any] | None:
        """The report of an operator whose message could not be forwarded, or None if the lease is lost."""
        match error:
            case LeaseLost():
                self._lost = error
                return None
            case Refused():
                return _failed(f"a message of the operator was refused: {error}", retryable=False)
            case NotJson():
                return _failed(str(error), retryable=False)
        log.error("task %s: a message of attempt %s cannot be forwarded", *self._names, exc_info=error)
        return _failed(f"a message of the operator cannot be forwarded: {line_of(error)}", retryable=False)

    # ------------------------------------------------------------------------------------------------- the lease

    async def _send_heartbeats(self) -> None:
        """Runs until the report was accepted. A heartbeat without an answer does not stop the operator: the lease may
        still hold, and the fence refuses a late report."""
        every_s = min(max(self.claimed.lease_s / HEARTBEATS_PER_LEASE, HEARTBEAT_MIN_S), HEARTBEAT_MAX_S)
        while True:
            await asyncio.sleep(jittered(every_s))
            try:
                answer = await self._dispatcher.heartbeat(self.claimed)
                if self.claimed.ours:
                    cancelled = answer.get("status") == "Canceled"
                else:
                    cancelled = await self._dispatcher.is_cancelled(self.claimed.task_id)
                if cancelled:
                    self._stop(cancelled=True)
            except LeaseLost as error:
                self._lost = error
                self._stop(cancelled=False)
                return
            except Unavailable as error:
                log.warning("task %s: a heartbeat of attempt %s was not answered: %s", *self._names, error)
            except WindlassError as error:
                log.warning("task %s: a heartbeat of attempt %s was refused: %s", *self._names, error)

    def _stop(self, *, cancelled: bool) -> None:
        if self._operator is not None and not self._operator.done() and not self._cancelled:
            self._cancelled = cancelled
            self._operator.cancel()

    # ------------------------------------------------------------------------------------------------- the report

    async def _report(self, report: dict[str, Any]) -> Outcome:
        """Report until it is accepted. A refused result is replaced by a failure with the reason."""
        what = f"the report of task {self.claimed.task_id}"
        try:
            await until_answered(what, lambda: self._dispatcher.complete(self.claimed, report))
        except NotJson as error:
            return await self._report(_failed(f"the operator's answer: {error}", retryable=False))
        except LeaseLost as error:
            log.warning("task %s: the report of attempt %s came too late: %s", *self._names, error)
            return "lost"
        except Refused as error:
            log.warning("task %s: the report of attempt %s was refused: %s", *self._names, error)
            if report["status"] != "Completed":
                return "lost"
            return await self._report(_failed(f"the report was refused: {error}", retryable=False))
        status: Outcome = report["status"]
        return status


class _MessageRelay:
    """Forwards the messages of one operator to the dispatcher, in order. `send` may be called from any thread."""

    def __init__(self, dispatcher: Dispatcher, claimed: Claimed) -> None:
        self._dispatcher, self._claimed = dispatcher, claimed
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Mapping[str, Any]] = deque()
        self._changed = asyncio.Event()
        self._closed = False

    def send(self, message: Mapping[str, Any]) -> None:
        self._waiting.append(message)
        self._loop.call_soon_threadsafe(self._changed.set)

    def close(self) -> None:
        """No more messages follow: `forward` returns when all were accepted."""
        self._closed = True
        self._changed.set()

    async def forward(self) -> None:
        """Forward messages until closed. Raises LeaseLost or Refused, and then forwards nothing more."""
        while True:
            self._changed.clear()
            while self._waiting:
                await self._forward_next()
            if self._closed:
                return
            await self._changed.wait()

    async def _forward_next(self) -> None:
        message = self._waiting.popleft()
        if message["say"] == "publish":
            batch = {name: value for name, value in message.items() if name != "say"}
            await until_answered("a batch", lambda: self._dispatcher.publish(self._claimed, batch))
            return
        events = list(_events(message))
        while self._waiting and self._waiting[0]["say"] == "events" and len(events) < EVENTS_PER_CALL:
            events += _events(self._waiting.popleft())
        for start in range(0, len(events), EVENTS_PER_CALL):
            part = events[start : start + EVENTS_PER_CALL]
            await until_answered("events", partial(self._dispatcher.events, self._claimed, part))


def _events(message: Mapping[str, Any]) -> list[Any]:
    events = message.get("events")
    return events if isinstance(events, list) else [events]


def _completed(answer: Answer) -> dict[str, Any]:
    """An operator that returns outputs and no result gets no result of its own in the report."""
    report = {**_canceled(), "status": "Completed", "outputs": answer.outputs, "events": answer.events}
    return report if answer.result is None and answer.outputs else {**report, "result": answer.result}


def _canceled() -> dict[str, Any]:
    return {"status": "Canceled", "outputs": [], "events": [], "error_message": None}


def _failed(message: str, retryable: bool | None) -> dict[str, Any]:
    details = {} if retryable is None else {"error": {"retryable": retryable}}
    return {**_canceled(), "status": "Failed", "error_message": clean(message, ERROR_MAX), **details}
