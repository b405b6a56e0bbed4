"""What the kernel and our API must know of the lease contract."""

from __future__ import annotations

from uuid import UUID

from windlass.api.framework.route import API_TABLES
from windlass.contracts.lease.delivery import Invoke, Wakeup
from windlass.contracts.lease.server import dead_letters
from windlass.contracts.lease.wakeups.table import WakeupTable
from windlass.core.delivery import register_delivery, type_of
from windlass.engine.read.tasks import Waiting, register_explanation
from windlass.store.tables.view import Views


def register() -> None:
    register_delivery(Wakeup, Invoke)
    register_explanation(type_of(Wakeup), why_not_claimed)
    API_TABLES.append(dead_letters.table)


async def why_not_claimed(views: Views, task_id: UUID) -> Waiting:
    """Why no worker has claimed this task yet: what became of its message."""
    wakeup = await WakeupTable(views.session).get_wakeup(task_id)
    if wakeup is None:
        return Waiting("in_line", "no worker was woken for it yet")
    if wakeup.dead_at is not None:
        return Waiting("dead_letter", "no worker could handle its message: see `windlass dead-letters list`")
    return Waiting("announced", f"no worker has claimed it yet; wake-ups sent: {wakeup.times}", wakeup.again_at)
