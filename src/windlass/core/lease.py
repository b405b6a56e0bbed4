"""Leases: the time-bounded right of a worker to run attempts.

One lease may cover many attempts (a worker process that claims in batches) or a single one. Its row is narrow, and
no index holds its time, so that extending it a thousand times costs one small row, however many tasks it covers.
"""

from __future__ import annotations

from uuid import UUID

import msgspec

from windlass.core.transition import Instant


class Lease(msgspec.Struct, frozen=True):
    """`kinds=None` means that the worker takes every kind. A lease that ended early has `expires_at` in the past."""

    id: UUID
    namespace: str
    worker: str
    queues: tuple[str, ...]
    kinds: tuple[str, ...] | None
    labels: tuple[str, ...]
    ttl_s: float
    expires_at: Instant


class CancelSignal(msgspec.Struct, frozen=True):
    task_id: UUID
    attempt: int
    reason: str


class Extension(msgspec.Struct, frozen=True):
    """The answer to a heartbeat: until when, and what to stop."""

    expires_at: Instant
    cancels: tuple[CancelSignal, ...] = ()
    lost: tuple[UUID, ...] = ()
