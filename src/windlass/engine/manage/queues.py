"""Queues for operators: settings, counts of tasks, pause, resume, drain."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from windlass.core.delivery import Delivery, QueueSettings, RetryForm, checked_delivery, policy_of, type_of
from windlass.core.queue import QueueConfig, QueueName, check_config
from windlass.core.retry import DEFAULT_POLICY, Policy
from windlass.core.states import State
from windlass.core.validation import check_name, check_type
from windlass.engine.secrets import Secrets
from windlass.errors import NotFound
from windlass.store.store import Store

SECRET_BYTES = 32
SECRET_OVERLAP_S = 86400.0
DRAIN_CHECK_S = 0.1

D = TypeVar("D", bound=Delivery)


class QueueView(msgspec.Struct, frozen=True):
    """A queue: its settings, and the number of its tasks in each state (successes left out)."""

    name: str
    settings: QueueSettings
    counts: dict[State, int]


class Queues:
    """The queues of one database."""

    def __init__(
        self,
        store: Store,
        secrets: Secrets,
        *,
        pause: Callable[[float], Awaitable[None]],
        stopwatch: Callable[[], float],
    ) -> None:
        self._store, self._secrets, self._pause, self._stopwatch = store, secrets, pause, stopwatch
        self.check_target: Callable[[str], Awaitable[None]] = _anywhere

    async def put(
        self,
        queue: str,
        *,
        namespace: str = "default",
        delivery: Delivery,
        retry: RetryForm | None = None,
        limits: QueueConfig,
        paused: bool | None = None,
    ) -> QueueView:
        """Replace the settings of a queue. It stays paused or not, unless `paused` is given."""
        check_name("queue", queue)
        check_name("namespace", namespace)
        check_config(limits)
        delivery = checked_delivery(delivery)
        if delivery.target_url is not None:
            await self.check_target(delivery.target_url)
        secret = self._new_secret(namespace, queue) if delivery.signed else None
        async with self._store.begin() as tx:
            known = await tx.queues.lock_queue(namespace, queue)
            config = replace(limits, paused=known.paused if paused is None else paused)
            await tx.set_up(namespace, queue, QueueSettings(config, delivery, policy_of(retry, delivery), secret))
        return await self.get(queue, namespace=namespace)

    def _new_secret(self, namespace: str, queue: str) -> str:
        """A new secret in the format of Standard Webhooks, as it is stored."""
        secret = "whsec_" + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()
        return self._secrets.seal_text(secret, namespace, queue)

    async def rotate_secret(
        self, queue: str, *, namespace: str = "default", overlap_s: float = SECRET_OVERLAP_S
    ) -> QueueView:
        """Make a new secret that signs pushes and calls. The one before signs them too, for `overlap_s`."""
        async with self._store.begin() as tx:
            await tx.queues.lock_queue(namespace, queue)
            known = (await tx.queues.get_settings(namespace, [queue])).get(queue)
            if known is None or not known.delivery.signed:
                raise NotFound(f"there is no queue {queue} in {namespace} that pushes or calls a URL")
            await tx.heartbeats.rotate_secret(namespace, queue, self._new_secret(namespace, queue), overlap_s)
            tx.wakes.everything = True
        return await self.get(queue, namespace=namespace)

    async def get(self, queue: str, *, namespace: str = "default") -> QueueView:
        """Raises NotFound if the queue was never configured and nothing waits, runs or has failed in it."""
        async with self._store.views() as views:
            settings = (await views.queue_settings(namespace, [queue])).get(queue)
            counts = (await views.count_unfinished(namespace)).get(queue)
        if settings is None and counts is None:
            raise NotFound(f"there is no queue {queue} in {namespace}")
        return QueueView(queue, settings or QueueSettings(), counts or {})

    async def list(self, namespace: str = "default") -> list[QueueView]:
        """The queues that were configured or have tasks, by name."""
        async with self._store.views() as views:
            settings = await views.queue_settings(namespace)
            counts = await views.count_unfinished(namespace)
        names = sorted(settings.keys() | counts.keys())
        return [QueueView(name, settings.get(name, QueueSettings()), counts.get(name, {})) for name in names]

    async def settings(self, namespace: str, queues: Sequence[str]) -> dict[str, QueueSettings]:
        """The settings of those of these queues that were configured."""
        async with self._store.views() as views:
            return await views.queue_settings(namespace, queues)

    async def delivery(self, queue: str, kind: type[D], *, namespace: str = "default") -> D | None:
        """The delivery of this queue, if it is of this kind."""
        known = (await self.settings(namespace, [queue])).get(queue)
        return known.delivery if known is not None and isinstance(known.delivery, kind) else None

    async def delivered(self, kind: type[D]) -> dict[QueueName, D]:
        """The deliveries of this kind, by queue, in all namespaces."""
        async with self._store.views() as views:
            known = await views.queues_delivered([type_of(kind)])
        return {name: settings.delivery for name, settings in known.items() if isinstance(settings.delivery, kind)}

    async def policy(self, queue: str, *, namespace: str = "default") -> Policy:
        """The policy of tasks in this queue that have none of their own."""
        known = (await self.settings(namespace, [queue])).get(queue)
        return DEFAULT_POLICY if known is None else known.policy

    async def pause(self, queue: str, *, namespace: str = "default", paused: bool = True) -> QueueView:
        """Stop (or resume) claims. Running tasks go on."""
        check_name("queue", queue)
        check_name("namespace", namespace)
        check_type("paused", paused, bool)
        async with self._store.begin() as tx:
            known = await tx.queues.lock_queue(namespace, queue)
            await tx.configure(namespace, queue, replace(known, paused=paused))
        return await self.get(queue, namespace=namespace)

    async def drain(self, queue: str, *, namespace: str = "default", wait_s: float = 0.0) -> QueueView:
        """Pause the queue, then wait at most `wait_s` until nothing runs in it."""
        until_s = self._stopwatch() + wait_s
        view = await self.pause(queue, namespace=namespace)
        while view.counts.get(State.RUNNING) and self._stopwatch() < until_s:
            await self._pause(DRAIN_CHECK_S)
            view = await self.get(queue, namespace=namespace)
        return view


async def _anywhere(_url: str) -> None:
    """Allows every URL: an engine that sends nothing leaves the check to those that do."""
