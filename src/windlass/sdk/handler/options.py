"""The keyword options of handlers, steps, submissions and workers, and the checks that they share.

Durations are text ("90s", "10m", "2d"), timedeltas, or seconds. All options have defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypedDict
from uuid import UUID

from windlass.core.retry import DEFAULT_POLICY, Policy
from windlass.core.submission import check_policy
from windlass.errors import Invalid
from windlass.sdk.duration import Duration, seconds


class TaskOptions(TypedDict, total=False):
    """The options of `@app.task` and `@app.workflow`."""

    kind: str  # the name under which tasks are submitted; default: app.function
    queue: str
    priority: int
    max_attempts: int
    max_losses: int
    timeout: Duration | None
    retry_delay: Duration
    retry_delay_max: Duration
    retry_factor: float
    cancel_grace: Duration
    concurrency_key: Callable[..., object] | None  # called with the arguments of a submission
    retry_on: tuple[type[BaseException], ...] | None  # only these are retried
    run_in: Literal["thread", "process"] | None  # default: async functions in the event loop, others in a thread


class StepOptions(TypedDict, total=False):
    """The options of `@app.step` and `ctx.options`."""

    name: str  # default: the name of the function
    queue: str  # run as a separate task from this queue
    max_attempts: int
    timeout: Duration | None  # of one try
    retry_delay: Duration
    retry_delay_max: Duration
    retry_factor: float
    retry_on: tuple[type[BaseException], ...] | None  # only these are retried


class SubmitOptions(TypedDict, total=False):
    """How a submission may differ from the handler's own settings."""

    queue: str
    priority: int
    delay: Duration
    available_at: datetime
    deadline_at: datetime
    idempotency_key: str
    concurrency_key: str
    run_id: UUID
    after: Sequence[UUID]
    connection: Any  # of asyncpg, psycopg, SQLAlchemy or Django: submit in its transaction, which must have begun


class WorkerOptions(TypedDict, total=False):
    """The options of a worker, the same in code and on the command line."""

    queues: Sequence[str] | None  # default: the queues that the app's handlers name
    kinds: Sequence[str] | None  # of the handlers it has; default: all
    name: str | None  # default: host and process id
    namespace: str
    labels: Sequence[str]  # what this worker offers and tasks may require
    version: str  # of the program, shown to operators
    concurrency: int  # how many tasks run at the same time
    prefetch: int  # how many more tasks it claims ahead
    lease_ttl_s: float  # how long after its last heartbeat its tasks go to other workers
    heartbeat_process: bool  # keep the lease while a handler blocks the event loop


def check_known(options: Mapping[str, object], declared: type, what: str = "option") -> None:
    """Raise Invalid for a name that this TypedDict does not declare."""
    unknown = options.keys() - declared.__annotations__.keys()
    if unknown:
        raise Invalid(f"there is no {what} {min(unknown)}", field=f"{what}s")


def check_retry_on(kinds: object) -> None:
    if kinds is None:
        return
    if not isinstance(kinds, tuple) or not all(isinstance(k, type) and issubclass(k, BaseException) for k in kinds):
        raise Invalid("must be a tuple of exception classes", field="retry_on")


def retry_policy(options: Mapping[str, Any]) -> Policy:
    """The checked retry policy of these options of a task or a step."""
    timeout, default = options.get("timeout"), DEFAULT_POLICY
    policy = Policy(
        max_attempts=options.get("max_attempts", default.max_attempts),
        max_losses=options.get("max_losses", default.max_losses),
        timeout_s=None if timeout is None else seconds("timeout", timeout, least=0.001),
        cancel_grace_s=seconds("cancel_grace", options.get("cancel_grace", default.cancel_grace_s)),
        retry_delay_s=seconds("retry_delay", options.get("retry_delay", default.retry_delay_s)),
        retry_factor=options.get("retry_factor", default.retry_factor),
        retry_delay_max_s=seconds("retry_delay_max", options.get("retry_delay_max", default.retry_delay_max_s)),
    )
    check_policy(policy)
    return default if policy == default else policy  # the same object, which submissions recognise at no cost
