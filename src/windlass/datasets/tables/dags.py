"""DAGs and their deployments in PostgreSQL: files, jobs, edges, pointers, and the datasets that they make."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

import msgspec

from windlass.core.access import Principal, Role
from windlass.datasets.rules.deployed import Deployed, DeployedDataset, DeployedJob
from windlass.datasets.rules.job import LEFT
from windlass.store.queries import register_queries
from windlass.store.table import Table

register_queries(__package__, "dags.sql")


class DagRow(msgspec.Struct, frozen=True):
    """A DAG by name, and which of its deployments is active."""

    namespace: str
    name: str
    active_version: UUID | None = None
    previous_version: UUID | None = None
    paused: bool = False
    retired_at: datetime | None = None


class DagView(DagRow, frozen=True):
    """A DAG for people: also the number of its jobs and the names of its datasets."""

    jobs: int = 0
    datasets: list[str] = []


class DeploymentRow(msgspec.Struct, frozen=True):
    """A deployment. The plan and the nonces of jobs are JSON."""

    id: UUID
    namespace: str
    dag: str
    number: int
    state: str
    auto_cutover: bool
    plan: str
    plan_hash: str
    created_by: str
    created_at: datetime
    ready_at: datetime | None
    activated_at: datetime | None
    ended_at: datetime | None
    reason: str | None
    nonces: str


class NewDeployment(msgspec.Struct, frozen=True):
    """A deployment to be written. The plan and the nonces of jobs are JSON."""

    id: UUID
    namespace: str
    dag: str
    number: int
    yaml: str
    yaml_sha256: str
    nonces: str
    auto_cutover: bool
    plan: str
    plan_hash: str
    created_by: str


class NamedDataset(msgspec.Struct, frozen=True):
    """A dataset with a name, and whether the caller may read it. The schema is JSON, and so is the definition of the
    job that writes it; None if several do."""

    id: UUID
    name: str
    dag: str
    storage: str
    schema: str | None
    readable: bool
    definition: str | None


class OutsideEdge(msgspec.Struct, frozen=True):
    """An input of a job in the active deployment of another DAG. `continues` is of `rules.deployed.DeployedEdge`."""

    dag: str
    job: str
    dataset_uuid: UUID
    condition: str | None
    trigger: bool
    continues: bool


class BuildProgress(NamedTuple):
    """The tasks of a job: all, those that ended, those that failed; whether more is owed; the newest that failed, and
    whether a person cancelled it."""

    owed: int
    done: int
    failed: int
    behind: bool
    failed_task: UUID | None
    cancelled: bool = False

    @property
    def reason(self) -> str:
        """Why it is not built."""
        if self.failed_task is None:
            return ""
        return f"{self.failed_task} {'was cancelled' if self.cancelled else 'failed'}"


def rights_of(caller: Principal) -> tuple[bool, bool, list[str]]:
    """What decides which datasets a caller may read: whether it is an admin, an operator, and its groups."""
    return caller.may(Role.ADMIN), caller.may(Role.OPERATOR), list(caller.groups)


class DagTable(Table):
    """DAGs within a transaction."""

    # ----------------------------------------------------------------------------------------- DAGs

    async def lock(self, namespace: str, name: str, *, make: bool = False) -> DagRow | None:
        """Lock a DAG. With `make`, it is added if it does not exist."""
        if make:
            await self.session.fetch("insert_dag", namespace, name)
        rows = await self.session.fetch("lock_dag", namespace, name)
        return DagRow(*rows[0]) if rows else None

    async def get(self, namespace: str, name: str) -> DagView | None:
        rows = await self.session.fetch("get_dags", namespace, name, None, 1)
        return DagView(*rows[0]) if rows else None

    async def page(self, namespace: str, after: str | None, limit: int) -> list[DagView]:
        return [DagView(*row) for row in await self.session.fetch("get_dags", namespace, None, after, limit)]

    async def update(self, dag: DagRow) -> None:
        await self.session.fetch(
            "update_dag", dag.namespace, dag.name, dag.active_version, dag.previous_version, dag.paused, dag.retired_at
        )

    # ----------------------------------------------------------------------------------------- deployments

    async def next_number(self, namespace: str, dag: str) -> int:
        number: int = await self.session.fetchval("next_deployment_number", namespace, dag)
        return number

    async def insert_deployment(self, new: NewDeployment) -> None:
        await self.session.fetch(
            "insert_deployment", new.id, new.namespace, new.dag, new.number, new.yaml, new.yaml_sha256, new.nonces,
            new.auto_cutover, new.plan, new.plan_hash, new.created_by,
        )  # fmt: skip

    async def find_deployment(self, namespace: str, dag: str, sha256: str, nonces: str) -> DeploymentRow | None:
        """The deployment of this file with these nonces."""
        rows = await self.session.fetch("find_deployment", namespace, dag, sha256, nonces)
        return DeploymentRow(*rows[0]) if rows else None

    async def deployment(self, namespace: str, dag: str, which: UUID | int) -> DeploymentRow | None:
        """A deployment by its id or by its number."""
        if isinstance(which, int):
            rows = await self.session.fetch("get_deployment_by_number", namespace, dag, which)
        else:
            rows = await self.session.fetch("get_deployments", namespace, dag, None, 1, [which])
        return DeploymentRow(*rows[0]) if rows else None

    async def deployments(self, namespace: str, dag: str, before: int | None, limit: int) -> list[DeploymentRow]:
        rows = await self.session.fetch("get_deployments", namespace, dag, before, limit, None)
        return [DeploymentRow(*row) for row in rows]

    async def live_deployments(self, namespace: str, dag: str) -> list[DeploymentRow]:
        return [DeploymentRow(*row) for row in await self.session.fetch("live_deployments_of", namespace, dag)]

    async def open_deployments(self, limit: int) -> list[DeploymentRow]:
        return [DeploymentRow(*row) for row in await self.session.fetch("open_deployments", limit)]

    async def yaml(self, deployment_id: UUID) -> str:
        text: str = await self.session.fetchval("deployment_yaml", deployment_id)
        return text

    async def move(
        self, deployment_id: UUID, state: str, reason: str | None = None, *, auto_cutover: bool | None = None
    ) -> None:
        await self.session.fetch("update_deployment", deployment_id, state, reason, auto_cutover)

    async def insert_parts(self, deployment_id: UUID, namespace: str, dag: str, deployed: Deployed) -> None:
        """Write the jobs, edges, pointers, datasets and versions of a deployment."""
        jobs, edges, pointers = deployed.jobs, deployed.edges, deployed.pointers
        schemas = {dataset.id: dataset.schema for dataset in deployed.datasets}
        await self.session.fetch(
            "insert_deployment_jobs", deployment_id, [j.name for j in jobs], [j.job_id for j in jobs],
            [j.fingerprint for j in jobs], [j.definition for j in jobs], [j.queue for j in jobs],
            [j.inputs for j in jobs], [j.outputs for j in jobs],
        )  # fmt: skip
        await self.session.fetch(
            "insert_jobs", namespace, dag, [j.job_id for j in jobs], [j.name for j in jobs],
            [j.fingerprint for j in jobs],
        )  # fmt: skip
        await self.session.fetch(
            "insert_deployment_edges", deployment_id, [e.job_id for e in edges], [e.input_index for e in edges],
            [e.dataset_uuid for e in edges], [e.dataset_version for e in edges], [e.condition for e in edges],
            [e.trigger for e in edges], [e.by_partition for e in edges], [e.continues for e in edges],
            [e.coalesces for e in edges], [e.needs_all for e in edges],
        )  # fmt: skip
        await self.session.fetch("insert_deployment_pointers", deployment_id, list(pointers), list(pointers.values()))
        await self.session.fetch(
            "insert_dataset_versions", list(pointers.values()), list(pointers), [""] * len(pointers),
            [None] * len(pointers), [schemas[id_] for id_ in pointers],
        )  # fmt: skip

    async def jobs(self, deployment_id: UUID) -> list[DeployedJob]:
        return [DeployedJob(*row) for row in await self.session.fetch("deployment_jobs", deployment_id)]

    async def pointers(self, deployment_id: UUID) -> dict[UUID, UUID]:
        """The version of each dataset that a deployment writes."""
        return {row[0]: row[1] for row in await self.session.fetch("deployment_pointers", deployment_id)}

    async def progress(self, jobs: Collection[UUID]) -> dict[UUID, BuildProgress]:
        rows = await self.session.fetch("build_progress", list(jobs), LEFT)
        return {row[0]: BuildProgress(*row[1:]) for row in rows}

    async def open_tasks(self, jobs: Collection[UUID], limit: int) -> list[UUID]:
        return [row[0] for row in await self.session.fetch("open_job_tasks", list(jobs), limit)]

    async def mark_behind(self, jobs: Collection[UUID]) -> None:
        await self.session.fetch("lock_jobs", list(jobs))
        await self.session.fetch("mark_behind", list(jobs))

    async def upgrade(self, before: UUID, after: UUID, changed: Mapping[UUID, UUID]) -> set[UUID]:
        """Note what the jobs have read that continue, when a deployment is replaced by another. `changed` are datasets
        that other DAGs may read, with the version that was current. Returns the jobs of the new deployment that it
        shares with the old one, and whose inputs are other versions or datasets."""
        await self.session.fetch("insert_upgrades", before, after)
        if changed:
            await self.session.fetch("insert_reader_upgrades", list(changed), list(changed.values()))
        return {row[0] for row in await self.session.fetch("changed_readers", before, after)}

    async def mark_readers_behind(self, datasets: Collection[UUID]) -> None:
        await self.session.fetch("mark_readers_behind", list(datasets))

    # ----------------------------------------------------------------------------------------- datasets

    async def put_datasets(self, namespace: str, dag: str, datasets: Sequence[DeployedDataset]) -> None:
        await self.session.fetch(
            "put_datasets", namespace, dag, [d.id for d in datasets], [d.job for d in datasets],
            [d.output_index for d in datasets], [d.name for d in datasets], [d.storage for d in datasets],
            [d.write_mode for d in datasets], ["\x1f".join(d.read_roles) for d in datasets],
            [d.description for d in datasets], [d.schema for d in datasets], [d.max_age_s for d in datasets],
        )  # fmt: skip

    async def retire_datasets(self, namespace: str, dag: str, kept: Collection[UUID]) -> None:
        await self.session.fetch("retire_datasets", namespace, dag, list(kept))

    async def known_versions(self, versions: Collection[UUID]) -> set[UUID]:
        return {row[0] for row in await self.session.fetch("known_versions", list(versions))}

    async def current_versions(self, datasets: Collection[UUID]) -> dict[UUID, UUID]:
        """The current version of each of these datasets that has one."""
        return {row[0]: row[1] for row in await self.session.fetch("current_versions", list(datasets))}

    async def count_partitions(self, versions: Collection[UUID]) -> dict[UUID, int]:
        return {row[0]: row[1] for row in await self.session.fetch("count_partitions", list(versions))}

    async def named_datasets(self, namespace: str, caller: Principal) -> list[NamedDataset]:
        rows = await self.session.fetch("named_datasets", namespace, *rights_of(caller))
        return [NamedDataset(*row) for row in rows]

    async def outside_edges(self, namespace: str, dag: str) -> list[OutsideEdge]:
        return [OutsideEdge(*row) for row in await self.session.fetch("outside_edges", namespace, dag)]

    async def outside_writes(self, namespace: str, dag: str) -> list[tuple[str, str, UUID]]:
        """The datasets that jobs of other DAGs write: DAG, job, dataset."""
        return [(row[0], row[1], row[2]) for row in await self.session.fetch("outside_writes", namespace, dag)]

    # ----------------------------------------------------------------------------------------- webhooks

    async def webhooks(self, namespace: str) -> dict[str, str]:
        """The DAG of each path."""
        return {row[0]: row[1] for row in await self.session.fetch("webhooks", namespace)}

    async def put_webhooks(self, namespace: str, dag: str, deployment_id: UUID, jobs: Mapping[str, UUID]) -> set[str]:
        """Replace the webhooks of a DAG. Returns the paths that it has now."""
        await self.session.fetch("delete_webhooks", namespace, dag)
        if not jobs:
            return set()
        rows = await self.session.fetch("insert_webhooks", namespace, deployment_id, list(jobs), list(jobs.values()))
        return {row[0] for row in rows}
