"""Leases: the time-bounded right of a worker to run attempts.

One lease may cover many attempts (a worker process that claims in batches) or a single one. Its row is narrow, and
no index holds its time, so that extending it a thousand times costs one small row, however many tasks it covers.
"""

from __future__ import annotations

from uuid import UUID

import msgspec

from windlass.core.states import Instant
from windlass.core.validation import check_count, check_name, check_names, check_seconds, check_type
from windlass.errors import Invalid


class Lease(msgspec.Struct, frozen=True):
    """`kinds=None` means that the worker takes every kind. A lease that ended early has `expires_at` in the past.
    `host`, `pid` and `version` are shown to people; no rule reads them."""

    id: UUID
    namespace: str
    worker: str
    queues: tuple[str, ...]
    kinds: tuple[str, ...] | None
    labels: tuple[str, ...]
    ttl_s: float
    expires_at: Instant
    host: str = ""
    pid: int = 0
    version: str = ""
    delivery: str = "pull"  # the type of delivery of the queues whose tasks it takes


PID_MAX = 2**31 - 1


class Activity(msgspec.Struct, frozen=True):
    """Sent with a heartbeat: how many attempts ended since the last one, and whether the worker drains."""

    completed: int = 0
    failed: int = 0
    draining: bool = False


IDLE = Activity()


class Reach(msgspec.Struct, frozen=True):
    """How another process reaches the same source of work: `module.LeaseExtender(**settings)` extends a lease there."""

    module: str
    settings: dict[str, str | int | float | bool | None]


def check_about(host: object, pid: object, version: object) -> None:
    """Check the description of a worker. Each field may be empty."""
    for field, value in (("host", host), ("version", version)):
        if value != "":
            check_name(field, value)
    check_count("pid", pid, most=PID_MAX)


def check_lease(lease: object) -> None:
    """A lease comes back from its worker, so it has to be checked."""
    if not isinstance(lease, Lease):
        raise Invalid(f"must be a lease, not {type(lease).__name__}", field="lease")
    check_type("lease.id", lease.id, UUID)
    check_name("lease.namespace", lease.namespace)
    check_name("lease.worker", lease.worker)
    check_names("lease.queues", lease.queues)
    if not lease.queues:
        raise Invalid("must name at least one queue", field="lease.queues")
    if lease.kinds is not None:
        check_names("lease.kinds", lease.kinds)
    check_names("lease.labels", lease.labels)
    check_seconds("lease.ttl_s", lease.ttl_s)
    check_about(lease.host, lease.pid, lease.version)
    check_name("lease.delivery", lease.delivery)


class CancelSignal(msgspec.Struct, frozen=True):
    task_id: UUID
    attempt: int
    reason: str


class Extension(msgspec.Struct, frozen=True):
    """The answer to a heartbeat: until when the lease lasts, what to stop, and whether to drain."""

    expires_at: Instant
    cancels: tuple[CancelSignal, ...] = ()
    lost: tuple[UUID, ...] = ()
    drain: bool = False
