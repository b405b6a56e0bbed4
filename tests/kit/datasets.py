"""The loops of datasets, by hand."""

from __future__ import annotations

from windlass import Engine
from windlass.datasets.deployments import Deployments
from windlass.datasets.router import Router
from windlass.datasets.server_jobs import ServerJobs


async def settle(engine: Engine) -> None:
    """Run all loops of datasets until none has anything to do."""
    router, server, deployments = engine.service(Router), engine.service(ServerJobs), engine.service(Deployments)
    while (
        await router.route_tick()
        + await router.advance_tick()
        + await router.reconcile_tick()
        + await server.tick()
        + await deployments.tick()
    ):
        pass
