"""What the kernel and our API must know of the lease contract."""

from __future__ import annotations

from windlass.api.framework.route import CONTRACT_TABLES
from windlass.contracts.lease.delivery import Invoke, Wakeup
from windlass.contracts.lease.server import dead_letters
from windlass.contracts.lease.wakeups.waiting import why_not_claimed
from windlass.core.delivery import register_delivery, type_of
from windlass.engine.read.tasks import register_explanation


def register() -> None:
    register_delivery(Wakeup, Invoke)
    register_explanation(type_of(Wakeup), why_not_claimed)
    CONTRACT_TABLES.append(dead_letters.table)
