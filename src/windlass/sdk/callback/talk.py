"""What a worker says to the engine about one attempt: started, heartbeats, completed; one call at a time.

Runs on the line, not in the event loop of the service. To repeat a call is harmless, to lose one is not: each is sent
until it was answered, with growing pauses, at least as long as the engine asks for. A 409 or a 410 means that somebody
else has the task or that it is over: then the handler is told to stop, and nothing more is said.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from windlass.core.error import Invalid
from windlass.core.text import clean, line_of
from windlass.sdk.callback.post import Poster, Reply, Unreachable
from windlass.sdk.callback.said import Said
from windlass.wire.decode import decoded
from windlass.wire.envelope import Answer, Completed, Heartbeat, Started, TaskEnvelope, TaskError

log = logging.getLogger("windlass.worker")

ANSWER_TIMEOUT_S = 10.0
PAUSE_S, PAUSE_MAX_S = 0.2, 15.0
NEWS_EVERY_S = 1.0  # heartbeats that carry something new, between those that are due
OVER = frozenset({409, 410})
OVER_IF_OURS = frozenset({401, 403, 404})  # a proxy on the way may say these too
BUSY = frozenset({408, 425, 429})

_answer_of = msgspec.json.Decoder(Answer)


class Over(Exception):
    """The engine wants to hear nothing more of this attempt."""


class Refused(Exception):
    """The engine does not take what was said, and would not if it were said again."""


class Talk:
    """About one attempt. `stop` tells its handler to stop: by a cancel (True), or because the attempt is lost."""

    def __init__(
        self, envelope: TaskEnvelope, poster: Poster, *, worker: str, base_url: str, stop: Callable[[bool], None]
    ) -> None:
        self._envelope, self._poster, self._worker, self._stop = envelope, poster, worker, stop
        self._base_url = f"{base_url.rstrip('/')}/v1/tasks/{envelope.task_id}"
        self._token = envelope.task_token
        self._interval_s = envelope.heartbeat_interval_ms / 1000
        self._loop = asyncio.get_running_loop()
        self._beat_at_s = self._beaten_at_s = 0.0
        self._beat_pause_s = 0.0
        self._changed = asyncio.Event()  # there is something new to say, or the handler has ended
        self.said = Said(self._news)
        self._ended: Completed | None = None
        self._given_up = False

    # ----------------------------------------------------------------------------------------- from other threads

    def end(self, report: Completed) -> None:
        """The handler has ended, and this is what came of it. The first word counts."""
        self._call_soon(self._set_ended, report)

    def give_up(self) -> None:
        """A newer attempt runs here: nothing more is to be said about this one."""
        self._call_soon(self._set_ended, None)

    def _news(self) -> None:
        self._call_soon(self._changed.set)

    def _call_soon(self, call: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:
            log.debug("the line is closed: attempt %d of task %s is left alone", self._attempt, self._envelope.task_id)

    # ----------------------------------------------------------------------------------------- the talk

    async def start(self) -> None:
        """Raises Over if the engine does not want it run, or another process runs it: a push that was sent twice may
        have reached two of a service."""
        answer = await self._tell("started", Started(attempt=self._attempt, worker_id=self._worker), beating=False)
        if answer.worker_id not in (None, self._worker):
            log.info("task %s, attempt %d is with %s", self._envelope.task_id, self._attempt, answer.worker_id)
            raise Over(f"the attempt is with {answer.worker_id}")
        self._beaten_at_s = self._loop.time()
        self._beat_at_s = self._beaten_at_s + self._interval_s

    async def finish(self) -> None:
        """Heartbeats until the handler has ended, then what came of it. Raises Over when nobody wants to know."""
        while self._ended is None:
            await self._until_beat()
            if self._ended is None:
                await self._beat()
        if self.said.fresh:
            await self._beat()
        report = self._ended
        try:
            await self._tell("completed", report)
        except Refused as refused:
            log.warning("the engine refused what came of task %s: %s", self._envelope.task_id, refused)
            await self._tell("completed", refused_report(report, str(refused)))

    @property
    def _attempt(self) -> int:
        return self._envelope.attempt

    def _set_ended(self, report: Completed | None) -> None:
        if report is None:
            self._given_up = True
        elif self._ended is None:
            self._ended = report
        self._changed.set()

    # ----------------------------------------------------------------------------------------- heartbeats

    async def _until_beat(self) -> None:
        """Until a heartbeat is due, or the handler has ended."""
        while self._ended is None and not self._given_up:
            left_s = self._due_at_s() - self._loop.time()
            if left_s <= 0:
                return
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._changed.wait()

    def _due_at_s(self) -> float:
        """What is new does not wait for the next heartbeat, unless the engine could not be reached by the last one."""
        if not self.said.fresh or self._beat_pause_s:
            return self._beat_at_s
        return min(self._beat_at_s, self._beaten_at_s + NEWS_EVERY_S)

    async def _beat(self) -> None:
        """One heartbeat, tried once: the next one is never far."""
        taken = self.said.take()
        body = Heartbeat(attempt=self._attempt, worker_id=self._worker, **taken)
        began_s = self._beaten_at_s = self._loop.time()
        try:
            answer = await self._call("heartbeat", body, max(1.0, min(ANSWER_TIMEOUT_S, self._interval_s)))
        except _NotNow as not_now:
            self.said.unsent()
            self._beat_pause_s = min(max(self._interval_s / 10, 2 * self._beat_pause_s), self._interval_s, PAUSE_MAX_S)
            self._beat_at_s = self._loop.time() + max(not_now.asked_s, _jittered(self._beat_pause_s))
            log.warning("no heartbeat for task %s: %s", self._envelope.task_id, not_now)
            return
        except Refused as refused:
            log.warning("the engine refused a heartbeat of task %s: %s", self._envelope.task_id, refused)
            answer = Answer()
        self._beat_pause_s = 0.0
        self._beat_at_s = began_s + self._interval_s
        self.said.sent(taken)
        if answer.should_cancel:
            self._stop(True)

    # ----------------------------------------------------------------------------------------- calls

    async def _tell(self, what: str, body: msgspec.Struct, *, beating: bool = True) -> Answer:
        """Until it was answered. Meanwhile heartbeats go on, so that nobody takes us for dead."""
        pause_s = PAUSE_S
        while True:
            try:
                return await self._call(what, body, ANSWER_TIMEOUT_S)
            except _NotNow as not_now:
                log.warning("cannot say %s of task %s, trying again: %s", what, self._envelope.task_id, not_now)
                await self._pause(max(not_now.asked_s, _jittered(pause_s)), beating)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    async def _pause(self, seconds: float, beating: bool) -> None:
        until_s = self._loop.time() + seconds
        while (left_s := until_s - self._loop.time()) > 0:
            beat_in_s = self._beat_at_s - self._loop.time()
            if not beating or beat_in_s > left_s:
                await asyncio.sleep(left_s)
            else:
                await asyncio.sleep(max(0.0, beat_in_s))
                await self._beat()
            if self._given_up:
                raise Over

    async def _call(self, what: str, body: msgspec.Struct, timeout_s: float) -> Answer:
        if self._given_up:
            raise Over
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        if self._envelope.traceparent is not None:
            headers["traceparent"] = self._envelope.traceparent
        try:
            content = msgspec.json.encode(body)
        except (TypeError, ValueError, RecursionError) as error:
            raise Refused(f"it cannot be written as JSON: {line_of(error)}") from None
        try:
            reply = await self._poster.post(f"{self._base_url}/{what}", headers, content, timeout_s)
        except Unreachable as error:
            raise _NotNow(str(error), 0.0) from None
        answer = self._judge(what, reply)
        self._token = answer.task_token or self._token
        return answer

    def _judge(self, what: str, reply: Reply) -> Answer:
        """The answer to an accepted call, or what to do about one that was not."""
        answer = _answer(reply.body)
        if 200 <= reply.status < 300 and answer is not None:
            return answer
        ours = answer is not None and bool(answer.error)
        told = f"{reply.status} {answer.error}: {answer.message}" if answer and ours else f"status {reply.status}"
        if reply.status in OVER or (reply.status in OVER_IF_OURS and ours):
            level = logging.INFO if reply.status in OVER else logging.ERROR
            log.log(level, "task %s, attempt %d is given up: %s", self._envelope.task_id, self._attempt, told)
            self._stop(False)
            raise Over(told)
        if 400 <= reply.status < 500 and reply.status not in BUSY | OVER_IF_OURS:
            raise Refused(told)
        raise _NotNow(f"{what} was answered with {told}", reply.retry_after_s)


class _NotNow(Exception):
    def __init__(self, message: str, asked_s: float) -> None:
        super().__init__(message)
        self.asked_s = asked_s


def refused_report(report: Completed, why: str) -> Completed:
    """What is told instead of a result that the engine does not take, such as one that is too large."""
    error = TaskError(
        category="DATA_QUALITY", message=clean(f"what came of it was refused: {why}", 1000), retryable=False
    )
    return Completed(attempt=report.attempt, worker_id=report.worker_id, outcome="FAILED", error=error)


def _answer(body: bytes) -> Answer | None:
    """An empty body says nothing more than its status. None: this is not what an engine says."""
    try:
        return decoded(_answer_of, body) if body.strip() else Answer()
    except Invalid:
        return None


def _jittered(seconds: float) -> float:
    """Workers that lost the same engine do not come back at the same moment."""
    return seconds * random.uniform(0.7, 1.0)  # noqa: S311
