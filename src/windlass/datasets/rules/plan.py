"""Plans: what a deploy of a file would change, before it does.

A plan compares the active deployment with a new file: jobs, versions of their outputs, datasets, readers in other DAGs,
and queues to make. It never touches the store: the caller counts what is there (`Stored`); `counts` says what to count.

The hash of a plan is bound to the active deployment and to the content of the file. How much is owed and the warnings
are not in the hash: partitions are committed all the time, and a plan that a person has read must still be good for its
deploy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Literal
from uuid import UUID

import msgspec

from windlass.datasets.rules.canonical import digest
from windlass.datasets.rules.dag import (
    QUEUES_MADE,
    Dag,
    Dataset,
    ExecutionStrategy,
    Job,
    OnChange,
    OnUpgrade,
    Output,
    Partitioning,
    Publication,
    Storage,
)
from windlass.datasets.rules.difference import changed_fields, job_fields, publication_fields
from windlass.datasets.rules.fact import Facts, OtherInput
from windlass.datasets.rules.fingerprint import Fingerprints, pointers
from windlass.datasets.rules.predicate import WhereInvalid, parse
from windlass.datasets.rules.problem import Code, Problem
from windlass.datasets.rules.schema import DatasetSchema


class JobChange(StrEnum):
    """What a deploy changes about a job."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"  # its own definition
    AFFECTED = "affected"  # the version of an input
    SETTINGS = "settings"  # nothing that decides its data
    UNCHANGED = "unchanged"


class DatasetChange(StrEnum):
    """What a deploy changes about a published dataset."""

    MADE = "made"
    RETIRED = "retired"
    RENAMED = "renamed"
    SCHEMA = "schema"
    UNCHANGED = "unchanged"


# --------------------------------------------------------------------------------------------- what goes in


class Definition(msgspec.Struct, frozen=True):
    """A DAG with its fingerprints. `version` is the id of its deployment."""

    dag: Dag
    fingerprints: Fingerprints
    version: UUID


class Owed(msgspec.Struct, frozen=True):
    """Work of a job: how many partitions, and whether a cursor task."""

    partitions: int = 0
    cursor: bool = False


class Stored(msgspec.Struct, frozen=True):
    """What the store has. `versions` are the dataset versions that exist and are not purged, `partitions` the number of
    committed partitions of each version, `owed` the work of each job that `counts` names."""

    versions: frozenset[UUID] = frozenset()
    partitions: Mapping[UUID, int] = msgspec.field(default_factory=dict)
    owed: Mapping[str, Owed] = msgspec.field(default_factory=dict)


class Read(msgspec.Struct, frozen=True):
    """An input of a job that is to be counted. `dataset_version` is None for another DAG's dataset: its current one.
    `exists` is False if the version is still to be built: then the version is the active one, whose partitions are the
    estimate."""

    index: int
    dataset_uuid: UUID
    dataset_version: UUID | None
    exists: bool
    trigger: bool


class Count(msgspec.Struct, frozen=True):
    """A job whose work is to be counted: what its consumer (job and fingerprint) has not consumed of these inputs."""

    job: str
    fingerprint: str
    strategy: ExecutionStrategy | None
    partitions: Partitioning | None
    reads: tuple[Read, ...]


# --------------------------------------------------------------------------------------------- what comes out


class OutputPlan(msgspec.Struct, frozen=True):
    """An output of a job after the deploy. `none`: it has no storage, so there is no data."""

    output_index: int
    dataset: str | None
    dataset_uuid: UUID
    dataset_version: UUID
    data: Literal["built", "reused", "none"]


class JobPlan(msgspec.Struct, frozen=True):
    """What happens to a job. `fields` are the paths that differ, `on_change` what a changed definition means for it."""

    job: str
    change: JobChange
    fields: tuple[str, ...] = ()
    on_change: OnChange | None = None
    outputs: tuple[OutputPlan, ...] = ()
    owed: Owed = Owed()


class ColumnChange(msgspec.Struct, frozen=True, rename={"before": "from", "after": "to"}):
    """A column whose type or whether it may be null changes."""

    name: str
    before: str
    after: str


class Columns(msgspec.Struct, frozen=True):
    """The columns of a dataset that change."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[ColumnChange, ...] = ()


class DatasetPlan(msgspec.Struct, frozen=True, omit_defaults=True):
    """What happens to a published dataset. `was` is its name before, `fields` are those that differ."""

    name: str
    change: DatasetChange
    was: str | None = None
    columns: Columns | None = None
    fields: tuple[str, ...] = ()


class Break(msgspec.Struct, frozen=True):
    """Why a reader in another DAG stops working."""

    code: Code
    message: str


class ConsumerPlan(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job of another DAG that reads a dataset which changes: what its `on_upgrade` does, how many partitions it owes
    after cutover, and what breaks."""

    dag: str
    job: str
    dataset: str
    on_upgrade: OnUpgrade
    owed: int
    breaks: tuple[Break, ...] = ()


class Plan(msgspec.Struct, frozen=True):
    """What a deploy changes. Its JSON is the answer of the API."""

    dag: str
    plan_hash: str
    from_version: UUID | None
    noop: bool
    jobs: tuple[JobPlan, ...]
    datasets: tuple[DatasetPlan, ...]
    consumers: tuple[ConsumerPlan, ...]
    queues: tuple[str, ...]
    warnings: tuple[Problem, ...] = ()


# --------------------------------------------------------------------------------------------- the plan


def plan(
    old: Definition | None, new: Definition, facts: Facts, stored: Stored, warnings: Iterable[Problem] = ()
) -> Plan:
    """Compare the active deployment with a file that has no problems."""
    sides = _Sides(old, new, facts, stored)
    jobs = (*(sides.job(job) for job in new.dag.jobs), *sides.removed())
    datasets = tuple(sides.datasets())
    consumers = tuple(sides.consumers())
    queues = tuple(sorted(sides.queues()))
    quiet = all(job.change is JobChange.UNCHANGED for job in jobs) and not queues
    noop = (
        old is not None
        and quiet
        and all(each.change is DatasetChange.UNCHANGED and not each.fields for each in datasets)
    )
    made = Plan(
        new.dag.name, "", old.version if old else None, noop, jobs, datasets, consumers, queues, tuple(warnings)
    )
    return msgspec.structs.replace(made, plan_hash=_hash(made, new))


def _hash(made: Plan, new: Definition) -> str:
    value = msgspec.to_builtins(made)
    for name in ("plan_hash", "warnings"):
        del value[name]
    for each in (*value["jobs"], *value["consumers"]):
        del each["owed"]
    # A plan names fields and not their values: the file itself must be part, or another value would pass for this one.
    return digest({"plan": value, "file": new.dag, "definitions": new.fingerprints.own})


def counts(old: Definition | None, new: Definition, facts: Facts, versions: frozenset[UUID]) -> tuple[Count, ...]:
    """The jobs whose work a caller has to count for `Stored.owed`: those whose consumer the active deployment does not
    have. `versions` are the dataset versions that exist."""
    return tuple(_Sides(old, new, facts, Stored(versions)).counts())


class _Sides:
    """The two sides of a plan."""

    def __init__(self, old: Definition | None, new: Definition, facts: Facts, stored: Stored) -> None:
        self._old, self._new, self._facts, self._stored = old, new, facts, stored
        self._before = pointers(old.dag, facts.namespace, old.fingerprints) if old else {}
        self._after = pointers(new.dag, facts.namespace, new.fingerprints)
        self._named = {each.dataset_uuid: each for each in new.dag.datasets(facts.namespace) if each.publication}
        was = old.dag.datasets(facts.namespace) if old else ()
        self._was_named = {each.dataset_uuid: each for each in was if each.publication}

    # ----------------------------------------------------------------------------------------- jobs

    def job(self, job: Job) -> JobPlan:
        change, fields = self._change(job)
        new = not self._is_running(job.name)
        owed = self._stored.owed.get(job.name, Owed()) if new else Owed()
        return JobPlan(job.name, change, fields, self._new.dag.on_change(job), tuple(self._outputs(job)), owed)

    def removed(self) -> Iterator[JobPlan]:
        for job in self._old.dag.jobs if self._old else ():
            if job.name not in self._new.dag.job:
                yield JobPlan(job.name, JobChange.REMOVED)

    def _change(self, job: Job) -> tuple[JobChange, tuple[str, ...]]:
        before = self._old.dag.job.get(job.name) if self._old else None
        if before is None or self._old is None:
            return JobChange.ADDED, ()
        fields = changed_fields(
            job_fields(self._old.dag, before, self._new.dag), job_fields(self._new.dag, job, self._new.dag)
        )
        if self._old.fingerprints.own[job.name] != self._new.fingerprints.own[job.name]:
            return JobChange.CHANGED, fields or self._by_hand(job)
        if any(
            self._has_moved(self._uuid(writer)) for source in job.inputs for writer in self._new.dag.writers(source)
        ):
            return JobChange.AFFECTED, fields
        return (JobChange.SETTINGS if fields else JobChange.UNCHANGED), fields

    def _by_hand(self, job: Job) -> tuple[str, ...]:
        """What changes a definition whose fields are the same."""
        return ("bootstrap.reset_outputs",) if job.reset_outputs else ("rebuild",)

    def _is_running(self, job: str) -> bool:
        """Whether the active deployment has the same consumer."""
        return self._old is not None and self._old.fingerprints.jobs.get(job) == self._new.fingerprints.jobs[job]

    def _outputs(self, job: Job) -> Iterator[OutputPlan]:
        for index in range(job.outputs):
            output = Output(job.name, index)
            publication = self._new.dag.published.get(output)
            dataset_uuid = self._uuid(output)
            version = self._after[dataset_uuid]
            data: Literal["built", "reused", "none"] = "reused" if version in self._stored.versions else "built"
            name = publication.name if publication else None
            yield OutputPlan(index, name, dataset_uuid, version, data if publication else "none")

    def counts(self) -> Iterator[Count]:
        for job in self._new.dag.jobs:
            if not self._is_running(job.name):
                reads = tuple(self._reads(job))
                fingerprint = self._new.fingerprints.jobs[job.name]
                yield Count(job.name, fingerprint, job.execution_strategy, job.partitions, reads)

    def _reads(self, job: Job) -> Iterator[Read]:
        for index, source in enumerate(job.inputs):
            writers = self._new.dag.writers(source)
            if not writers:
                known = self._facts.readable(self._new.dag.name, source.dataset or "")
                assert known is not None, f"{source.dataset} is not in the facts: check the file first"
                yield Read(index, known.dataset_uuid, None, True, source.trigger)
                continue
            dataset_uuid = self._uuid(writers[0])
            version = self._after[dataset_uuid]
            exists = version in self._stored.versions
            estimate = version if exists else self._before.get(dataset_uuid, version)
            yield Read(index, dataset_uuid, estimate, exists, source.trigger)

    def _uuid(self, output: Output) -> UUID:
        return self._new.dag.dataset_uuid(self._facts.namespace, output)

    def _has_moved(self, dataset_uuid: UUID) -> bool:
        return self._before.get(dataset_uuid) != self._after.get(dataset_uuid)

    # ----------------------------------------------------------------------------------------- datasets

    def datasets(self) -> Iterator[DatasetPlan]:
        """Those of the file in its order, then those that it no longer publishes."""
        for publication in self._new.dag.publish:
            dataset_uuid = self._uuid(publication.writers[0])
            yield self._dataset(publication, self._was_named.get(dataset_uuid))
        for dataset_uuid, dataset in self._was_named.items():
            if dataset_uuid not in self._named and dataset.name not in self._new.dag.publication:
                yield DatasetPlan(dataset.name or "", DatasetChange.RETIRED)

    def _dataset(self, publication: Publication, was: Dataset | None) -> DatasetPlan:
        before = was.publication if was else None
        if before is None:
            return DatasetPlan(publication.name, DatasetChange.MADE)
        fields = changed_fields(publication_fields(before), publication_fields(publication))
        columns = column_changes(before.schema, publication.schema)
        place = (before.storage, before.write_mode, before.schema)
        if before.name != publication.name:
            return DatasetPlan(publication.name, DatasetChange.RENAMED, before.name, columns, fields)
        same = place == (publication.storage, publication.write_mode, publication.schema)
        change = DatasetChange.UNCHANGED if same else DatasetChange.SCHEMA
        return DatasetPlan(publication.name, change, None, columns, fields)

    # ----------------------------------------------------------------------------------------- readers elsewhere

    def consumers(self) -> Iterator[ConsumerPlan]:
        """Jobs of other DAGs that read a dataset whose version or schema changes, or which goes."""
        for other in self._facts.jobs:
            for source in other.inputs if other.dag != self._new.dag.name else ():
                was = self._was_named.get(source.dataset_uuid)
                if was is None:
                    continue
                breaks = tuple(self._breaks(source))
                if breaks or self._has_moved(source.dataset_uuid):
                    owed = self._reprocessed(source)
                    yield ConsumerPlan(other.dag, other.job, was.name or "", source.on_upgrade, owed, breaks)

    def _breaks(self, source: OtherInput) -> Iterator[Break]:
        now = self._named.get(source.dataset_uuid)
        was = self._was_named[source.dataset_uuid]
        if now is None:
            moved = was.name in self._new.dag.publication
            why = "is now the output of another job: deploy the reader again" if moved else "is no longer published"
            yield Break(Code.UNKNOWN_DATASET, f"{was.name} {why}")
            return
        if source.where is None or now.schema is None:
            return
        known = now.schema.names(postgres=now.storage is Storage.POSTGRES)
        for column in _columns(source.where):
            if column not in known:
                yield Break(Code.WHERE_UNKNOWN_COLUMN, f"its where names {column}, which {now.name} no longer has")

    def _reprocessed(self, source: OtherInput) -> int:
        """How many partitions are owed after cutover: those of the new version, or of the old one as an estimate."""
        after = self._after.get(source.dataset_uuid)
        if source.on_upgrade is OnUpgrade.CONTINUE or after is None or not self._has_moved(source.dataset_uuid):
            return 0
        version = after if after in self._stored.versions else self._before.get(source.dataset_uuid, after)
        return self._stored.partitions.get(version, 0)

    def queues(self) -> set[str]:
        """The queues that the deploy makes."""
        return {job.queue_name or "" for job in self._new.dag.jobs} & QUEUES_MADE - self._facts.queues.keys()


def column_changes(before: DatasetSchema | None, after: DatasetSchema | None) -> Columns | None:
    """The columns that differ, or None."""
    old = {column.name: column for column in before.columns} if before else {}
    new = {column.name: column for column in after.columns} if after else {}
    changed = tuple(
        ColumnChange(name, _column_text(old[name].type, old[name].nullable), _column_text(each.type, each.nullable))
        for name, each in new.items()
        if name in old and old[name] != each
    )
    added, removed = (tuple(name for name in some if name not in other) for some, other in ((new, old), (old, new)))
    return Columns(added, removed, changed) if added or removed or changed else None


def _column_text(type_: str, nullable: bool) -> str:
    return type_ if nullable else f"{type_} not null"


def _columns(where: str) -> tuple[str, ...]:
    """The columns of a stored condition. One that this version can no longer read breaks nothing here."""
    try:
        return parse(where).columns
    except WhereInvalid:
        return ()
