"""Why a task whose worker is woken by a message was not claimed yet."""

from __future__ import annotations

from uuid import UUID

from windlass.contracts.lease.wakeups.table import WakeupTable
from windlass.engine.read.tasks import Waiting
from windlass.store.tables.view import Views


async def why_not_claimed(views: Views, task_id: UUID) -> Waiting:
    """What became of the message for this task."""
    wakeup = await WakeupTable(views.session).get_wakeup(task_id)
    if wakeup is None:
        return Waiting("in_line", "no worker was woken for it yet")
    if wakeup.dead_at is not None:
        return Waiting("dead_letter", "no worker could handle its message: see `windlass dead-letters list`")
    return Waiting("spoken_of", f"workers were woken for it, {wakeup.times} so far; again then", wakeup.again_at)
