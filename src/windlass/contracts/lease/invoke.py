"""Calls functions: the effect `invoke` of the outbox. The engine holds the lease of the attempt, and the function gets
all that it needs to run and to report; it does so over `/internal`, like any worker.

A function is called once for each attempt, as far as that is in our hands: an answer that was lost is a call that is
made again, with the same key. What it returns is not looked at.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

import msgspec

from windlass.contracts.lease.form import details
from windlass.core.dataset import scratch_of
from windlass.core.delivery import Invoke, type_of
from windlass.core.error import Forbidden, Invalid, NotFound
from windlass.core.target import Targets
from windlass.core.token import delivery_of
from windlass.core.transition import Effect
from windlass.engine.engine import Engine
from windlass.engine.outbox import NotNow, Undeliverable
from windlass.engine.view import TaskView
from windlass.wire.post import post
from windlass.wire.retry_after import retry_after_s
from windlass.wire.signature import signed_headers

INVOKE = type_of(Invoke)
ANSWER_TIMEOUT_S = 10.0
BUSY = frozenset({429, 503})
BUSY_AGAIN_S, BUSY_AGAIN_MAX_S = 1.0, 300.0

CallFunction = Callable[[str, bytes], Awaitable[None]]
"""Calls a function of AWS Lambda by its name or ARN. Raises NotNow where it is busy, Undeliverable where asking again
will not help."""


class NotTaken(Exception):
    """The function did not take it."""


class Invoker:
    """The calls of one engine. `targets` may be called; without `call_function` no Lambda is
    called."""

    def __init__(
        self, engine: Engine, *, scratch_uri: str, targets: Targets, call_function: CallFunction | None = None
    ) -> None:
        self._engine, self._scratch_uri, self._targets = engine, scratch_uri, targets
        self._call_function = call_function

    async def invoke(self, effect: Effect) -> None:
        """Call the function of one attempt, if nobody was heard of it yet."""
        sent = self._engine.sent
        if not await sent.still_waits(effect) or (await self._engine.views.told(effect.task_id)).last_heartbeat_at:
            return  # it is over, or the function runs, though its answer was lost
        settings, invoke = await sent.settings(effect, Invoke)
        try:
            view = await self._engine.views.get(effect.task_id)
        except NotFound:
            return
        if view.task.attempt != effect.attempt or delivery_of(view.task.lease_id) != INVOKE:
            return  # a newer attempt has begun, whose token is not for this function
        now = await self._engine.callbacks.about_now()
        body = await self._payload(view, invoke, now)
        if invoke.function is not None:
            if self._call_function is None:
                raise NotNow("this server does not reach AWS; another may", BUSY_AGAIN_S)
            await self._call_function(invoke.function, body)
        else:
            assert invoke.url is not None, invoke
            secrets = self._engine.secrets.signing_secrets(settings, view.task.namespace, view.task.queue)
            await self._post(invoke.url, body, _headers(effect, secrets, now, body, view.task.trace))
        await sent.delivered(effect, invoke.lease_ms / 1000)

    async def _payload(self, view: TaskView, invoke: Invoke, now: datetime) -> bytes:
        try:
            payload = await self._engine.payloads.whole(view.payload, view.task.namespace)
        except (Invalid, NotFound) as error:
            raise Undeliverable(error.message) from None
        task = view.task
        return msgspec.json.encode(
            {
                **{
                    name: value
                    for name, value in details(task, payload, view.wire).items()
                    if value is not msgspec.UNSET
                },
                "lease_token": task.lease_id,
                "lease_expires_at": now + timedelta(milliseconds=invoke.lease_ms),
                "scratch_uri": scratch_of(self._scratch_uri, task.id, task.attempt),
            }
        )

    async def _post(self, url: str, body: bytes, headers: dict[str, str]) -> None:
        try:
            reply = await post(url, headers, body, timeout_s=ANSWER_TIMEOUT_S, targets=self._targets)
        except Forbidden as error:
            raise Undeliverable(error.message) from None
        if reply.status in BUSY:
            asked, now = reply.headers.get("retry-after"), reply.headers.get("date")
            again_s = retry_after_s(asked, now, most=BUSY_AGAIN_MAX_S, otherwise=BUSY_AGAIN_S)
            raise NotNow(f"the function answered {reply.status}", again_s)
        if not 200 <= reply.status < 300 and reply.status != 409:
            told = reply.body[:200].decode("utf-8", "replace")
            raise NotTaken(f"the function answered {reply.status}: {told}")


def _headers(effect: Effect, secrets: list[str], now: datetime, body: bytes, trace: str | None) -> dict[str, str]:
    """Signed as pushes are: a call carries the lease of a task, and nobody else may hand out work. Each repeat has the
    same id, and the time at which it is sent."""
    headers = {"Content-Type": "application/json", "User-Agent": "windlass", "Idempotency-Key": str(effect.id)}
    if trace is not None:
        headers["traceparent"] = trace
    return headers | (signed_headers(secrets, str(effect.id), int(now.timestamp()), body) if secrets else {})
