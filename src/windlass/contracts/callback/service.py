"""The three callbacks, from what was sent to the answer. Knows no HTTP; `app` does.

The order of the checks is the contract's: the token, its scope, the body, then what the rules say of the task.
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

from windlass.contracts.callback.form import (
    CompletedAnswer,
    FinalState,
    HeartbeatAnswer,
    StartedAnswer,
    checked_worker,
    kept_json,
)
from windlass.core.callback import SKEW_MAX, Finish, Scope, cancel_reason
from windlass.core.check import LARGE_MAX_BYTES, check_payload, clean_json, clean_text
from windlass.core.error import Forbidden, Invalid, LeaseLost, NotFound
from windlass.core.failure import Category, Failure
from windlass.core.note import Amount, Line, Note
from windlass.core.report import final_state
from windlass.core.task import Outcome
from windlass.core.text import TEXT_MAX
from windlass.core.trace import is_traceparent
from windlass.core.transition import State
from windlass.engine.callback import Beat, Callbacks
from windlass.wire.decode import decoded_report
from windlass.wire.envelope import Completed, Heartbeat, Started, TaskError
from windlass.wire.id import parse_id
from windlass.wire.token import Tokens, UnknownKey

log = logging.getLogger("windlass.callback")

LEARN_AGAIN_S = 1.0
KEYS_FRESH_S = 60.0
T = TypeVar("T")

_OUTCOMES = {"SUCCEEDED": Outcome.SUCCEEDED, "FAILED": Outcome.FAILED, "CANCELLED": Outcome.CANCELLED}
_FINAL: dict[State, FinalState] = {
    State.SUCCEEDED: "SUCCEEDED",
    State.FAILED: "FAILED",
    State.CANCELLED: "CANCELLED",
}


@lru_cache(maxsize=20_000)
def _task_id(text: str) -> UUID | None:
    """Remembered, since a task sends the same with each heartbeat."""
    return parse_id("task", text)


class Saying(Struct):
    """One callback as it came in: whose token, which task, the body, the caller's trace."""

    scope: Scope
    task_id: UUID
    body: bytes
    trace: str | None


class Service:
    """The callbacks of one engine."""

    def __init__(self, callbacks: Callbacks, stopwatch: Callable[[], float]) -> None:
        self._callbacks, self._stopwatch = callbacks, stopwatch
        self._tokens: Tokens | None = None
        self._learnt_s = 0.0
        self._started = msgspec.json.Decoder(Started)
        self._heartbeat = msgspec.json.Decoder(Heartbeat)
        self._completed = msgspec.json.Decoder(Completed)
        self._usual: tuple[datetime | None, msgspec.Raw] = (None, msgspec.Raw())

    # ----------------------------------------------------------------------------------------- tokens

    async def tokens(self, fresh_s: float = KEYS_FRESH_S) -> Tokens:
        """The keys as they were at most a minute ago."""
        if self._tokens is None or self._stopwatch() - self._learnt_s > fresh_s:
            self._learnt_s = self._stopwatch()
            self._tokens = Tokens(await self._callbacks.token_keys())
        return self._tokens

    async def admit(self, token: str) -> Scope:
        """What a token is good for. One with a key that we do not know may be of a rotation elsewhere."""
        tokens = await self.tokens()
        try:
            return tokens.read(token)
        except UnknownKey:
            return (await self.tokens(LEARN_AGAIN_S)).read(token)

    def make_token(self, tokens: Tokens, scope: Scope, now: datetime) -> tuple[str, datetime]:
        """A token for the same, from now on."""
        begins = now.replace(microsecond=0)
        life = scope.expires_at - scope.not_before
        renewed = msgspec.structs.replace(scope, not_before=begins, expires_at=begins + life)
        return tokens.make(renewed), renewed.expires_at

    # ----------------------------------------------------------------------------------------- callbacks

    def known(self, token: str, task: str) -> Scope | None:
        """What a token is good for that was read a moment ago, if it is for this task."""
        if self._tokens is None or self._stopwatch() - self._learnt_s > KEYS_FRESH_S:
            return None
        scope = self._tokens.known(token)
        return scope if scope is not None and scope.task_id == _task_id(task) else None

    async def admitted(self, token: str, task: str) -> Scope:
        """The checks before the body is read. What fails fails in the order of the contract: an expired token is
        nothing but that."""
        scope = await self.admit(token)
        task_id = _task_id(task)
        if task_id == scope.task_id:
            return scope
        await self.check_time(scope)
        if task_id is None:
            raise NotFound(f"{task[:100]!r} is not an id of a task")
        raise Forbidden("the token is for another task")

    async def check_time(self, scope: Scope) -> None:
        """Raise Unauthenticated for a token that has expired."""
        scope.check_time(await self._callbacks.now())

    def saying(self, scope: Scope, body: bytes, trace: str | None) -> Saying:
        return Saying(scope, scope.task_id, body, trace if is_traceparent(trace) else None)

    async def started(self, said: Saying) -> StartedAnswer:
        form: Started = await self._read(said, self._started)
        beat = Beat(said.scope, form.attempt, checked_worker(form.worker_id), True, form.started_at, said.trace)
        heard = await self._callbacks.hear(beat)
        _watch_clock(form.worker_id, form.started_at, heard.now)
        first = UNSET if heard.worker in (None, form.worker_id) else heard.worker
        return StartedAnswer(server_time=heard.now, worker_id=first)

    async def heartbeat(self, said: Saying) -> HeartbeatAnswer | msgspec.Raw:
        form: Heartbeat = await self._read(said, self._heartbeat)
        noted = _says_more(form)
        beat = Beat(said.scope, form.attempt, form.worker_id, False, form.heartbeat_at, noted=noted)
        heard = await self._callbacks.hear(beat, partial(_note, said.task_id, form) if noted else None)
        token, expires_at = None, None
        if said.scope.half_over(heard.now):
            token, expires_at = self.make_token(await self.tokens(), said.scope, heard.now)
        elif heard.cancel is None:
            return self._usual_answer(heard.now)
        return HeartbeatAnswer(
            should_cancel=heard.cancel is not None,
            cancel_reason=UNSET if heard.cancel is None else cancel_reason(heard.cancel),
            server_time=heard.now,
            task_token=UNSET if token is None else token,
            token_expires_at=UNSET if expires_at is None else expires_at,
        )

    def _usual_answer(self, now: datetime) -> msgspec.Raw:
        """Those that were heard together are told the same, which is written once."""
        if self._usual[0] is not now:
            self._usual = now, msgspec.Raw(msgspec.json.encode(HeartbeatAnswer(server_time=now)))
        return self._usual[1]

    async def completed(self, said: Saying) -> CompletedAnswer:
        form: Completed = await self._read(said, self._completed)
        try:
            finish = _finish(said, form)
        except Invalid:
            await self.check_time(said.scope)
            raise
        try:
            task, now = await self._callbacks.finish(finish)
        except LeaseLost as error:
            log.warning("ignored: attempt %d of task %s by %s: %s", form.attempt, said.task_id, form.worker_id, error)
            raise
        _watch_clock(form.worker_id, form.completed_at, now)
        return CompletedAnswer(final_state=_FINAL[final_state(task)], server_time=now)

    async def _read(self, said: Saying, decoder: msgspec.json.Decoder[T]) -> T:
        try:
            form: Any = decoded_report(decoder, said.body, _only_text)
            checked_worker(form.worker_id)
        except Invalid:
            await self.check_time(said.scope)
            raise
        return form  # type: ignore[no-any-return]


def _only_text(form: object) -> bool:
    """Whether it holds text for people, and nothing that another task or attempt goes on from."""
    match form:
        case Heartbeat():
            return form.checkpoint is UNSET
        case Completed():
            return form.outcome != "SUCCEEDED"
    return False


def _watch_clock(worker: str, seen_at: datetime | None, now: datetime) -> None:
    """What a clock says decides nothing, but somebody should know that it is wrong."""
    if seen_at is not None and abs(seen_at - now) > SKEW_MAX:
        log.warning("the clock of worker %s is off by %.0f s", worker, (seen_at - now).total_seconds())


def _says_more(form: Heartbeat) -> bool:
    """Whether a heartbeat says anything besides being one."""
    told = form.progress_pct is not None or form.message is not None
    return told or form.checkpoint is not UNSET or bool(form.log)


def _note(task_id: UUID, form: Heartbeat, token: UUID) -> Note:
    """What a heartbeat says besides being one."""
    nothing = form.progress_pct is None and form.message is None
    amount = None if nothing else Amount(float(form.progress_pct or 0), _most(form), form.message or "")
    lines = tuple(Line(line.number, line.level, line.message, line.age_ms / 1000) for line in form.log)
    checkpoint = None if isinstance(form.checkpoint, msgspec.UnsetType) else bytes(form.checkpoint)
    return Note(task_id, form.attempt, token, amount, checkpoint, lines)


def _most(form: Heartbeat) -> float | None:
    """Of how much; unknown where only words were said."""
    return None if form.progress_pct is None else 100.0


def _finish(said: Saying, form: Completed) -> Finish:
    outcome = _OUTCOMES[form.outcome]
    told: dict[str, object] = {}
    if form.metrics is not None:
        told["metrics"] = msgspec.to_builtins(form.metrics)
    if form.cancelled_during_phase is not None:
        told["cancelledDuringPhase"] = clean_text("cancelledDuringPhase", form.cancelled_during_phase, 1000)
    if form.partial_progress is not UNSET:
        told["partialProgress"] = kept_json("partialProgress", form.partial_progress)
    if said.trace is not None:
        told["traceparent"] = said.trace
    result: bytes | None = None
    if not isinstance(form.output, msgspec.UnsetType):
        if outcome is Outcome.SUCCEEDED:
            result = bytes(form.output)
            check_payload("output", result, LARGE_MAX_BYTES)
        else:
            told["output"] = kept_json("output", form.output)
    failure = None if form.error is None else _failure(form.error)
    if failure is not None and outcome is Outcome.SUCCEEDED:
        told["error"] = clean_json(msgspec.to_builtins(form.error), TEXT_MAX)
    released = form.released and outcome is Outcome.FAILED
    return Finish(
        said.scope, form.attempt, form.worker_id, outcome, result, failure, told, form.completed_at, released=released
    )


def _failure(error: TaskError) -> Failure:
    return Failure(
        Category(error.category),
        error.message,
        error.reason or "",
        error.stack_trace or "",
        error.retryable,
        None if error.retry_after_ms is None else timedelta(milliseconds=error.retry_after_ms).total_seconds(),
    )
