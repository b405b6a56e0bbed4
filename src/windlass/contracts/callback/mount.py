"""Adds the callback contract to a server: its routes, and the loops that push tasks."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cached_property

from windlass.api.framework import mount
from windlass.api.framework.application import Application, Limits
from windlass.contracts.callback.delivery import PUSH
from windlass.contracts.callback.server.app import PREFIX, make_app
from windlass.contracts.callback.server.cloud_tasks import ENDPOINT, CloudTasksCarrier
from windlass.contracts.callback.server.options import PushOptions
from windlass.contracts.callback.server.push import Pusher
from windlass.contracts.callback.server.service import Service
from windlass.engine.engine import Engine
from windlass.errors import Forbidden, Invalid
from windlass.net.http import Unreachable
from windlass.net.push import resolve, split
from windlass.net.targets import Targets


class Mount(mount.Mount[PushOptions]):
    """The callback contract on an engine."""

    @cached_property
    def _callbacks(self) -> tuple[Service, Application]:
        return make_callbacks(self.engine, self.version)

    def applications(self) -> dict[mount.Prefix, Application]:
        return {PREFIX: self._callbacks[1]}

    def running(self, options: PushOptions, url: str) -> AbstractAsyncContextManager[None]:
        return pushing(self.engine, self._callbacks[0], options, url)


def make_callbacks(engine: Engine, version: str) -> tuple[Service, Application]:
    service = Service(engine, time.monotonic)
    limits = Limits(large_bytes=engine.parts.objects.room_bytes, advice=engine.parts.objects.advice)
    return service, make_app(service, engine.keys, version, limits)


@asynccontextmanager
async def pushing(engine: Engine, service: Service, options: PushOptions, url: str) -> AsyncIterator[None]:
    """Push tasks until the block ends. `url` is where the server listens."""
    pusher = make_pusher(engine, service, options, url)
    engine.queues.check_target = lambda target: check_target(target, options.allowed)
    await engine.listen()
    async with engine.parts.outgoing.carrying(PUSH, pusher.push):
        yield


def make_pusher(engine: Engine, service: Service, options: PushOptions, url: str) -> Pusher:
    carrier = CloudTasksCarrier(options.google_token, endpoint=options.google_url or ENDPOINT)
    base_url = options.callback_url or url
    return Pusher(engine, service, base_url, targets=options.allowed, secrets=options.secrets, cloud_tasks=carrier)


async def check_target(url: str, targets: Targets) -> None:
    """Raise Invalid for a URL that may not be called. A host name without an address is accepted: it may get one."""
    try:
        split(url)
        await resolve(url, targets)
    except (Forbidden, Invalid) as error:
        raise Invalid(error.message.removeprefix("url: "), field="delivery.url") from None
    except Unreachable:
        pass
