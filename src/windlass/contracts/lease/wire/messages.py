"""The messages of the lease contract: requests of lease holders to `/internal/*`, and the answers.

Both sides use these types. Unknown fields are ignored. Fields that the contract's document does not name are our
additions, and other implementations may leave them out.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

Number = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Position = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Amount = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Id = Annotated[str, Meta(min_length=1, max_length=100, description="A UUID, or `task_` and a ULID.")]
MANY = 10_000

Reason = Literal["AlreadyRunning", "Completed", "Canceled", "NotFound"]
ReportStatus = Literal["Completed", "Failed", "Canceled"]
TaskStatus = Literal["Queued", "Running", "Completed", "Failed", "Canceled"]


class Job(Struct, frozen=True):
    """The job of a task. Outside of a DAG: its namespace and its kind."""

    dag_name: str
    name: str


class TaskDetails(Struct, frozen=True, kw_only=True):
    """What to run. `config` is the payload. The fields from `namespace` on are our additions. `secrets` are the names
    of those that the job of a DAG gets, of the secrets of its queue. `idle_timeout_s` is how long its worker may wait
    for the next task before it ends; without it, for ever."""

    task_id: UUID
    attempt: int
    job: Job
    operator: str
    config: Raw
    inputs: Raw
    namespace: str
    queue: str
    kind: str
    outputs: Raw | UnsetType = UNSET
    trigger: Raw | UnsetType = UNSET
    traceparent: str | UnsetType = UNSET
    ends_at: datetime | UnsetType = UNSET
    cancel_grace_s: float
    secrets: list[str] | UnsetType = UNSET
    idle_timeout_s: int | UnsetType = UNSET


class ClaimRequest(Struct, frozen=True, kw_only=True):
    """Claim this task. `claim_id` is random: a repeat with the same one gets the attempt that the first call started,
    if its answer was lost."""

    task_id: Id
    worker_id: Annotated[str, Meta(min_length=1, max_length=200)]
    claim_id: UUID | None = None


class ClaimedAnswer(Struct, frozen=True, kw_only=True):
    """The caller holds the task from now on. `scratch_uri` is the folder of this attempt."""

    status: Literal["Claimed"] = "Claimed"
    attempt: int
    lease_token: UUID
    lease_expires_at: datetime
    task: TaskDetails
    scratch_uri: str
    server_time: datetime


class NotClaimedAnswer(Struct, frozen=True, kw_only=True):
    """Not claimed: do not run the task, and ack its message. `detail`, `waits_for` and `retry_after_s` say why."""

    status: Literal["NotClaimed"] = "NotClaimed"
    reason: Reason
    detail: str | UnsetType = UNSET
    waits_for: str | UnsetType = UNSET
    retry_after_s: float | UnsetType = UNSET


class FetchQuery(Struct, frozen=True):
    """The task to fetch."""

    task_id: str


class FetchAnswer(TaskDetails, frozen=True, kw_only=True):
    """A task without its lease token."""

    status: TaskStatus


class Fenced(Struct, frozen=True, kw_only=True):
    """A request of a lease holder: its task, attempt and token."""

    task_id: Id
    attempt: Number
    lease_token: UUID


class HeartbeatRequest(Fenced, frozen=True, kw_only=True):
    """Extend the lease."""


class HeartbeatAnswer(Struct, frozen=True, kw_only=True):
    """The lease was extended. `Canceled`: the task was cancelled, and its holder has `cancel_grace_s` to report.
    `backpressure`: too many tasks wait for what this one makes, so it should make less."""

    lease_expires_at: datetime
    status: Literal["Running", "Canceled"]
    cancel_reason: str | UnsetType = UNSET
    backpressure: bool | UnsetType = UNSET
    server_time: datetime


class Event(Struct, frozen=True, kw_only=True):
    """A dataset has reached a cursor, or a partition of it is complete. Ranges are inclusive."""

    dataset_uuid: UUID
    dataset_version: UUID
    cursor: Position | None = None
    partition_key: str | None = None
    start: Position | None = None
    end: Position | None = None


class EventsRequest(Fenced, frozen=True, kw_only=True):
    """Report dataset events."""

    events: Annotated[list[Event], Meta(max_length=MANY)]


class AcceptedAnswer(Struct, frozen=True, kw_only=True):
    """The events are recorded, by this request or an earlier one."""

    status: Literal["Accepted"] = "Accepted"
    accepted: int = 1


class PublishRequest(Fenced, frozen=True, kw_only=True):
    """Publish a written batch of records, which goes into the table of its dataset."""

    dataset_uuid: UUID
    dataset_version: UUID
    batch_uri: Annotated[str, Meta(min_length=1, max_length=2000)]
    record_count: Amount


class PublishAnswer(Struct, frozen=True, kw_only=True):
    """The batch is recorded under this id, by this request or an earlier one."""

    status: Literal["Accepted"] = "Accepted"
    publish_id: UUID


class Bounds(Struct, frozen=True, omit_defaults=True):
    """The least and the greatest value of a column, both inclusive."""

    gte: str | int | float | None = None
    lte: str | int | float | None = None


class InvalidateRequest(Fenced, frozen=True, kw_only=True):
    """Report that a part of an own output was wrong: a partition, or rows whose columns lie between bounds. An addition
    of ours."""

    dataset_uuid: UUID
    dataset_version: UUID
    scope: Literal["partition", "row_range"]
    partition_key: str | None = None
    row_filter: dict[str, Bounds] | None = None
    reason: Literal["reorg", "correction", "manual", "schema_change"]


class InvalidateAnswer(Struct, frozen=True, kw_only=True):
    """The invalidation is recorded under this id, by this request or an earlier one. The jobs that read the data get
    their tasks."""

    status: Literal["Accepted"] = "Accepted"
    invalidation_id: UUID


class Output(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An output of the task."""

    output_index: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    dataset_uuid: UUID
    dataset_version: UUID
    location: Annotated[str, Meta(max_length=2000)] | None = None
    cursor: Position | None = None
    partition_key: Annotated[str, Meta(max_length=500)] | None = None
    start: Position | None = None
    end: Position | None = None
    row_count: Amount | None = None


class ErrorDetails(Struct, frozen=True, kw_only=True):
    """Details of a failure. An addition of ours."""

    category: Literal["USER_CODE", "DATA_QUALITY", "INFRASTRUCTURE", "CONFIGURATION", "TIMEOUT", "CANCELLED"] = (
        "USER_CODE"
    )
    reason: str = ""
    stack_trace: str = ""
    retryable: bool | None = None
    retry_after_s: Annotated[float, Meta(ge=0, le=100 * 365 * 86400)] | None = None


class CompleteRequest(Struct, frozen=True, kw_only=True):
    """The attempt is over. Outputs and events are committed with a success; those of any other outcome are kept for
    audit only. `result` is our addition: the result of the task, instead of its outputs. A caller without a lease may
    report a cancel, without an attempt or with 0."""

    task_id: Id
    attempt: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    lease_token: UUID | None = None
    status: ReportStatus
    events: Annotated[list[Event], Meta(max_length=MANY)] | None = None
    outputs: Annotated[list[Output], Meta(max_length=MANY)] | None = None
    error_message: str | None = None
    error: ErrorDetails | None = None
    result: Raw | UnsetType = UNSET


class CompleteAnswer(Struct, frozen=True, kw_only=True):
    """The recorded outcome of the attempt, also if another attempt follows."""

    status: ReportStatus


class RefusedAnswer(Struct, frozen=True, kw_only=True):
    """A refusal. `error` is a stable code, `message` is for people; `task_status` and `current_attempt` describe the
    task."""

    error: str
    message: str
    field: str | UnsetType = UNSET
    task_status: TaskStatus | UnsetType = UNSET
    current_attempt: int | UnsetType = UNSET
