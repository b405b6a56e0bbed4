"""The envelope that is pushed to a worker, and the requests and answers of its callbacks.

Names and limits are those of the contract, in camelCase. Fields under "ours" are our additions, and optional. Unknown
fields are ignored in both directions, since workers and engines are not upgraded together. Text for people has no limit
here: the engine shortens it, since a refused report would be lost.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from windlass.core.delivery import MS_MAX

Time = Annotated[datetime, Meta(tz=True)]
Attempt = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Ms = Annotated[int, Meta(ge=0, le=MS_MAX)]
Measure = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Word = Annotated[str, Meta(min_length=1, max_length=200)]


class _Message(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    pass


class Resources(_Message, frozen=True, kw_only=True, omit_defaults=False):
    """What the task may use."""

    memory_bytes: Measure = 536_870_912
    cpu_millicores: Measure = 1000
    timeout_ms: Measure = 3_600_000


class TaskEnvelope(_Message, frozen=True, kw_only=True, omit_defaults=False):
    """One attempt of a task, with everything that a worker needs to run it and to call back."""

    task_id: str
    run_id: str
    asset_id: str
    task_key: Any
    tenant_id: str
    workspace_id: str
    attempt: Attempt
    resources: Resources = Resources()
    enqueued_at: Time
    deadline: Time | None = None
    callback_base_url: str
    task_token: str
    token_expires_at: Time
    heartbeat_interval_ms: Annotated[int, Meta(ge=1)] = 30_000
    heartbeat_timeout_ms: Annotated[int, Meta(ge=1)] = 90_000
    cancel_grace_period_ms: Ms = 30_000
    # ours
    kind: str = ""  # of the task; else the asset's id
    queue: str = ""
    payload: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"{}"))  # a schema has no word for it
    failures: Annotated[int, Meta(ge=0)] = 0
    ends_at: Time | None = None  # when the engine ends this attempt: its timeout or its deadline
    traceparent: str | None = None
    checkpoint: msgspec.Raw | UnsetType = UNSET  # what an earlier attempt left behind


class Started(_Message, frozen=True, kw_only=True):
    """The worker has started the attempt."""

    attempt: Attempt
    worker_id: Word
    started_at: Time | None = None


class Line(_Message, frozen=True, kw_only=True):
    """A line of the attempt's log. Lines are numbered from 0, so that a repeated line is recognised."""

    number: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]
    message: str
    age_ms: Annotated[int, Meta(ge=0, le=MS_MAX)] = 0


class Heartbeat(_Message, frozen=True, kw_only=True):
    """The worker is alive."""

    attempt: Attempt
    worker_id: Word
    heartbeat_at: Time | None = None
    progress_pct: Annotated[int, Meta(ge=0, le=100)] | None = None
    message: str | None = None
    # ours
    checkpoint: msgspec.Raw | UnsetType = UNSET
    log: tuple[Line, ...] = ()


class TaskError(_Message, frozen=True, kw_only=True):
    """Why an attempt failed."""

    category: Literal["USER_CODE", "DATA_QUALITY", "INFRASTRUCTURE", "CONFIGURATION", "TIMEOUT", "CANCELLED"]
    message: str
    stack_trace: str | None = None
    retryable: bool | None = None
    # ours
    reason: str | None = None
    retry_after_ms: Ms | None = None


class Metrics(_Message, frozen=True, kw_only=True):
    """The resources that an attempt used."""

    cpu_time_ms: Measure | None = None
    peak_memory_bytes: Measure | None = None
    io_read_bytes: Measure | None = None
    io_write_bytes: Measure | None = None


class Completed(_Message, frozen=True, kw_only=True):
    """The attempt has ended."""

    attempt: Attempt
    worker_id: Word
    outcome: Literal["SUCCEEDED", "FAILED", "CANCELLED"]
    completed_at: Time | None = None
    output: msgspec.Raw | UnsetType = UNSET
    error: TaskError | None = None
    metrics: Metrics | None = None
    cancelled_during_phase: str | None = None
    partial_progress: msgspec.Raw | UnsetType = UNSET
    # ours
    released: bool = False  # not a failure of the task: the worker stops, and another may run it


class Answer(_Message, frozen=True, kw_only=True):
    """The answer to a callback. Each callback has a few of these fields; an error has `error`."""

    acknowledged: bool = False
    server_time: Time | None = None
    should_cancel: bool = False
    cancel_reason: str | None = None
    task_token: str | None = None
    token_expires_at: Time | None = None
    final_state: str | None = None
    worker_id: str | None = None  # ours: the worker that started the attempt first, if it is another one
    error: str | None = None
    message: str | None = None
    state: str | None = None
    expected_attempt: int | None = None
    received_attempt: int | None = None
