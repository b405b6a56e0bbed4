"""A deployed DAG in a test: files, events and tasks, with every loop as a tick that is called by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tests.contracts.lease.world import Holder
from tests.contracts.lease.world import World as LeaseWorld

from windlass import Engine
from windlass.datasets.always_on import AlwaysOn
from windlass.datasets.backfills import Backfills
from windlass.datasets.backpressure import Backpressure
from windlass.datasets.dags import Dags
from windlass.datasets.deployments import Deployments
from windlass.datasets.invalidations import Invalidations
from windlass.datasets.router import Router
from windlass.datasets.server_jobs import ServerJobs
from windlass.datasets.sources import Sources
from windlass.datasets.tables.dags import DeploymentRow

CHAIN = """\
name: chain
jobs:
  - name: follow
    activation: source
    runtime: ecs_platform
    operator: block_follower
    source: {kind: manual}
    outputs: 1
    update_strategy: append
    unique_key: [hash]
  - name: alert
    activation: reactive
    runtime: ecs_platform
    operator: alerter
    execution_strategy: PerUpdate
    inputs: [{from: {job: follow}}]
    outputs: 0
    config: {limit: 7}
  - name: ranges
    activation: reactive
    runtime: dispatcher
    operator: range_aggregator
    execution_strategy: PerUpdate
    inputs: [{from: {job: follow}}]
    config: {range_size: 100, start: 0}
    outputs: 1
    update_strategy: replace
  - name: compact
    activation: reactive
    runtime: ecs_platform
    operator: compacter
    execution_strategy: PerPartition
    inputs: [{from: {job: ranges}}, {from: {job: follow}, trigger: false}]
    outputs: 1
    update_strategy: replace
"""


@dataclass
class World:
    """An engine with the loops of datasets, and a worker that speaks the lease contract."""

    engine: Engine
    leases: LeaseWorld

    @property
    def dags(self) -> Dags:
        return self.engine.service(Dags)

    @property
    def sources(self) -> Sources:
        return self.engine.service(Sources)

    async def deploy(self, yaml: str = CHAIN, dag: str = "chain", **options: Any) -> DeploymentRow:
        """Deploy a file and let it become active, if nothing is to be built first."""
        made, _ = await self.dags.deploy(dag, yaml, **options)
        await self.settle()
        return await self.dags.deployment(dag, made.id)

    async def settle(self) -> None:
        """Run all loops of datasets until none has anything to do."""
        router, server = self.engine.service(Router), self.engine.service(ServerJobs)
        deployments, always_on = self.engine.service(Deployments), self.engine.service(AlwaysOn)
        backpressure = self.engine.service(Backpressure)
        while (
            await router.route_tick()
            + await router.advance_tick()
            + await router.reconcile_tick()
            + await server.tick()
            + await deployments.tick()
            + await always_on.tick()
            + await self.engine.service(Backfills).tick()
            + await self.engine.service(Invalidations).tick()
            + await backpressure.tick()
        ):
            pass

    async def emit(self, job: str = "follow", dag: str = "chain", **trigger: Any) -> Holder:
        """Start a task of a source, and hold it."""
        return await self.leases.hold(await self.sources.emit(dag, job, **trigger))

    async def report(self, holder: Holder, **scope: Any) -> None:
        """Complete a task with an event for each of its outputs."""
        events = [
            {"dataset_uuid": output["dataset_uuid"], "dataset_version": output["dataset_version"], **scope}
            for output in holder.reply["task"]["outputs"]
        ]
        answer = await holder.complete(events=events)
        assert answer.status_code == 200, answer.text
        await self.settle()

    async def tasks(self, job: str, *states: str) -> list[UUID]:
        """The tasks of a job, the oldest first."""
        async with self.engine.store.begin() as tx:
            rows = await tx.session.connection.fetch(
                """select t.id from windlass.task t join windlass.job j on j.id = t.job_id
                    where j.name = $1 and ($2::text[] is null or t.state = any($2)) order by t.created_at, t.id""",
                job, list(states) or None,
            )  # fmt: skip
        return [row[0] for row in rows]

    async def hold(self, job: str) -> Holder:
        """Hold the one task of a job that is queued."""
        [task_id] = await self.tasks(job, "queued")
        return await self.leases.hold(task_id)


def output(holder: Holder) -> dict[str, str]:
    """The first dataset that a task writes."""
    [first, *_] = holder.reply["task"]["outputs"]
    return {"dataset_uuid": first["dataset_uuid"], "dataset_version": first["dataset_version"]}
