"""Tasks of jobs: what a task is owed for, the key that makes it unique, and the submission that makes it.

A job that reads windows runs one task at a time, so that no two windows overlap; any other job runs as many as its
`max_concurrency` allows. The others are blocked until their turn comes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import msgspec

from windlass.core.ids import derived_id
from windlass.core.retry import Policy
from windlass.core.submission import Submission
from windlass.datasets.rules.dag import ExecutionStrategy, Job, Priority, Runtime

SERVER_QUEUE = "windlass.dispatcher"  # of jobs that run in the server itself
BACKFILL_PRIORITY = -10
LEFT = "its job is no longer part of an active version of its DAG"  # why the tasks of a job that left are cancelled


class JobRef(msgspec.Struct, frozen=True):
    """A job in one deployment, with what its tasks are made from. `inputs` and `outputs` are those of the claim."""

    deployment_id: UUID
    job_id: UUID
    namespace: str
    dag: str
    name: str
    queue: str
    job: Job
    inputs: list[dict[str, Any]]
    outputs: list[dict[str, Any]]


class Partition(msgspec.Struct, frozen=True):
    """A revision of a partition."""

    key: str
    first: int | None
    last: int | None
    revision: int


class Owed(msgspec.Struct, frozen=True):
    """Something that a job has to process: new data of an input, up to a cursor or of one partition. `kind` is what
    noticed it: an event, or a build that compares what is committed with what was given."""

    job_id: UUID
    deployment_id: UUID
    input_index: int
    dataset_uuid: UUID
    dataset_version: UUID
    cursor: int | None = None
    partition: Partition | None = None
    event_id: UUID | None = None
    trace: str | None = None

    @property
    def edge(self) -> tuple[UUID, int]:
        return self.job_id, self.input_index

    @property
    def dedupe_key(self) -> str:
        if self.partition is None:
            return f"cursor:{self.dataset_uuid}:{self.dataset_version}:{self.cursor}"
        return f"partition:{self.dataset_uuid}:{self.dataset_version}:{self.partition.key}:{self.partition.revision}"

    @property
    def task_id(self) -> UUID:
        return task_id_of(self.job_id, self.dedupe_key)

    @property
    def trigger(self) -> dict[str, Any]:
        if self.event_id is None:
            return {"kind": "build"}
        return {"kind": "event", "event_id": str(self.event_id)}


def task_id_of(job_id: UUID, dedupe_key: str) -> UUID:
    """The id of the task of a job with this key, always the same."""
    return derived_id("job_task", job_id, dedupe_key)


def next_task_id(task_id: UUID) -> UUID:
    """The id of the task that is made again for the same key, since this one was cancelled when its job left."""
    return derived_id("job_task", task_id)


def slots_of(job: Job) -> int | None:
    """How many tasks of a job may be started at the same time. None: any number."""
    if job.execution_strategy is ExecutionStrategy.PER_UPDATE:
        return 1
    return job.limits.max_concurrency


def owed_task(ref: JobRef, owed: Owed, versions: Mapping[int, UUID | None]) -> Submission:
    """The task for something owed. `versions` are those that the other inputs read now."""
    inputs = [_input(given, owed, versions) for given in ref.inputs]
    window = None
    if owed.partition is None:
        window = {"dataset_version": owed.dataset_version, "cursor": owed.cursor}
    return task_of(ref, owed.task_id, owed.trigger, inputs=inputs, window=window, trace=owed.trace)


def task_of(
    ref: JobRef,
    task_id: UUID,
    trigger: Mapping[str, Any],
    *,
    inputs: list[dict[str, Any]] | None = None,
    window: Mapping[str, Any] | None = None,
    trace: str | None = None,
) -> Submission:
    """A task of a job."""
    wire: dict[str, Any] = {
        "job": {"dag_name": ref.dag, "name": ref.name},
        "dag_version": ref.deployment_id,
        "inputs": ref.inputs if inputs is None else inputs,
        "outputs": ref.outputs,
        "trigger": trigger,
    }
    if window is not None:
        wire["window"] = window
    limits = ref.job.limits
    timeout_s = None if limits.timeout_seconds is None else float(limits.timeout_seconds)
    return Submission(
        kind=ref.job.operator,
        id=task_id,
        queue=ref.queue,
        namespace=ref.namespace,
        payload=msgspec.json.encode(ref.job.config),
        priority=BACKFILL_PRIORITY if limits.priority is Priority.BACKFILL else 0,
        policy=Policy(max_attempts=limits.max_attempts, timeout_s=timeout_s),
        wire=msgspec.json.encode(wire),
        job_id=ref.job_id,
        trace=trace,
    )


def _input(given: dict[str, Any], owed: Owed, versions: Mapping[int, UUID | None]) -> dict[str, Any]:
    """An input of the claim. The start of a window and the end of a snapshot are set when an attempt begins."""
    index: int = given["index"]
    version = owed.dataset_version if index == owed.input_index else versions.get(index)
    found = {**given, "dataset_version": version}
    if index != owed.input_index and not given["trigger"]:
        return {**found, "mode": "snapshot"}
    if owed.partition is not None:
        part = owed.partition
        revision = part.revision if index == owed.input_index else None
        return {
            **found, "mode": "partition", "partition_key": part.key, "start": part.first, "end": part.last,
            "revision": revision,
        }  # fmt: skip
    if index != owed.input_index:
        return {**found, "mode": "snapshot"}
    return {**found, "mode": "cursor", "cursor_from": None, "cursor_to": owed.cursor}


def runs_in_server(job: Job) -> bool:
    return job.runtime is Runtime.DISPATCHER
