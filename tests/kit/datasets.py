"""The loops of datasets, by hand."""

from __future__ import annotations

from windlass import Engine
from windlass.datasets.always_on import AlwaysOn
from windlass.datasets.backfills import Backfills
from windlass.datasets.backpressure import Backpressure
from windlass.datasets.deployments import Deployments
from windlass.datasets.invalidations import Invalidations
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
        + await engine.service(AlwaysOn).tick()
        + await engine.service(Backfills).tick()
        + await engine.service(Invalidations).tick()
        + await engine.service(Backpressure).tick()
    ):
        pass
