"""Calls functions: the effect `invoke` of the outbox. The call carries the lease and the task of one attempt, and the
function reports over `/internal` like any worker.

A function is called once for each attempt, unless the answer to a call is lost: then the call is repeated with the same
idempotency key. What the function returns is ignored.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

import msgspec

from windlass.contracts.lease.delivery import Invoke
from windlass.contracts.lease.server.forms import details
from windlass.core.delivery import type_of
from windlass.core.lease_token import delivery_of
from windlass.core.states import Effect
from windlass.core.task import Task
from windlass.datasets.inputs import JobInputs
from windlass.datasets.rules.events import scratch_of
from windlass.engine.engine import Engine
from windlass.engine.read.tasks import TaskView
from windlass.engine.send.outbox import NotNow, Undeliverable
from windlass.errors import Forbidden, Invalid, NotFound
from windlass.net.push import post
from windlass.net.retry_after import retry_after_s
from windlass.net.signature import signed_headers
from windlass.net.targets import Targets

INVOKE = type_of(Invoke)
ANSWER_TIMEOUT_S = 10.0
BUSY = frozenset({429, 503})
BUSY_AGAIN_S, BUSY_AGAIN_MAX_S = 1.0, 300.0

CallFunction = Callable[[str, bytes], Awaitable[None]]
"""Calls a function of AWS Lambda by its name or ARN. Raises NotNow if it is busy, and Undeliverable if another try will
not help."""


class NotAccepted(Exception):
    """The function refused the call."""


class Invoker:
    """Calls the functions of one engine. `targets` says which URLs are allowed; without `call_function` it calls no
    Lambda."""

    def __init__(
        self, engine: Engine, *, scratch_uri: str, targets: Targets, call_function: CallFunction | None = None
    ) -> None:
        self._engine, self._scratch_uri, self._targets = engine, scratch_uri, targets
        self._call_function = call_function

    async def invoke(self, effect: Effect) -> None:
        """Call the function of one attempt, unless it has sent a heartbeat already."""
        sent = self._engine.parts.outgoing
        if not await sent.still_waits(effect):
            return
        if (await self._engine.tasks.last_report(effect.task_id)).last_heartbeat_at:
            return  # the function runs, though its answer was lost
        settings, invoke = await sent.settings(effect, Invoke)
        try:
            view = await self._engine.tasks.get(effect.task_id)
        except NotFound:
            return
        if view.task.attempt != effect.attempt or delivery_of(view.task.lease_id) != INVOKE:
            return  # a newer attempt has begun, whose token is not for this function
        now = await self._engine.parts.clock.about_now()
        body = await self._payload(view, invoke, now)
        if invoke.function is not None:
            if self._call_function is None:
                raise NotNow("this server is not set up for AWS; another may be", BUSY_AGAIN_S)
            await self._call_function(invoke.function, body)
        else:
            assert invoke.url is not None, invoke
            secrets = self._engine.parts.secrets.signing_secrets(settings, view.task.namespace, view.task.queue)
            await self._post(invoke.url, body, _headers(effect, secrets, now, body, view.task.trace))
        await sent.delivered(effect, _lease_s(view.task, invoke))

    async def _payload(self, view: TaskView, invoke: Invoke, now: datetime) -> bytes:
        try:
            payload = await self._engine.payloads.whole(view.payload, view.task.namespace)
        except (Invalid, NotFound) as error:
            raise Undeliverable(error.message) from None
        task, wire = view.task, view.wire
        if task.job_id is not None and wire is not None:
            wire = (await self._engine.service(JobInputs).begin(task, wire)).wire
        fields = {
            **details(task, payload, wire),
            "lease_token": task.lease_id,
            "lease_expires_at": now + timedelta(seconds=_lease_s(task, invoke)),
            "scratch_uri": scratch_of(self._scratch_uri, task.id, task.attempt),
        }
        return msgspec.json.encode({name: value for name, value in fields.items() if value is not msgspec.UNSET})

    async def _post(self, url: str, body: bytes, headers: dict[str, str]) -> None:
        try:
            reply = await post(url, headers, body, timeout_s=ANSWER_TIMEOUT_S, targets=self._targets)
        except Forbidden as error:
            raise Undeliverable(error.message) from None
        if reply.status in BUSY:
            wanted, now = reply.headers.get("retry-after"), reply.headers.get("date")
            again_s = retry_after_s(wanted, now, most=BUSY_AGAIN_MAX_S, otherwise=BUSY_AGAIN_S)
            raise NotNow(f"the function answered {reply.status}", again_s)
        if not 200 <= reply.status < 300 and reply.status != 409:
            text = reply.body[:200].decode("utf-8", "replace")
            raise NotAccepted(f"the function answered {reply.status}: {text}")


def _lease_s(task: Task, invoke: Invoke) -> float:
    """How long the function may be silent: as the task says, else its queue."""
    return invoke.lease_ms / 1000 if task.policy.lease_s is None else task.policy.lease_s


def _headers(effect: Effect, secrets: list[str], now: datetime, body: bytes, trace: str | None) -> dict[str, str]:
    """Signed like pushes, because a call carries a lease and only the engine may hand out work. Each repeat has the
    same id and its own time."""
    headers = {"Content-Type": "application/json", "User-Agent": "windlass", "Idempotency-Key": str(effect.id)}
    if trace is not None:
        headers["traceparent"] = trace
    return headers | (signed_headers(secrets, str(effect.id), int(now.timestamp()), body) if secrets else {})
