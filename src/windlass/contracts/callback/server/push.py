"""Pushes attempts to their workers: the effect `push` of the outbox, over HTTP or through Google Cloud Tasks.

Each delivery has a new token and a new signature. Its id is made from the attempt, so that a worker recognises a
repeat. A busy worker is tried again after its Retry-After; the outbox retries one that cannot be reached.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime

import msgspec
from msgspec.structs import replace

from windlass.contracts.callback.delivery import Push
from windlass.contracts.callback.headers import fill_headers
from windlass.contracts.callback.rules import scope_of, token_life
from windlass.contracts.callback.server.envelope import make_envelope
from windlass.contracts.callback.server.service import Service
from windlass.contracts.callback.wire.names import dispatch_id
from windlass.core.delivery import QueueSettings
from windlass.core.states import Effect
from windlass.engine.engine import Engine
from windlass.engine.read.tasks import TaskView
from windlass.engine.send.outbox import NotNow, Undeliverable
from windlass.errors import Forbidden, Invalid, NotFound
from windlass.net.push import post
from windlass.net.retry_after import retry_after_s
from windlass.net.signature import signed_headers
from windlass.net.targets import Targets

ANSWER_TIMEOUT_S = 10.0
SLOWEST_BYTES_PER_S = 1024 * 1024
AT_ONCE_MAX = 64  # of a queue
FULL_AGAIN_S = 0.2
BUSY = frozenset({429, 503})
BUSY_AGAIN_S, BUSY_AGAIN_MAX_S = 1.0, 300.0
SECRET_LEAST = 6  # masking shorter values would damage ordinary text
NO_SECRETS: Mapping[str, str] = {}

Carrier = Callable[[Push, str, dict[str, str], bytes], Awaitable[None]]


class NotAccepted(Exception):
    """The worker did not accept the push."""


class Pusher:
    """The pushes of one engine. `base_url` is where workers call back, `targets` are the addresses that may be called,
    and headers may contain `secrets`."""

    def __init__(
        self,
        engine: Engine,
        service: Service,
        base_url: str,
        *,
        targets: Targets,
        secrets: Mapping[str, str] = NO_SECRETS,
        cloud_tasks: Carrier | None = None,
    ) -> None:
        self._engine, self._service, self._base_url = engine, service, base_url.rstrip("/")
        self._targets, self._secrets, self._cloud_tasks = targets, secrets, cloud_tasks
        self._in_flight: Counter[tuple[str, str]] = Counter()

    async def push(self, effect: Effect) -> None:
        """Push an attempt to its worker, unless the attempt no longer waits for it."""
        key = effect.namespace, str(effect.body["queue"])
        if self._in_flight[key] >= AT_ONCE_MAX:
            raise NotNow(f"{AT_ONCE_MAX} pushes of the queue are under way", FULL_AGAIN_S)
        self._in_flight[key] += 1
        try:
            await self._push(effect)
        finally:
            self._in_flight[key] -= 1
            if not self._in_flight[key]:
                del self._in_flight[key]

    async def _push(self, effect: Effect) -> None:
        outgoing = self._engine.parts.outgoing
        if not await outgoing.still_waits(effect):
            return
        settings, push = await outgoing.settings(effect, Push)
        try:
            view = await self._engine.tasks.get(effect.task_id)
        except NotFound:
            return
        try:  # put the results of other tasks into the payload that refers to them
            payload = await self._engine.payloads.whole(view.payload, view.task.namespace)
        except (Invalid, NotFound) as error:
            raise Undeliverable(error.message) from None
        now = await self._engine.parts.clock.about_now()
        message_id, headers, body = await self._message(replace(view, payload=payload), settings, push, now)
        if push.cloud_tasks is not None:
            if self._cloud_tasks is None:
                raise Undeliverable("Google Cloud Tasks is not configured on this server")
            await self._cloud_tasks(push, message_id, headers, body)
        else:
            await self._post(push.url, headers, body, now)
        await outgoing.delivered(effect, push.dispatch_timeout_ms / 1000)

    async def _message(
        self, view: TaskView, settings: QueueSettings, push: Push, now: datetime
    ) -> tuple[str, dict[str, str], bytes]:
        """The id, the headers and the body of a push."""
        task = view.task
        begins = now.replace(microsecond=0)
        scope = scope_of(task, begins, token_life(task, begins, push.token_ttl_seconds))
        token = (await self._service.tokens()).make(scope)
        checkpoint = await self._engine.checkpoint(task.id) if task.attempt > 1 else None
        body = msgspec.json.encode(make_envelope(view, push, scope, token, self._base_url, checkpoint))
        message_id = dispatch_id(task.id, task.run_id, task.attempt)
        secrets = self._engine.parts.secrets.signing_secrets(settings, task.namespace, task.queue)
        try:
            added = fill_headers(push.headers, self._secrets)
        except Invalid as error:
            raise NotAccepted(str(error)) from None
        headers = {"Content-Type": "application/json", "User-Agent": "windlass", **added}
        headers |= signed_headers(secrets, message_id, int(now.timestamp()), body)
        if task.trace is not None:
            headers["traceparent"] = task.trace
        return message_id, headers, body

    async def _post(self, url: str, headers: dict[str, str], body: bytes, now: datetime) -> None:
        """Raises NotAccepted or NotNow unless the worker accepts the push. Redirects are not followed."""
        try:
            timeout_s = ANSWER_TIMEOUT_S + len(body) / SLOWEST_BYTES_PER_S
            reply = await post(url, headers, body, timeout_s=timeout_s, targets=self._targets)
        except Forbidden as error:
            raise Undeliverable(error.message) from None
        if 200 <= reply.status < 300 or reply.status == 409:  # 409: the worker already has it
            return
        if reply.status in BUSY:
            header = reply.headers.get("retry-after")
            again_s = retry_after_s(header, now, most=BUSY_AGAIN_MAX_S, otherwise=BUSY_AGAIN_S)
            raise NotNow(f"the worker answered {reply.status}", again_s)
        answer = reply.body  # it is stored with the task, and may repeat the secrets of the request
        for secret in self._secrets.values():
            if len(secret) >= SECRET_LEAST:
                answer = answer.replace(secret.encode(), b"***")
        raise NotAccepted(f"the worker answered {reply.status}: {answer[:200].decode('utf-8', 'replace')}")
