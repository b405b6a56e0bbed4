"""What a worker reports to the engine about one attempt: started, heartbeats, completed; one call at a time.

Runs in the worker's own loop thread, not in the event loop of the service. To repeat a call is harmless, to lose one is
not: each is sent until it is answered, with backoff. A 409 or 410 means that another worker has the task or that it is
over: then the handler is stopped, and nothing more is sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from windlass.contracts.callback.wire.envelope import Answer, Completed, Heartbeat, Started, TaskEnvelope, TaskError
from windlass.contracts.callback.worker.progress import LatestProgress
from windlass.core.text import clean, line_of
from windlass.errors import Invalid
from windlass.net.backoff import Backoff, Transient
from windlass.net.decode import decoded
from windlass.net.http import Reply
from windlass.net.http_threads import ThreadedClient

log = logging.getLogger("windlass.worker")

ANSWER_TIMEOUT_S = 10.0
PAUSE_S, PAUSE_MAX_S = 0.2, 15.0
RETRY_AFTER_MAX_S = 300.0
NEWS_EVERY_S = 1.0  # heartbeats that carry something new, between those that are due
OVER = frozenset({409, 410})
OVER_IF_OURS = frozenset({401, 403, 404})  # a proxy on the way may answer with these too
BUSY = frozenset({408, 425, 429})

_answer_of = msgspec.json.Decoder(Answer)


class Over(Exception):
    """The engine accepts no more reports about this attempt."""


class Refused(Exception):
    """The engine does not accept the report, and would not accept it later."""


class CallbackClient:
    """Reports one attempt. `on_stop` stops its handler: for a cancel (True), or because the attempt is lost."""

    def __init__(
        self,
        envelope: TaskEnvelope,
        http: ThreadedClient,
        *,
        worker: str,
        base_url: str,
        on_stop: Callable[[bool], None],
    ) -> None:
        self._envelope, self._http, self._worker, self._on_stop = envelope, http, worker, on_stop
        self._base_url = f"{base_url.rstrip('/')}/v1/tasks/{envelope.task_id}"
        self._token, self._attempt = envelope.task_token, envelope.attempt
        self._interval_s = envelope.heartbeat_interval_ms / 1000
        self._loop = asyncio.get_running_loop()
        self._next_heartbeat_at_s = self._last_heartbeat_at_s = 0.0
        self._heartbeat_backoff = Backoff(self._interval_s / 10, min(self._interval_s, PAUSE_MAX_S))
        self._heartbeat_failed = False
        self._changed = asyncio.Event()  # there is something new to send, or the handler has ended
        self.progress = LatestProgress(lambda: self._call_soon(self._changed.set))
        self._ended: Completed | None = None
        self._given_up = False

    # ----------------------------------------------------------------------------------------- from other threads

    def end(self, report: Completed) -> None:
        """The handler has ended with this report. Only the first one counts."""
        self._call_soon(self._set_ended, report)

    def give_up(self) -> None:
        """A newer attempt runs here: send nothing more about this one."""
        self._call_soon(self._set_ended, None)

    def _call_soon(self, call: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:
            log.debug("the loop is closed: not reporting attempt %d of task %s", self._attempt, self._envelope.task_id)

    # ----------------------------------------------------------------------------------------- reports

    async def start(self) -> None:
        """Raises Over if the engine refuses the start, or another process runs it: a push that was sent twice may have
        reached two processes of a service."""
        started = Started(attempt=self._attempt, worker_id=self._worker)
        answer = await self._report("started", started, with_heartbeats=False)
        if answer.worker_id not in (None, self._worker):
            log.info("task %s, attempt %d runs at %s", self._envelope.task_id, self._attempt, answer.worker_id)
            raise Over(f"the attempt runs at {answer.worker_id}")
        self._last_heartbeat_at_s = self._loop.time()
        self._next_heartbeat_at_s = self._last_heartbeat_at_s + self._interval_s

    async def finish(self) -> None:
        """Send heartbeats until the handler has ended, then its report. Raises Over if the engine refuses them."""
        while self._ended is None:
            await self._wait_for_heartbeat()
            if self._ended is None:
                await self._send_heartbeat()
        if self.progress.fresh:
            await self._send_heartbeat()
        try:
            await self._report("completed", self._ended)
        except Refused as refused:
            # Report a failure in place of the result, which may be too large.
            log.warning("the engine refused the outcome of task %s: %s", self._envelope.task_id, refused)
            message = clean(f"the outcome was refused: {refused}", 1000)
            error = TaskError(category="DATA_QUALITY", message=message, retryable=False)
            failed = Completed(attempt=self._attempt, worker_id=self._worker, outcome="FAILED", error=error)
            await self._report("completed", failed)

    def _set_ended(self, report: Completed | None) -> None:
        if report is None:
            self._given_up = True
        elif self._ended is None:
            self._ended = report
        self._changed.set()

    # ----------------------------------------------------------------------------------------- heartbeats

    async def _wait_for_heartbeat(self) -> None:
        """Wait until a heartbeat is due, or the handler has ended."""
        while self._ended is None and not self._given_up:
            left_s = self._due_at_s() - self._loop.time()
            if left_s <= 0:
                return
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._changed.wait()

    def _due_at_s(self) -> float:
        """New progress does not wait for the next regular heartbeat, unless the last one failed."""
        if not self.progress.fresh or self._heartbeat_failed:
            return self._next_heartbeat_at_s
        return min(self._next_heartbeat_at_s, self._last_heartbeat_at_s + NEWS_EVERY_S)

    async def _send_heartbeat(self) -> None:
        """Send one heartbeat, without retries, since the next one follows soon."""
        fields = self.progress.take()
        body = Heartbeat(attempt=self._attempt, worker_id=self._worker, **fields)
        began_s = self._last_heartbeat_at_s = self._loop.time()
        try:
            answer = await self._call("heartbeat", body, max(1.0, min(ANSWER_TIMEOUT_S, self._interval_s)))
        except Transient as error:
            self.progress.on_failed()
            self._heartbeat_failed = True
            self._next_heartbeat_at_s = self._loop.time() + self._heartbeat_backoff.next_s(error.retry_after_s)
            log.warning("the heartbeat of task %s failed: %s", self._envelope.task_id, error)
            return
        except Refused as refused:
            log.warning("the engine refused a heartbeat of task %s: %s", self._envelope.task_id, refused)
            answer = Answer()
        self._heartbeat_failed = False
        self._heartbeat_backoff.reset()
        self._next_heartbeat_at_s = began_s + self._interval_s
        self.progress.on_accepted(fields)
        if answer.should_cancel:
            self._on_stop(True)

    # ----------------------------------------------------------------------------------------- calls

    async def _report(self, what: str, body: msgspec.Struct, *, with_heartbeats: bool = True) -> Answer:
        """Call until it is answered. Heartbeats go on meanwhile, so that the attempt does not expire."""
        backoff = Backoff(PAUSE_S, PAUSE_MAX_S)
        while True:
            try:
                return await self._call(what, body, ANSWER_TIMEOUT_S)
            except Transient as error:
                log.warning("cannot report %s of task %s, trying again: %s", what, self._envelope.task_id, error)
                await self._pause(backoff.next_s(error.retry_after_s), with_heartbeats)

    async def _pause(self, seconds: float, with_heartbeats: bool) -> None:
        until_s = self._loop.time() + seconds
        while (left_s := until_s - self._loop.time()) > 0:
            heartbeat_in_s = self._next_heartbeat_at_s - self._loop.time()
            if not with_heartbeats or heartbeat_in_s > left_s:
                await asyncio.sleep(left_s)
            else:
                await asyncio.sleep(max(0.0, heartbeat_in_s))
                await self._send_heartbeat()
            if self._given_up:
                raise Over

    async def _call(self, what: str, body: msgspec.Struct, timeout_s: float) -> Answer:
        """Raises Transient, Refused or Over."""
        if self._given_up:
            raise Over
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        if self._envelope.traceparent is not None:
            headers["traceparent"] = self._envelope.traceparent
        try:
            content = msgspec.json.encode(body)
        except (TypeError, ValueError, RecursionError) as error:
            raise Refused(f"it cannot be written as JSON: {line_of(error)}") from None
        reply = await self._http.request(
            "POST", f"{self._base_url}/{what}", headers=headers, body=content, timeout_s=timeout_s
        )
        answer = self._judge(what, reply)
        self._token = answer.task_token or self._token
        return answer

    def _judge(self, what: str, reply: Reply) -> Answer:
        """The answer to an accepted call, or what to do about one that was not."""
        answer = _answer(reply.content)
        if 200 <= reply.status < 300 and answer is not None:
            return answer
        ours = answer is not None and bool(answer.error)
        problem = f"{reply.status} {answer.error}: {answer.message}" if answer and ours else f"status {reply.status}"
        if reply.status in OVER or (reply.status in OVER_IF_OURS and ours):
            level = logging.INFO if reply.status in OVER else logging.ERROR
            log.log(level, "giving up task %s, attempt %d: %s", self._envelope.task_id, self._attempt, problem)
            self._on_stop(False)
            raise Over(problem)
        if 400 <= reply.status < 500 and reply.status not in BUSY | OVER_IF_OURS:
            raise Refused(problem)
        raise Transient(f"{what} was answered with {problem}", reply.retry_after_s(RETRY_AFTER_MAX_S))


def _answer(body: bytes) -> Answer | None:
    """The answer of an engine; empty for an empty body. None if an engine did not write this."""
    try:
        return decoded(_answer_of, body) if body.strip() else Answer()
    except Invalid:
        return None
