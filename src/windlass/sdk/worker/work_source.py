"""What a worker needs of the engine that gives it work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from windlass.core.command import Claimed, Report
from windlass.core.lease import Activity, Extension, Lease


class WorkSource(Protocol):
    """Where work comes from: an engine in this process, or a remote server."""

    async def open_lease(self, worker: str, queues: Sequence[str], *, kinds: Sequence[str] | None,
                         labels: Sequence[str], namespace: str, ttl_s: float,
                         host: str, pid: int, version: str, concurrency: int) -> Lease: ...  # fmt: skip
    async def extend_lease(self, lease: Lease, active: Sequence[UUID] | None, activity: Activity) -> Extension: ...
    async def await_notification(self, lease: Lease, timeout_s: float) -> bool: ...
    async def end_lease(self, lease: Lease) -> None: ...
    async def claim(self, lease: Lease, limit: int, *, wait_s: float) -> list[Claimed]: ...
    async def report(self, reports: Sequence[Report]) -> Sequence[object]: ...  # an error is an answer too
