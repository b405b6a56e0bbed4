"""Handles the three callbacks. Knows no HTTP; `app` does.

The contract gives the order of the checks: the token, its scope, the body, then the rules of the task.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache, partial
from typing import Any, TypeVar
from uuid import UUID

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from windlass.contracts.callback.callbacks import CallbackHeartbeat, Callbacks
from windlass.contracts.callback.rules import Scope
from windlass.contracts.callback.server.forms import (
    CompletedAnswer,
    FinalState,
    HeartbeatAnswer,
    StartedAnswer,
    kept_json,
)
from windlass.contracts.callback.wire.envelope import Completed, Heartbeat, Started, TaskError
from windlass.contracts.callback.wire.token import Tokens, UnknownKey
from windlass.core.attempt import SKEW_MAX, AttemptReport, final_state
from windlass.core.failure import Category, Failure
from windlass.core.progress import Amount, Line, ProgressReport
from windlass.core.states import State
from windlass.core.task import Outcome
from windlass.core.text import TEXT_MAX
from windlass.core.validation import LARGE_MAX_BYTES, check_name, check_payload, clean_json, clean_text
from windlass.engine.engine import Engine
from windlass.errors import Forbidden, Invalid, LeaseLost, NotFound
from windlass.net.decode import decoded_report
from windlass.net.ids import parse_id

log = logging.getLogger("windlass.callback")

LEARN_AGAIN_S = 1.0
KEYS_FRESH_S = 60.0
T = TypeVar("T")

_FINAL: dict[State, FinalState] = {
    State.SUCCEEDED: "SUCCEEDED",
    State.FAILED: "FAILED",
    State.CANCELLED: "CANCELLED",
    State.SKIPPED: "CANCELLED",
}


@lru_cache(maxsize=20_000)
def _task_id(text: str) -> UUID | None:
    """Cached, since every heartbeat of a task has the same id."""
    return parse_id("task", text)


class CallbackRequest(Struct):
    """One callback: the scope of its token, its task, its body, the trace of its caller."""

    scope: Scope
    task_id: UUID
    body: bytes
    trace: str | None


class Service:
    """The callbacks of one engine."""

    def __init__(self, engine: Engine, stopwatch: Callable[[], float]) -> None:
        self._callbacks, self._stopwatch = engine.service(Callbacks), stopwatch
        self._clock, self._token_keys = engine.parts.clock, engine.parts.token_keys
        self._tokens: Tokens | None = None
        self._learnt_s = 0.0
        self._started = msgspec.json.Decoder(Started)
        self._heartbeat = msgspec.json.Decoder(Heartbeat)
        self._completed = msgspec.json.Decoder(Completed)
        self._usual: tuple[datetime | None, msgspec.Raw] = (None, msgspec.Raw())

    # ----------------------------------------------------------------------------------------- tokens

    async def tokens(self, fresh_s: float = KEYS_FRESH_S) -> Tokens:
        """The keys, at most a minute old."""
        if self._tokens is None or self._stopwatch() - self._learnt_s > fresh_s:
            self._learnt_s = self._stopwatch()
            self._tokens = Tokens(await self._token_keys.all())
        return self._tokens

    # ----------------------------------------------------------------------------------------- callbacks

    def known(self, token: str, task: str) -> Scope | None:
        """The scope of a token that was verified before, if it is for this task."""
        if self._tokens is None or self._stopwatch() - self._learnt_s > KEYS_FRESH_S:
            return None
        scope = self._tokens.known(token)
        return scope if scope is not None and scope.task_id == _task_id(task) else None

    async def admitted(self, token: str, task: str) -> Scope:
        """Check the token before the body is read, in the order of the contract: an expired token is refused as
        expired, even if it is for another task."""
        tokens = await self.tokens()
        try:
            scope = tokens.read(token)
        except UnknownKey:  # it may come from a rotation on another server, so reload the keys once
            scope = (await self.tokens(LEARN_AGAIN_S)).read(token)
        task_id = _task_id(task)
        if task_id == scope.task_id:
            return scope
        await self.check_time(scope)
        if task_id is None:
            raise NotFound(f"{task[:100]!r} is not a task id")
        raise Forbidden("the token is for another task")

    async def check_time(self, scope: Scope) -> None:
        """Raise Unauthenticated for a token that has expired."""
        scope.check_time(await self._clock.now())

    async def started(self, request: CallbackRequest) -> StartedAnswer:
        form: Started = await self._read(request, self._started)
        scope = request.scope.naming(form.attempt)
        heartbeat = CallbackHeartbeat(scope, form.worker_id, True, form.started_at, request.trace)
        answer = await self._callbacks.heartbeat(heartbeat)
        _watch_clock(form.worker_id, form.started_at, answer.now)
        first = UNSET if answer.worker in (None, form.worker_id) else answer.worker
        return StartedAnswer(server_time=answer.now, worker_id=first)

    async def heartbeat(self, request: CallbackRequest) -> HeartbeatAnswer | msgspec.Raw:
        form: Heartbeat = await self._read(request, self._heartbeat)
        scope = request.scope
        with_progress = (
            form.progress_pct is not None or form.message is not None or form.checkpoint is not UNSET or bool(form.log)
        )
        answer = await self._callbacks.heartbeat(
            CallbackHeartbeat(
                scope.naming(form.attempt), form.worker_id, False, form.heartbeat_at, with_progress=with_progress
            ),
            partial(_note, request.task_id, form) if with_progress else None,
        )
        now, renew = answer.now, scope.half_over(answer.now)
        if answer.cancel is None and not renew:  # heartbeats of one commit share this answer, so it is encoded once
            if self._usual[0] is not now:
                self._usual = now, msgspec.Raw(msgspec.json.encode(HeartbeatAnswer(server_time=now)))
            return self._usual[1]
        reply = HeartbeatAnswer(server_time=now)
        if answer.cancel is not None:
            reply = replace(reply, should_cancel=True, cancel_reason=answer.cancel.reason or "user_requested")
        if renew:  # the same scope and lifetime, from now on
            begins = now.replace(microsecond=0)
            expires_at = begins + (scope.expires_at - scope.not_before)
            token = (await self.tokens()).make(replace(scope, not_before=begins, expires_at=expires_at))
            reply = replace(reply, task_token=token, token_expires_at=expires_at)
        return reply

    async def completed(self, request: CallbackRequest) -> CompletedAnswer:
        form: Completed = await self._read(request, self._completed)
        try:
            report = _report(request, form)
        except Invalid:
            await self.check_time(request.scope)
            raise
        try:
            task, now = await self._callbacks.finish(report)
        except LeaseLost as error:
            log.warning(
                "report refused: attempt %d of task %s by %s: %s", form.attempt, request.task_id, form.worker_id, error
            )
            raise
        _watch_clock(form.worker_id, form.completed_at, now)
        return CompletedAnswer(final_state=_FINAL[final_state(task)], server_time=now)

    async def _read(self, request: CallbackRequest, decoder: msgspec.json.Decoder[T]) -> T:
        try:
            form: Any = decoded_report(decoder, request.body, _only_text)
            check_name("workerId", form.worker_id)
        except Invalid:
            await self.check_time(request.scope)
            raise
        return form  # type: ignore[no-any-return]


def _only_text(form: object) -> bool:
    """Whether the request holds text for people only, and no data that a task or attempt uses later."""
    match form:
        case Heartbeat():
            return form.checkpoint is UNSET
        case Completed():
            return form.outcome != "SUCCEEDED"
    return False


def _watch_clock(worker: str, worker_time: datetime | None, now: datetime) -> None:
    """Log a wrong clock. Worker times decide nothing, but an operator should know."""
    if worker_time is not None and abs(worker_time - now) > SKEW_MAX:
        log.warning("the clock of worker %s is off by %.0f s", worker, (worker_time - now).total_seconds())


def _note(task_id: UUID, form: Heartbeat, token: UUID) -> ProgressReport:
    """The progress, checkpoint and log lines of a heartbeat."""
    amount = None
    if form.progress_pct is not None or form.message is not None:
        total = None if form.progress_pct is None else 100.0
        amount = Amount(float(form.progress_pct or 0), total, form.message or "")
    lines = tuple(Line(line.number, line.level, line.message, line.age_ms / 1000) for line in form.log)
    checkpoint = None if isinstance(form.checkpoint, msgspec.UnsetType) else bytes(form.checkpoint)
    return ProgressReport(task_id, form.attempt, token, amount, checkpoint, lines)


def _report(request: CallbackRequest, form: Completed) -> AttemptReport[Scope]:
    outcome = Outcome[form.outcome]
    detail: dict[str, object] = {}
    if form.metrics is not None:
        detail["metrics"] = _given(form.metrics)
    if form.cancelled_during_phase is not None:
        detail["cancelled_during_phase"] = clean_text("cancelledDuringPhase", form.cancelled_during_phase, 1000)
    if not isinstance(form.partial_progress, msgspec.UnsetType):
        detail["partial_progress"] = kept_json("partialProgress", form.partial_progress)
    if request.trace is not None:
        detail["traceparent"] = request.trace
    result: bytes | None = None
    if not isinstance(form.output, msgspec.UnsetType):
        if outcome is Outcome.SUCCEEDED:
            result = bytes(form.output)
            check_payload("output", result, LARGE_MAX_BYTES)
        else:
            detail["output"] = kept_json("output", form.output)
    failure = None if form.error is None else _failure(form.error)
    if failure is not None and outcome is Outcome.SUCCEEDED:
        detail["error"] = clean_json(_given(form.error), TEXT_MAX)
    released = form.released and outcome is Outcome.FAILED
    return AttemptReport(
        request.scope.naming(form.attempt),
        outcome,
        result,
        failure,
        form.worker_id,
        detail,
        form.completed_at,
        released,
    )


def _given(part: Struct | None) -> dict[str, object]:
    """The fields that a worker has set, by our names."""
    return {} if part is None else {k: value for k, value in msgspec.structs.asdict(part).items() if value is not None}


def _failure(error: TaskError) -> Failure:
    return Failure(
        Category(error.category),
        error.message,
        error.reason or "",
        error.stack_trace or "",
        error.retryable,
        None if error.retry_after_ms is None else error.retry_after_ms / 1000,
    )
