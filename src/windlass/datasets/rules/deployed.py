"""What a deployment consists of: jobs with their inputs and outputs, edges, pointers and datasets, made from a DAG, the
fingerprints of its jobs and the versions of its datasets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import msgspec

from windlass.core.ids import derived_id
from windlass.datasets.rules.dag import Dag, Dataset, ExecutionStrategy, Input, OnUpgrade, Output, When
from windlass.datasets.rules.fact import Facts
from windlass.datasets.rules.job import SERVER_QUEUE


class DeployedJob(msgspec.Struct, frozen=True):
    """A job of a deployment. Definition, inputs and outputs are JSON."""

    name: str
    job_id: UUID
    fingerprint: str
    definition: str
    queue: str
    inputs: str
    outputs: str


class DeployedEdge(msgspec.Struct, frozen=True):
    """An input of a job. `dataset_version` is None for the current version of another DAG's dataset. `continues`: of a
    new version, the job is owed only what it was not given of the old one. `coalesces`: one task takes all that waits.
    `needs_all`: a partition is owed when every triggering input has it."""

    job_id: UUID
    input_index: int
    dataset_uuid: UUID
    dataset_version: UUID | None
    condition: str | None
    trigger: bool
    by_partition: bool
    continues: bool
    coalesces: bool
    needs_all: bool


class DeployedDataset(msgspec.Struct, frozen=True):
    """A dataset that a DAG makes. The schema is JSON."""

    id: UUID
    job: str | None
    output_index: int | None
    name: str | None
    storage: str
    write_mode: str | None
    read_roles: tuple[str, ...]
    description: str
    schema: str | None
    max_age_s: float | None


class Deployed(msgspec.Struct, frozen=True):
    """All parts of a deployment. `pointers` has the version of each dataset."""

    jobs: tuple[DeployedJob, ...]
    edges: tuple[DeployedEdge, ...]
    datasets: tuple[DeployedDataset, ...]
    pointers: Mapping[UUID, UUID]


def deploy(dag: Dag, facts: Facts, fingerprints: Mapping[str, str], versions: Mapping[UUID, UUID]) -> Deployed:
    """The parts of a deployment of a valid DAG."""
    datasets = {dataset.dataset_uuid: dataset for dataset in dag.datasets(facts.namespace)}
    jobs: list[DeployedJob] = []
    edges: list[DeployedEdge] = []
    for job in dag.jobs:
        job_id = job_id_of(facts.namespace, dag.name, job.name, fingerprints[job.name])
        inputs = [_input(dag, facts, datasets, versions, place, given) for place, given in enumerate(job.inputs)]
        outputs = [
            _output(datasets, versions, dag.dataset_uuid(facts.namespace, Output(job.name, index)), index)
            for index in range(job.outputs)
        ]
        jobs.append(
            DeployedJob(
                job.name, job_id, fingerprints[job.name], _json(job), job.queue_name or SERVER_QUEUE, _json(inputs),
                _json(outputs),
            )
        )  # fmt: skip
        edges += [
            DeployedEdge(
                job_id, given["index"], given["dataset_uuid"], given["dataset_version"], given["where"],
                given["trigger"], job.execution_strategy is ExecutionStrategy.PER_PARTITION,
                dag.on_upgrade(job, source) is OnUpgrade.CONTINUE, job.coalesce, job.when is When.ALL,
            )
            for source, given in zip(job.inputs, inputs, strict=True)
        ]  # fmt: skip
    rows = tuple(_dataset(dataset) for dataset in datasets.values())
    return Deployed(tuple(jobs), tuple(edges), rows, {id_: versions[id_] for id_ in datasets})


def job_id_of(namespace: str, dag: str, job: str, fingerprint: str) -> UUID:
    """The id of a consumer: the same job with the same fingerprint keeps its cursors and tasks."""
    return derived_id("dag_job", namespace, dag, job, fingerprint)


def _input(
    dag: Dag,
    facts: Facts,
    datasets: Mapping[UUID, Dataset],
    versions: Mapping[UUID, UUID],
    place: int,
    given: Input,
) -> dict[str, Any]:
    writers = dag.writers(given)
    if writers:
        dataset = datasets[dag.dataset_uuid(facts.namespace, writers[0])]
        id_, version, name, storage = (
            dataset.dataset_uuid,
            versions[dataset.dataset_uuid],
            dataset.name,
            dataset.storage,
        )
    else:
        known = facts.datasets[given.dataset or ""]
        id_, version, name, storage = known.dataset_uuid, None, given.dataset, known.storage
    return {
        "index": place, "dataset": name, "dataset_uuid": id_, "dataset_version": version, "where": given.where,
        "trigger": given.trigger, "storage": storage, "location": None,
    }  # fmt: skip


def _output(
    datasets: Mapping[UUID, Dataset], versions: Mapping[UUID, UUID], dataset_uuid: UUID, index: int
) -> dict[str, Any]:
    dataset = datasets[dataset_uuid]
    return {
        "output_index": index, "dataset": dataset.name, "dataset_uuid": dataset_uuid,
        "dataset_version": versions[dataset_uuid], "storage": dataset.storage, "write_mode": dataset.write_mode,
        "staging_uri": None, "schema": dataset.schema,
    }  # fmt: skip


def _dataset(dataset: Dataset) -> DeployedDataset:
    published = dataset.publication
    single = dataset.writers[0] if len(dataset.writers) == 1 and not (published and published.buffered) else None
    schema = dataset.schema
    return DeployedDataset(
        dataset.dataset_uuid,
        single.job if single else None,
        single.output if single else None,
        dataset.name,
        dataset.storage,
        dataset.write_mode,
        published.read_roles if published else (),
        published.description if published else "",
        None if schema is None else _json(schema),
        published.max_age_s if published else None,
    )


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
