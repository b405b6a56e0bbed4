"""Fingerprints: which changes of a DAG make a new version of a dataset, and which do not.

The fingerprint of a job is the SHA-256 of what decides its data: operator, runtime, config, inputs with their `where`,
strategies, unique key, partitions, number of outputs, storage and schema of its outputs, and the fingerprints of its
inputs in the same DAG. What only decides when and where it runs is not part: queue, limits, secrets, source,
`coalesce`, `on_upgrade`, and of publications name, readers, description, freshness and checks.

With `on_change: forward`, only partitions, storage and schema are part: an edit goes on in the same version. A buffered
dataset has several writers; its fingerprint is its schema, and those of its writers that rebuild.

Two things are added to a fingerprint by hand: the nonce of a `rebuild`, and the deployment's id for a job with
`bootstrap.reset_outputs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

import msgspec

from windlass.datasets.rules.canonical import digest
from windlass.datasets.rules.cycle import in_dependency_order
from windlass.datasets.rules.dag import Dag, Input, Job, OnChange, Output, Publication, version_uuid
from windlass.datasets.rules.schema import DatasetSchema
from windlass.errors import Invalid

FORM = 1  # of the values that are hashed; another number makes a new version of every dataset

Value = dict[str, object]


class Fingerprints(msgspec.Struct, frozen=True):
    """The fingerprints of a DAG. `jobs` identify consumers, `own` are those of the definitions alone, without inputs,
    and `outputs` make versions of datasets."""

    jobs: Mapping[str, str]
    own: Mapping[str, str]
    outputs: Mapping[Output, str]


def fingerprints(
    dag: Dag, *, rebuild: Mapping[str, str] | None = None, deployment_id: UUID | None = None
) -> Fingerprints:
    """The fingerprints of a DAG without problems. `rebuild` has the nonces of jobs (see `nonces`). `deployment_id` is
    needed if a job has `reset_outputs`."""
    made: dict[str, str] = {}
    outputs: dict[Output, str] = {}
    own: dict[str, str] = {}
    sources = {job.name: {writer.job for source in job.inputs for writer in dag.writers(source)} for job in dag.jobs}
    buffers = _Buffers(dag)
    for name in in_dependency_order(sources):
        job = dag.job[name]
        by_hand = _by_hand(job, (rebuild or {}).get(name), deployment_id)
        definition = _definition(dag, job) | by_hand
        own[name] = digest(definition)
        if dag.on_change(job) is OnChange.FORWARD:
            made[name] = digest({"form": FORM, "forward": _shape(dag, job)} | by_hand)
        else:
            inputs = [_input(dag, source, outputs) for source in job.inputs]
            made[name] = digest(definition | {"inputs": inputs})
        outputs |= {Output(name, index): made[name] for index in range(job.outputs)}
        outputs |= buffers.written(name, made)
    return Fingerprints(made, own, outputs)


def pointers(dag: Dag, namespace: str, made: Fingerprints) -> dict[UUID, UUID]:
    """The pointer set of a deployment: each of its datasets with its version."""
    return {
        dataset.dataset_uuid: version_uuid(dataset.dataset_uuid, made.outputs[dataset.writers[0]])
        for dataset in dag.datasets(namespace)
    }


def nonces(dag: Dag, active: Mapping[str, str], rebuild: Iterable[str], from_version: UUID | None) -> dict[str, str]:
    """The nonces of the next deployment: those of the active one, which must stay or their jobs would go back to the
    data before, and one for each job to rebuild. The nonce is the version that it starts from, so that a plan and its
    deploy agree on it. Raises Invalid for a job that the file does not have."""
    unknown = sorted(set(rebuild) - dag.job.keys())
    if unknown:
        raise Invalid(f"there is no job {unknown[0]!r} in the file", field="rebuild")
    kept = {job: nonce for job, nonce in active.items() if job in dag.job}
    return kept | {job: str(from_version or "") for job in rebuild}


class _Buffers:
    """Fingerprints of buffered datasets, once all of their writers have one."""

    def __init__(self, dag: Dag) -> None:
        self._dag = dag
        self._of: dict[str, list[Publication]] = {}
        self._missing: dict[str, int] = {}
        for publication in dag.publish:
            if publication.buffered:
                writers = {output.job for output in publication.writers}
                self._missing[publication.name] = len(writers)
                for job in writers:
                    self._of.setdefault(job, []).append(publication)

    def written(self, job: str, made: Mapping[str, str]) -> dict[Output, str]:
        """The outputs of the buffered datasets whose last writer this is; those of others are not read before."""
        found: dict[Output, str] = {}
        for publication in self._of.get(job, ()):
            self._missing[publication.name] -= 1
            if self._missing[publication.name] == 0:
                print_ = digest(
                    {"form": FORM, "buffer": _published(publication), "writers": self._rebuilt(publication, made)}
                )
                found |= dict.fromkeys(publication.writers, print_)
        return found

    def _rebuilt(self, publication: Publication, made: Mapping[str, str]) -> list[str]:
        """A writer that goes forward is not part, so that another writer does not empty the log of all."""
        writers = {output.job for output in publication.writers}
        return sorted(made[name] for name in writers if self._dag.on_change(self._dag.job[name]) is OnChange.REBUILD)


def _definition(dag: Dag, job: Job) -> Value:
    """What decides the data of a job, but for the versions of its inputs."""
    return {
        "form": FORM,
        "operator": job.operator,
        "operator_version": job.operator_version,
        "runtime": job.runtime,
        "config": job.config,
        "inputs": [_input(dag, source) for source in job.inputs],
        "execution_strategy": job.execution_strategy,
        "when": job.when,
        "update_strategy": job.update_strategy,
        "unique_key": job.unique_key,
    } | _shape(dag, job)


def _shape(dag: Dag, job: Job) -> Value:
    """The partitions of a job, and where and with which columns its outputs are kept."""
    published = [dag.published.get(Output(job.name, index)) for index in range(job.outputs)]
    return {"partitions": job.partitions, "outputs": [each and _published(each) for each in published]}


def _published(publication: Publication) -> Value:
    schema = publication.schema
    return {
        "storage": publication.storage,
        "write_mode": publication.write_mode,
        "schema": schema and _schema(schema),
    }


def _schema(schema: DatasetSchema) -> Value:
    """The table that a schema makes: it is the same whether the file lists `org_id` or not."""
    return {
        "columns": schema.writer_columns,
        "unique": schema.unique_columns,
        "indexes": schema.indexes,
        "on_conflict": schema.on_conflict,
    }


def _input(dag: Dag, source: Input, outputs: Mapping[Output, str] | None = None) -> Value:
    """An input by the identity of its dataset: it does not matter whether the file names the job or the dataset."""
    writers = dag.writers(source)
    publication = dag.published.get(writers[0]) if writers else None
    if not writers:
        identity: Value = {"dataset": source.dataset}
    elif publication is not None and publication.buffered:
        identity = {"publish": publication.name}
    else:
        identity = {"job": writers[0].job, "output": writers[0].output}
    found = identity | {"where": source.where, "trigger": source.trigger}
    return found | {"fingerprint": outputs[writers[0]]} if outputs is not None and writers else found


def _by_hand(job: Job, nonce: str | None, deployment_id: UUID | None) -> Value:
    found: Value = {} if nonce is None else {"rebuild": nonce}
    if job.reset_outputs:
        assert deployment_id is not None, f"{job.name} has reset_outputs: the id of the deployment is needed"
        found["deployment"] = str(deployment_id)
    return found
