"""Puts the callback contract on an engine: its routes beside our API, and the loops that send tasks out."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from windlass.contracts.callback.app import CallbackApp
from windlass.contracts.callback.cloud_tasks import ENDPOINT, CloudTasksCarrier, MetadataToken
from windlass.contracts.callback.option import PushOptions
from windlass.contracts.callback.push import Pusher
from windlass.contracts.callback.service import Service
from windlass.core.delivery import PUSH
from windlass.core.error import Forbidden, Invalid
from windlass.core.target import Targets
from windlass.engine.engine import Engine
from windlass.wire.post import Unreachable, resolve, split


def make_callbacks(engine: Engine, version: str) -> tuple[Service, CallbackApp]:
    service = Service(engine.callbacks, time.monotonic)
    objects = engine.objects
    return service, CallbackApp(service, engine.access.identify, version, objects.room_bytes, objects.advice)


@asynccontextmanager
async def pushing(engine: Engine, service: Service, options: PushOptions, url: str) -> AsyncIterator[None]:
    """Send tasks out until the block ends. `url` is where we listen."""
    pusher = make_pusher(engine, service, options, url)
    engine.queues.check_target = lambda target: check_target(target, options.allowed)
    await engine.hear()
    async with engine.sent.carrying(PUSH, pusher.push):
        yield


def make_pusher(engine: Engine, service: Service, options: PushOptions, url: str) -> Pusher:
    token = options.google_token

    async def fixed_token() -> str:
        return token or ""

    access = fixed_token if token is not None else MetadataToken(time.monotonic)
    carrier = CloudTasksCarrier(access, endpoint=options.google_url or ENDPOINT)
    base_url = options.callback_url or url
    return Pusher(engine, service, base_url, targets=options.allowed, secrets=options.secrets, cloud_tasks=carrier)


async def check_target(url: str, targets: Targets) -> None:
    """Raise Invalid for a URL that may not be called. A name that has no address yet may get one."""
    try:
        split(url)
        await resolve(url, targets)
    except (Forbidden, Invalid) as error:
        raise Invalid(error.message.removeprefix("url: "), field="delivery.url") from None
    except Unreachable:
        pass
