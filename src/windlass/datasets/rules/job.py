"""Tasks of jobs: the submission that makes one, and how many of a job may start.

A job that reads windows runs one task at a time, so that no two windows overlap; any other job runs as many as its
`max_concurrency` allows. The others are blocked until their turn comes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec

from windlass.core.retry import Policy
from windlass.core.submission import Submission
from windlass.datasets.rules.backpressure import QueueLimits
from windlass.datasets.rules.dag import ExecutionStrategy, Job, Priority
from windlass.datasets.rules.owed import BACKFILL, Given, Owed, Partition, Trigger

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


def slots_of(job: Job) -> int | None:
    """How many tasks of a job may be started at the same time. None: any number."""
    if job.execution_strategy is ExecutionStrategy.PER_UPDATE:
        return 1
    return job.limits.max_concurrency


def room(job: Job, started: int, waiting: int) -> int | None:
    """How many new tasks of a job may start now. None: any number. Tasks that wait come first."""
    slots = slots_of(job)
    return None if slots is None else max(0, slots - started - waiting)


def queue_limits(job: Job) -> QueueLimits:
    """How many tasks of a job may wait, and how long."""
    limits = job.limits
    return QueueLimits(limits.max_queue_depth, limits.max_queue_age_s, halved=limits.priority is Priority.BACKFILL)


def owed_task(ref: JobRef, owed: Owed, versions: Mapping[int, UUID | None]) -> Submission:
    """The task for something owed. `versions` are those that the inputs of the job read now."""
    window: dict[str, object] | None = None
    if owed.window is not None:
        window = {"dataset_version": owed.window.dataset_version, "cursor": owed.window.cursor}
        if ref.job.coalesce:
            window["coalesce"] = True
    inputs = [_input(fields, owed, versions.get(fields["index"])) for fields in ref.inputs]
    return task_of(ref, owed.task_id, owed.trigger, inputs=inputs, window=window, trace=owed.trace)


def task_of(
    ref: JobRef,
    task_id: UUID,
    trigger: Trigger,
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
    if ref.job.partitions is not None:
        wire["partitions"] = ref.job.partitions
    limits = ref.job.limits
    wire["secrets"] = ref.job.secrets
    if limits.idle_timeout_s is not None:
        wire["idle_timeout_s"] = limits.idle_timeout_s
    return Submission(
        kind=ref.job.operator,
        id=task_id,
        queue=ref.queue,
        namespace=ref.namespace,
        payload=msgspec.json.encode(ref.job.config),
        priority=BACKFILL_PRIORITY if limits.priority is Priority.BACKFILL or trigger.kind == BACKFILL else 0,
        policy=Policy(
            max_attempts=limits.max_attempts,
            timeout_s=_seconds(limits.timeout_seconds),
            lease_s=_seconds(limits.heartbeat_timeout_seconds),
        ),
        wire=msgspec.json.encode(wire),
        job_id=ref.job_id,
        trace=trace,
    )


def _seconds(value: int | None) -> float | None:
    return None if value is None else float(value)


def _input(fields: dict[str, Any], owed: Owed, version: UUID | None) -> dict[str, Any]:
    """An input of the claim. The start of a window and the end of a snapshot are set when an attempt begins. An input
    that is not given has the partition of those that are, in whatever revision there is, if it triggers the job too."""
    given = next((each for each in owed.given if each.input_index == fields["index"]), None)
    found = {**fields, "dataset_version": version if given is None else given.dataset_version}
    if given is not None and given.invalidation is not None:
        found["invalidation"] = given.invalidation
    if given is not None and given.cursor is not None:
        return {**found, "mode": "cursor", "cursor_from": None, "cursor_to": given.cursor}
    partition = _partition(owed, given, fields["trigger"])
    if partition is None:
        return {**found, "mode": "snapshot"}
    return {
        **found, "mode": "partition", "partition_key": partition.key, "start": partition.first, "end": partition.last,
        "revision": partition.revision if given is not None else None,
    }  # fmt: skip


def _partition(owed: Owed, given: Given | None, triggers: bool) -> Partition | None:
    if given is not None:
        return given.partition
    return owed.partition if triggers else None


def with_given(wire: bytes, given: Sequence[Given]) -> bytes:
    """The `wire` of a task that waited for partitions, with those that it is given now."""
    fields: dict[str, Any] = msgspec.json.decode(wire)
    by_index = {each.input_index: each for each in given}
    for known in fields["inputs"]:
        each = by_index.get(known["index"])
        if each is not None and each.partition is not None:
            part = each.partition
            known.update(dataset_version=str(each.dataset_version), start=part.first, end=part.last,
                         revision=part.revision)  # fmt: skip
    return msgspec.json.encode(fields)


def turn_of(wire: bytes | None) -> str:
    """What a blocked task of a job waits for: its window, since one is read at a time; a partition of an input; or
    other tasks of the job, because of its `max_concurrency`."""
    fields: dict[str, Any] = {} if wire is None else msgspec.json.decode(wire)
    if "window" in fields:
        return "window"
    partitions = [given for given in fields.get("inputs", ()) if given.get("mode") == "partition"]
    missing = any(given.get("revision") is None for given in partitions)
    return "waiting_for_input" if missing and fields["trigger"]["kind"] == BACKFILL else "concurrency_limit"
