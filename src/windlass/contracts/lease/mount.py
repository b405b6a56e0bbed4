"""Adds the lease contract to a server: its routes on the internal port, wake-ups, calls of functions, and the effects
of events and batches."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from windlass.api.framework import mount
from windlass.api.framework.application import Application
from windlass.contracts.lease.claim_by_id import Holders
from windlass.contracts.lease.delivery import INVOKE
from windlass.contracts.lease.server.app import make_app
from windlass.contracts.lease.server.invoke import Invoker
from windlass.contracts.lease.server.service import Service
from windlass.contracts.lease.server.wakeups import WakeupRoutes
from windlass.contracts.lease.tls.server import Certificates, Guard, guarded
from windlass.contracts.lease.wakeups.carriers.opening import make_lambda, make_senders
from windlass.contracts.lease.wakeups.carriers.options import NO_CARRIERS, CarrierOptions
from windlass.contracts.lease.wakeups.planner import Wakeups
from windlass.datasets.loops import routing
from windlass.datasets.rules.events import BUFFER
from windlass.engine.engine import Engine
from windlass.errors import Invalid
from windlass.net.targets import Targets


class Mount(mount.Mount[Mapping[str, Any]]):
    """The lease contract on an engine. Its options are those of `sending`."""

    def running(self, options: Mapping[str, Any], _url: str) -> AbstractAsyncContextManager[None]:
        return sending(self.engine, **options)


def make_lease_app(engine: Engine, version: str, scratch_uri: str) -> Application:
    return make_app(engine, Service(engine, scratch_uri), WakeupRoutes(engine), version)


def make_tls(**files: Path | None) -> Guard:
    """TLS of the internal port, from the files of `Certificates` by the names of their settings."""
    for name, file in files.items():
        if file is None:
            raise Invalid("the internal port needs it: see `windlass certs`", field=name)
    return guarded(Certificates(*(Path(file) for file in files.values() if file is not None)))


@asynccontextmanager
async def sending(
    engine: Engine, carriers: CarrierOptions | None, scratch_uri: str, targets: Targets, reconcile_s: float
) -> AsyncIterator[None]:
    """Until the block ends, send wake-ups, call functions, route the events and queue the batches of lease holders."""
    holders, outgoing = engine.service(Holders), engine.parts.outgoing
    senders, functions = make_senders(carriers or NO_CARRIERS), make_lambda(carriers or NO_CARRIERS)
    async with AsyncExitStack() as stack:
        for client in (*senders.values(), functions):
            if client is not None:
                stack.push_async_callback(client.close)
        call_function = None if functions is None else functions.call
        invoker = Invoker(engine, scratch_uri=scratch_uri, targets=targets, call_function=call_function)
        await engine.listen()
        await stack.enter_async_context(engine.service(Wakeups).carrying(senders))
        await stack.enter_async_context(routing(engine, reconcile_s=reconcile_s))
        for effect, handler in ((INVOKE, invoker.invoke), (BUFFER, holders.queue_batch)):
            await stack.enter_async_context(outgoing.carrying(effect, handler))
        yield
