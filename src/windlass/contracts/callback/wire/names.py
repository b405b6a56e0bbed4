"""The names of runs and deliveries in the callback contract."""

from __future__ import annotations

import base64
import hashlib
from uuid import UUID

from windlass.net.ids import ulid


def run_of(task_id: UUID, run_id: UUID | None) -> str:
    """The id of a task's run. A task without a run is its own run in this contract."""
    return ulid("run", run_id or task_id)


def dispatch_id(task_id: UUID, run_id: UUID | None, attempt: int) -> str:
    """The id of an attempt's delivery. It is the same for every repeat, so that a worker recognises one."""
    return f"dispatch:{run_of(task_id, run_id)}:{ulid('task', task_id)}:{attempt}"


def cloud_task_id(dispatch: str) -> str:
    """The name of a delivery in letters and digits, as Cloud Tasks requires. A hash keeps it unique."""
    digest = base64.b32encode(hashlib.sha256(dispatch.encode()).digest()).decode().rstrip("=").lower()
    return f"d_{digest[:26]}"
