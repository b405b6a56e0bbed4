"""One attempt that this wrapper has claimed, from the claim to the accepted report.

While the operator runs, heartbeats keep the lease and hear of a cancel, and what the operator says is passed on in
order. The report comes after all of that was accepted, and is repeated until it was. The operator never sees the lease.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Literal

from windlass.core.error import LeaseLost, Unavailable, WindlassError
from windlass.core.text import clean, line_of
from windlass.wrapper.dispatcher import Claimed, Dispatcher, Refused, Unspeakable
from windlass.wrapper.operator import Answer, OperatorFailed, Speech
from windlass.wrapper.patience import spread, until_heard

log = logging.getLogger("windlass.wrapper")

BEATS_PER_LEASE = 3
BEAT_MIN_S, BEAT_MAX_S = 0.1, 60.0
EVENTS_PER_CALL = 500
ERROR_MAX = 4000

Operate = Callable[[Mapping[str, Any], Speech], Awaitable[Answer]]
Outcome = Literal["Completed", "Failed", "Canceled", "lost"]


class Attempt:
    """`operate` runs the operator; to cancel it is to stop it."""

    def __init__(self, dispatcher: Dispatcher, claimed: Claimed, operate: Operate) -> None:
        self._dispatcher, self.claimed, self._operate = dispatcher, claimed, operate
        self._speech = _Speech(dispatcher, claimed)
        self._operator: asyncio.Task[Answer] | None = None
        self._cancelled = False
        self._lost: LeaseLost | None = None

    async def run(self) -> Outcome:
        """What was reported and accepted; `lost` if the attempt is somebody else's, or over."""
        beats = asyncio.create_task(self._keep_lease())
        try:
            report = await self._run_operator()
            if report is None:
                log.warning("task %s: attempt %s is lost: %s", *self._names, self._lost)
                return "lost"
            if report["status"] == "Failed":
                log.info("task %s: attempt %s failed: %s", *self._names, report["error_message"])
            return await self._report(report)
        finally:
            beats.cancel()
            await asyncio.gather(beats, return_exceptions=True)

    @property
    def _names(self) -> tuple[object, int]:
        return self.claimed.task_id, self.claimed.attempt

    # ------------------------------------------------------------------------------------------------- the operator

    async def _run_operator(self) -> dict[str, Any] | None:
        """The report, or None if nothing is to be reported."""
        if await self._was_cancelled_before_it_began():
            return _canceled()
        if self._lost is not None:
            return None
        speaking = asyncio.create_task(self._speech.pass_on())
        self._operator = asyncio.ensure_future(self._operate(self._told(), self._speech))
        speaking.add_done_callback(self._stop_if_it_failed)
        try:
            report = await self._outcome(self._operator)
            self._speech.close()
            await speaking  # until all that it said was accepted, also if it failed
            return report  # noqa: TRY300
        except asyncio.CancelledError:
            if asyncio.current_task().cancelling():  # type: ignore[union-attr]  # the wrapper itself is told to stop
                raise
            return self._why_stopped(speaking)
        except LeaseLost as error:
            self._lost = error
            return None
        except Refused as error:
            return _failed(f"what it said was refused: {error}", retryable=False)
        except Unspeakable as error:
            return _failed(str(error), retryable=False)
        except Exception as error:
            log.exception("task %s: what attempt %s said cannot be passed on", *self._names)
            return _failed(f"what it said cannot be passed on: {line_of(error)}", retryable=False)
        finally:
            await _ended(self._operator, speaking)

    async def _outcome(self, operator: asyncio.Task[Answer]) -> dict[str, Any]:
        try:
            return _completed(await operator)
        except OperatorFailed as error:
            return _failed(str(error), error.retryable)
        except Exception as error:  # ours, not the operator's: told all the same, so that somebody looks at it
            log.exception("task %s: attempt %s could not be run", *self._names)
            return _failed(f"the wrapper could not run it: {line_of(error)}", retryable=None)

    def _told(self) -> dict[str, Any]:
        """What the operator gets: the task, and under which id it produces: the same in every attempt."""
        task = {name: value for name, value in self.claimed.task.items() if not name.startswith("lease_")}
        return {**task, "producer_id": str(self.claimed.task_id)}

    async def _was_cancelled_before_it_began(self) -> bool:
        if self.claimed.ours:  # what was cancelled is not claimed
            return False
        try:
            return await self._dispatcher.is_cancelled(self.claimed.task_id)
        except WindlassError:
            return False  # it was ours a moment ago; heartbeats will tell

    def _stop_if_it_failed(self, speaking: asyncio.Task[None]) -> None:
        """What cannot be passed on need not be said."""
        if not speaking.cancelled() and speaking.exception() is not None and self._operator is not None:
            self._operator.cancel()

    def _why_stopped(self, speaking: asyncio.Task[None]) -> dict[str, Any] | None:
        error = speaking.exception() if speaking.done() and not speaking.cancelled() else None
        if isinstance(error, Refused):
            return _failed(f"what it said was refused: {error}", retryable=False)
        if isinstance(error, Unspeakable):
            return _failed(str(error), retryable=False)
        if isinstance(error, LeaseLost):
            self._lost = error
        if self._lost is not None:
            return None
        if self._cancelled:
            return _canceled()
        return _failed("it stopped itself", retryable=None)

    # ------------------------------------------------------------------------------------------------- the lease

    async def _keep_lease(self) -> None:
        """Until the report was accepted. Not to be heard is no reason to stop: the lease may hold, the fence does."""
        every_s = min(max(self.claimed.lease_s / BEATS_PER_LEASE, BEAT_MIN_S), BEAT_MAX_S)
        while True:
            await asyncio.sleep(spread(every_s))
            try:
                said = await self._dispatcher.heartbeat(self.claimed)
                if self.claimed.ours:
                    cancelled = said.get("status") == "Canceled"
                else:
                    cancelled = await self._dispatcher.is_cancelled(self.claimed.task_id)
                if cancelled:
                    self._stop(cancelled=True)
            except LeaseLost as error:
                self._lost = error
                self._stop(cancelled=False)
                return
            except Unavailable as error:
                log.warning("task %s: no heartbeat of attempt %s: %s", *self._names, error)
            except WindlassError as error:
                log.warning("task %s: a heartbeat of attempt %s was refused: %s", *self._names, error)

    def _stop(self, *, cancelled: bool) -> None:
        if self._operator is not None and not self._operator.done() and not self._cancelled:
            self._cancelled = cancelled
            self._operator.cancel()

    # ------------------------------------------------------------------------------------------------- the report

    async def _report(self, report: dict[str, Any]) -> Outcome:
        """Repeated until it was accepted. One that is refused for what it says becomes a failure that says so."""
        what = f"the report of task {self.claimed.task_id}"
        try:
            await until_heard(what, lambda: self._dispatcher.complete(self.claimed, report))
        except Unspeakable as error:
            return await self._report(_failed(f"what it returned: {error}", retryable=False))
        except LeaseLost as error:
            log.warning("task %s: the report of attempt %s came too late: %s", *self._names, error)
            return "lost"
        except Refused as error:
            log.warning("task %s: the report of attempt %s was refused: %s", *self._names, error)
            if report["status"] != "Completed":
                return "lost"
            return await self._report(_failed(f"its report was refused: {error}", retryable=False))
        status: Outcome = report["status"]
        return status


class _Speech:
    """What one operator says while it works, on its way to the dispatcher, in order. `say` from any thread."""

    def __init__(self, dispatcher: Dispatcher, claimed: Claimed) -> None:
        self._dispatcher, self._claimed = dispatcher, claimed
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Mapping[str, Any]] = deque()
        self._news = asyncio.Event()
        self._closed = False

    def say(self, message: Mapping[str, Any]) -> None:
        self._waiting.append(message)
        self._loop.call_soon_threadsafe(self._news.set)

    def close(self) -> None:
        """Nothing more comes; `pass_on` returns when all was accepted."""
        self._closed = True
        self._news.set()

    async def pass_on(self) -> None:
        """Raises LeaseLost or Refused: then nothing more is passed on."""
        while True:
            self._news.clear()
            while self._waiting:
                await self._pass_on_next()
            if self._closed:
                return
            await self._news.wait()

    async def _pass_on_next(self) -> None:
        message = self._waiting.popleft()
        if message["say"] == "publish":
            batch = {name: value for name, value in message.items() if name != "say"}
            await until_heard("a batch", lambda: self._dispatcher.publish(self._claimed, batch))
            return
        events = list(_events(message))
        while self._waiting and self._waiting[0]["say"] == "events" and len(events) < EVENTS_PER_CALL:
            events += _events(self._waiting.popleft())
        for start in range(0, len(events), EVENTS_PER_CALL):
            some = events[start : start + EVENTS_PER_CALL]
            await until_heard("events", partial(self._dispatcher.events, self._claimed, some))


def _events(message: Mapping[str, Any]) -> list[Any]:
    events = message.get("events")
    return events if isinstance(events, list) else [events]


def _completed(answer: Answer) -> dict[str, Any]:
    """Who returned outputs and nothing else has those as its result."""
    result = {} if answer.result is None and answer.outputs else {"result": answer.result}
    return {
        "status": "Completed", "outputs": answer.outputs, "events": answer.events, "error_message": None, **result,
    }  # fmt: skip


def _canceled() -> dict[str, Any]:
    return {"status": "Canceled", "outputs": [], "events": [], "error_message": None}


def _failed(message: str, retryable: bool | None) -> dict[str, Any]:
    said = {} if retryable is None else {"error": {"retryable": retryable}}
    return {"status": "Failed", "outputs": [], "events": [], "error_message": clean(message, ERROR_MAX), **said}


async def _ended(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
