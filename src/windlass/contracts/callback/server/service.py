"""Handles the three callbacks. Knows no HTTP; `app` does.

The contract gives the order of the checks: the token, its scope, the body, then the rules of the task.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import lru_cache, partial
from typing import Any, TypeVar
from uuid import UUID

import msgspec
from msgspec import UNSET, Struct

from windlass.contracts.callback.callbacks import CallbackHeartbeat, Callbacks
from windlass.contracts.callback.rules import Scope, cancel_reason
from windlass.contracts.callback.server.forms import (
    CompletedAnswer,
    FinalState,
    HeartbeatAnswer,
    StartedAnswer,
    checked_worker,
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
from windlass.core.validation import LARGE_MAX_BYTES, check_payload, clean_json, clean_text
from windlass.engine.engine import Engine
from windlass.errors import Forbidden, Invalid, LeaseLost, NotFound
from windlass.net.decode import decoded_report
from windlass.net.ids import parse_id

log = logging.getLogger("windlass.callback")

LEARN_AGAIN_S = 1.0
KEYS_FRESH_S = 60.0
T = TypeVar("T")

_OUTCOMES = {"SUCCEEDED": Outcome.SUCCEEDED, "FAILED": Outcome.FAILED, "CANCELLED": Outcome.CANCELLED}
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

    async def admit(self, token: str) -> Scope:
        """The scope of a token. An unknown key may come from a rotation on another server, so reload the keys once."""
        tokens = await self.tokens()
        try:
            return tokens.read(token)
        except UnknownKey:
            return (await self.tokens(LEARN_AGAIN_S)).read(token)

    def make_token(self, tokens: Tokens, scope: Scope, now: datetime) -> tuple[str, datetime]:
        """A token with the same scope and lifetime that starts now."""
        begins = now.replace(microsecond=0)
        life = scope.expires_at - scope.not_before
        renewed = msgspec.structs.replace(scope, not_before=begins, expires_at=begins + life)
        return tokens.make(renewed), renewed.expires_at

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
        scope = await self.admit(token)
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
        heartbeat = CallbackHeartbeat(
            request.scope.naming(form.attempt), checked_worker(form.worker_id), True, form.started_at, request.trace
        )
        answer = await self._callbacks.heartbeat(heartbeat)
        _watch_clock(form.worker_id, form.started_at, answer.now)
        first = UNSET if answer.worker in (None, form.worker_id) else answer.worker
        return StartedAnswer(server_time=answer.now, worker_id=first)

    async def heartbeat(self, request: CallbackRequest) -> HeartbeatAnswer | msgspec.Raw:
        form: Heartbeat = await self._read(request, self._heartbeat)
        noted = _has_progress(form)
        heartbeat = CallbackHeartbeat(
            request.scope.naming(form.attempt), form.worker_id, False, form.heartbeat_at, with_progress=noted
        )
        answer = await self._callbacks.heartbeat(heartbeat, partial(_note, request.task_id, form) if noted else None)
        token, expires_at = None, None
        if request.scope.half_over(answer.now):
            token, expires_at = self.make_token(await self.tokens(), request.scope, answer.now)
        elif answer.cancel is None:
            return self._usual_answer(answer.now)
        return HeartbeatAnswer(
            should_cancel=answer.cancel is not None,
            cancel_reason=UNSET if answer.cancel is None else cancel_reason(answer.cancel),
            server_time=answer.now,
            task_token=UNSET if token is None else token,
            token_expires_at=UNSET if expires_at is None else expires_at,
        )

    def _usual_answer(self, now: datetime) -> msgspec.Raw:
        """The answer without a cancel or a token. Heartbeats of one commit share it, so it is encoded once."""
        if self._usual[0] is not now:
            self._usual = now, msgspec.Raw(msgspec.json.encode(HeartbeatAnswer(server_time=now)))
        return self._usual[1]

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
            checked_worker(form.worker_id)
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


def _has_progress(form: Heartbeat) -> bool:
    """Whether a heartbeat carries progress, a message, a checkpoint or log lines."""
    amount = form.progress_pct is not None or form.message is not None
    return amount or form.checkpoint is not UNSET or bool(form.log)


def _note(task_id: UUID, form: Heartbeat, token: UUID) -> ProgressReport:
    """The progress, checkpoint and log lines of a heartbeat."""
    nothing = form.progress_pct is None and form.message is None
    amount = None if nothing else Amount(float(form.progress_pct or 0), _most(form), form.message or "")
    lines = tuple(Line(line.number, line.level, line.message, line.age_ms / 1000) for line in form.log)
    checkpoint = None if isinstance(form.checkpoint, msgspec.UnsetType) else bytes(form.checkpoint)
    return ProgressReport(task_id, form.attempt, token, amount, checkpoint, lines)


def _most(form: Heartbeat) -> float | None:
    """The total, or None if the heartbeat has only a message."""
    return None if form.progress_pct is None else 100.0


def _report(request: CallbackRequest, form: Completed) -> AttemptReport[Scope]:
    outcome = _OUTCOMES[form.outcome]
    detail: dict[str, object] = {}
    if form.metrics is not None:
        detail["metrics"] = _given(form.metrics)
    if form.cancelled_during_phase is not None:
        detail["cancelled_during_phase"] = clean_text("cancelledDuringPhase", form.cancelled_during_phase, 1000)
    if form.partial_progress is not UNSET:
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
        None if error.retry_after_ms is None else timedelta(milliseconds=error.retry_after_ms).total_seconds(),
    )
