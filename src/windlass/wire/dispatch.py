"""How the callback contract names what is ours: runs, and the delivery of an attempt."""

from __future__ import annotations

import base64
import hashlib
from uuid import UUID

from windlass.wire.id import ulid


def run_of(task_id: UUID, run_id: UUID | None) -> str:
    """A task that belongs to no run is a run of its own on this wire."""
    return ulid("run", run_id or task_id)


def dispatch_id(task_id: UUID, run_id: UUID | None, attempt: int) -> str:
    """The same for every delivery of one attempt, so that a repeat is recognised."""
    return f"dispatch:{run_of(task_id, run_id)}:{ulid('task', task_id)}:{attempt}"


def cloud_task_id(dispatch: str) -> str:
    """The name of a delivery where only letters and digits are allowed, and that nobody else can come upon."""
    digest = base64.b32encode(hashlib.sha256(dispatch.encode()).digest()).decode().rstrip("=").lower()
    return f"d_{digest[:26]}"
