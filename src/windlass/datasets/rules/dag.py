"""The model of a DAG file: jobs, their inputs and outputs, and the datasets that they make.

Values only: `read_yaml` and `form` make them from a file, `check` decides whether they fit together. Defaults of the
file are already filled in. Field names are those of the file; JSON of these structs can be stored and read again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import tzinfo
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple
from uuid import UUID, uuid5

import msgspec

from windlass.datasets.rules.partition import Scheme, build
from windlass.datasets.rules.schema import DatasetSchema

_NAMESPACE = UUID("0b6f5d0e-6c1c-5d0f-8a7e-646174617365")  # of dataset ids; never changes


class Activation(StrEnum):
    """What starts a job: a source of its own, or data of its inputs."""

    SOURCE = "source"
    REACTIVE = "reactive"


class Runtime(StrEnum):
    """Where the operator of a job runs."""

    ECS_PLATFORM = "ecs_platform"
    ECS_UDF = "ecs_udf"
    LAMBDA = "lambda"
    DISPATCHER = "dispatcher"


class SourceKind(StrEnum):
    """What starts the tasks of a source."""

    CRON = "cron"
    WEBHOOK = "webhook"
    MANUAL = "manual"
    ALWAYS_ON = "always_on"


class ExecutionStrategy(StrEnum):
    """What one task of a reactive job takes: the events up to a cursor, or one partition."""

    PER_UPDATE = "PerUpdate"
    PER_PARTITION = "PerPartition"


class UpdateStrategy(StrEnum):
    """Whether a task adds rows to its outputs, or replaces their partition."""

    APPEND = "append"
    REPLACE = "replace"


class When(StrEnum):
    """Whether a partition is owed when any triggering input has it, or when all have it."""

    ANY = "any"
    ALL = "all"


class OnUpgrade(StrEnum):
    """What a new version of another DAG's dataset means to its reader: all of it is owed, or what is new."""

    REPROCESS = "reprocess"
    CONTINUE = "continue"


class OnChange(StrEnum):
    """What a changed definition means: new versions of its outputs, or it writes on in the same version."""

    REBUILD = "rebuild"
    FORWARD = "forward"


class Storage(StrEnum):
    """Where the rows of a dataset are. `none`: nowhere, the dataset has events only."""

    POSTGRES = "postgres"
    S3 = "s3"
    NONE = "none"


class WriteMode(StrEnum):
    """How rows reach a PostgreSQL dataset: in batches by the sink, or by the job itself."""

    BUFFERED = "buffered"
    DIRECT = "direct"


class Priority(StrEnum):
    """The priority of a job's tasks."""

    NORMAL = "normal"
    BACKFILL = "backfill"


class BackpressureMode(StrEnum):
    """What happens to a job whose queue is full."""

    PAUSE = "pause"


class Severity(StrEnum):
    """Whether a failed check of the data is only reported, or keeps a commit from its readers."""

    WARN = "warn"
    BLOCK = "block"


class PartitionKind(StrEnum):
    """How partitions are named."""

    RANGE = "range"
    TIME = "time"
    KEY = "key"


# The queue of a runtime, unless the job names another. `dispatcher` runs in the server and has none.
QUEUES: Mapping[Runtime, str | None] = {
    Runtime.ECS_PLATFORM: "platform",
    Runtime.ECS_UDF: "udf",
    Runtime.LAMBDA: "lambda",
    Runtime.DISPATCHER: None,
}
QUEUES_MADE = frozenset({"platform", "udf"})  # a deploy makes them if they are missing
RANGE_AGGREGATOR = "range_aggregator"
# The operators of `dispatcher`, with the kind of source that each serves; None is for reactive jobs.
BUILT_IN: Mapping[str, SourceKind | None] = {
    "cron_source": SourceKind.CRON,
    "manual_source": SourceKind.MANUAL,
    "webhook_source": SourceKind.WEBHOOK,
    RANGE_AGGREGATOR: None,
    "range_splitter": None,
}


class Output(NamedTuple):
    """An output of a job."""

    job: str
    output: int


class Source(msgspec.Struct, frozen=True, omit_defaults=True):
    """The source of a job: `schedule` and `timezone` are of a cron, `path` is of a webhook."""

    kind: SourceKind
    schedule: str | None = None
    timezone: str | None = None
    path: str | None = None


class Input(msgspec.Struct, frozen=True, omit_defaults=True):
    """An input of a job: an output of a job in the same file, or a dataset by its name. `on_upgrade` is what the file
    says; see `Dag.on_upgrade`."""

    job: str | None = None
    output: int = 0
    dataset: str | None = None
    where: str | None = None
    trigger: bool = True
    on_upgrade: OnUpgrade | None = None


class Partitioning(msgspec.Struct, frozen=True, omit_defaults=True):
    """The partitions of a job. `size` is of a range, `every` and `timezone` are of a time. `start` is the first number
    of a range, or the key of the first partition of a time."""

    kind: PartitionKind
    size: int | None = None
    every: str | None = None
    start: int | str | None = None
    timezone: str | None = None

    def fits(self, other: Partitioning) -> bool:
        """Whether a partition of one has the same key as that of the other. Where they start does not matter, if it is
        a whole number of partitions apart."""
        same = (self.kind, self.size, self.every, self.timezone or "UTC")
        if same != (other.kind, other.size, other.every, other.timezone or "UTC"):
            return False
        starts = self.start or 0, other.start or 0
        if self.size is None or not all(isinstance(start, int) for start in starts):
            return True
        return (int(starts[0]) - int(starts[1])) % self.size == 0

    def scheme(self, zone: tzinfo | None = None) -> Scheme:
        """The scheme that it describes; `zone` is the zone that `timezone` names. Raises Invalid with the field that is
        wrong."""
        return build(self.kind, size=self.size, every=self.every, start=self.start, zone=zone)


class Limits(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the tasks of a job run. No limit changes what a job makes. None is no limit, for times: never."""

    max_attempts: int = 3
    timeout_seconds: int | None = None
    heartbeat_timeout_seconds: int | None = None
    max_concurrency: int | None = None
    priority: Priority = Priority.NORMAL
    max_queue_depth: int | None = None
    max_queue_age_s: int | None = None
    idle_timeout_s: int | None = None
    backpressure_mode: BackpressureMode = BackpressureMode.PAUSE


class Job(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job. `queue` and `on_change` are what the file says; see `queue_name` and `Dag.on_change`."""

    name: str
    activation: Activation
    runtime: Runtime
    operator: str
    operator_version: str | None = None
    queue: str | None = None
    source: Source | None = None
    inputs: tuple[Input, ...] = ()
    execution_strategy: ExecutionStrategy | None = None
    when: When = When.ANY
    coalesce: bool = False
    partitions: Partitioning | None = None
    config: dict[str, object] = msgspec.field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    outputs: int
    update_strategy: UpdateStrategy | None = None
    unique_key: tuple[str, ...] = ()
    reset_outputs: bool = False
    on_change: OnChange | None = None
    limits: Limits = Limits()

    @property
    def queue_name(self) -> str | None:
        """The queue of its tasks. None for `dispatcher`, which runs in the server."""
        return self.queue or QUEUES[self.runtime]

    @property
    def trusted(self) -> bool:
        """Whether its code may hold credentials."""
        return self.runtime is not Runtime.ECS_UDF

    @property
    def output_partitions(self) -> Partitioning | None:
        """The partitions that its outputs have, as far as the file says it."""
        size, start = self.config.get("range_size"), self.config.get("start", 0)
        if self.operator == RANGE_AGGREGATOR and self.runtime is Runtime.DISPATCHER and isinstance(size, int):
            return Partitioning(PartitionKind.RANGE, size=size, start=start if isinstance(start, int) else 0)
        return self.partitions


class DataCheck(msgspec.Struct, frozen=True):
    """A query that decides whether a commit may be routed."""

    name: str
    sql: str
    severity: Severity


class Publication(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A dataset with a name: which outputs write it, where it is, and who may read it. `max_age_s` is how old it may
    become before it is no longer fresh."""

    name: str
    writers: tuple[Output, ...]
    storage: Storage
    write_mode: WriteMode | None = None
    schema: DatasetSchema | None = None
    read_roles: tuple[str, ...] = ()
    description: str = ""
    max_age_s: int | None = None
    checks: tuple[DataCheck, ...] = ()

    @property
    def buffered(self) -> bool:
        return self.write_mode is WriteMode.BUFFERED


class Dataset(msgspec.Struct, frozen=True):
    """A dataset that a DAG makes. A buffered one may have several writers, any other is one output. One whose job runs
    in the server has events only, whatever storage its publication names: such jobs write no files and no rows."""

    dataset_uuid: UUID
    writers: tuple[Output, ...]
    publication: Publication | None = None
    in_server: bool = False

    @property
    def name(self) -> str | None:
        return self.publication.name if self.publication else None

    @property
    def storage(self) -> Storage:
        return self.publication.storage if self.publication and not self.in_server else Storage.NONE

    @property
    def write_mode(self) -> WriteMode | None:
        return self.publication.write_mode if self.publication and not self.in_server else None

    @property
    def schema(self) -> DatasetSchema | None:
        return self.publication.schema if self.publication else None


class Dag(msgspec.Struct, frozen=True, dict=True):
    """A DAG file. Jobs and publications are in the order of the file."""

    name: str
    jobs: tuple[Job, ...] = ()
    publish: tuple[Publication, ...] = ()

    @cached_property
    def job(self) -> Mapping[str, Job]:
        """The jobs by name."""
        return {job.name: job for job in self.jobs}

    @cached_property
    def index(self) -> Mapping[str, int]:
        """The positions of the jobs by name."""
        return {job.name: index for index, job in enumerate(self.jobs)}

    @cached_property
    def publication(self) -> Mapping[str, Publication]:
        """The publications by the name of their dataset."""
        return {publication.name: publication for publication in self.publish}

    @cached_property
    def published(self) -> Mapping[Output, Publication]:
        """The publication of each output that has one."""
        return {output: publication for publication in self.publish for output in publication.writers}

    def writers(self, source: Input) -> tuple[Output, ...]:
        """The outputs of this DAG that an input reads. Empty for a dataset of another DAG."""
        if source.job is None:
            publication = self.publication.get(source.dataset or "")
            return publication.writers if publication else ()
        output = Output(source.job, source.output)
        publication = self.published.get(output)
        return publication.writers if publication and publication.buffered else (output,)

    def on_change(self, job: Job) -> OnChange:
        """What a changed definition of the job means. The default is `forward` for jobs without outputs and for jobs
        whose outputs are all buffered: an edit must not send last year's alerts again."""
        if job.on_change is not None:
            return job.on_change
        outputs = (self.published.get(Output(job.name, index)) for index in range(job.outputs))
        return OnChange.FORWARD if all(output and output.buffered for output in outputs) else OnChange.REBUILD

    def on_upgrade(self, job: Job, source: Input) -> OnUpgrade:
        """What a new version of an input means. What the file says; else a job that goes forward continues, so that
        it does not report everything again, and any other reprocesses."""
        if source.on_upgrade is not None:
            return source.on_upgrade
        return OnUpgrade.CONTINUE if self.on_change(job) is OnChange.FORWARD else OnUpgrade.REPROCESS

    def datasets(self, namespace: str) -> tuple[Dataset, ...]:
        """Every dataset that the jobs make: the outputs in the order of the file, then the buffered datasets."""
        return (*self._output_datasets(namespace), *self._buffered_datasets(namespace))

    def dataset_uuid(self, namespace: str, output: Output) -> UUID:
        """The id of the dataset that an output writes."""
        publication = self.published.get(output)
        if publication is not None and publication.buffered:
            return buffered_uuid(namespace, self.name, publication.name)
        return output_uuid(namespace, self.name, output)

    def _output_datasets(self, namespace: str) -> Iterator[Dataset]:
        for job in self.jobs:
            for index in range(job.outputs):
                output = Output(job.name, index)
                publication = self.published.get(output)
                if publication is None or not publication.buffered:
                    in_server = job.runtime is Runtime.DISPATCHER
                    yield Dataset(output_uuid(namespace, self.name, output), (output,), publication, in_server)

    def _buffered_datasets(self, namespace: str) -> Iterator[Dataset]:
        for publication in self.publish:
            if publication.buffered:
                dataset_uuid = buffered_uuid(namespace, self.name, publication.name)
                yield Dataset(dataset_uuid, publication.writers, publication)


def output_uuid(namespace: str, dag: str, output: Output) -> UUID:
    """The id of an output's dataset, the same in every version of the DAG."""
    return uuid5(_NAMESPACE, f"{namespace}/{dag}/{output.job}/{output.output}")


def buffered_uuid(namespace: str, dag: str, name: str) -> UUID:
    """The id of a buffered dataset. It has several writers, so it is identified by its name. Names begin with a letter
    and outputs are numbers: a job called `publish` makes no other dataset with the same id."""
    return uuid5(_NAMESPACE, f"{namespace}/{dag}/publish/{name}")


def version_uuid(dataset_uuid: UUID, fingerprint: str) -> UUID:
    """The id of the version of a dataset that a definition makes."""
    return uuid5(dataset_uuid, fingerprint)
