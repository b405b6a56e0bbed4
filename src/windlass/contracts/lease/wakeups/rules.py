"""Wake-ups: when a message is sent for a claimable task, and when it is sent again.

A message may be lost, so a task that no worker claims is announced again: less and less often, but soon when a worker
reports that it received nothing. A task whose claim would be refused is not announced: one that is paused, not due or
over a limit has to become claimable first.
"""

from __future__ import annotations

from uuid import UUID

import msgspec

from windlass.contracts.lease.delivery import Wakeup
from windlass.core.effects import register_effect
from windlass.core.ids import derived_id
from windlass.core.retry import capped_power
from windlass.core.states import Effect

WAKEUP = "wakeup"
register_effect(WAKEUP, repeatable=True)
LOST_AFTER_S, LOST_AFTER_MAX_S = 20.0, 300.0  # for an idle worker, older messages are lost; doubled with each repeat
REFUSED_AGAIN_S = 1.0  # after a claim that came too early; the next scan decides whether the task is claimable


class WakeupMessage(msgspec.Struct, frozen=True):
    """A message to send. `effect_id` is new with each message, and the same when the outbox sends one twice."""

    effect_id: UUID
    namespace: str
    queue: str
    wakeup: Wakeup
    task_id: UUID

    @property
    def address(self) -> str:
        """The address of its queue at the carrier."""
        return self.wakeup.address_of(self.namespace, self.queue)


def wake_up(namespace: str, queue: str, task_id: UUID, attempt: int, times: int) -> Effect:
    """The effect that sends the `times`-th message since the last attempt, which had this number. No running attempt
    depends on it."""
    id_ = derived_id(WAKEUP, task_id, attempt, times)
    return Effect(id_, WAKEUP, namespace, task_id, attempt, {"queue": queue, "times": times})


def message_id(task_id: UUID, attempt: int) -> UUID:
    """The id of a message in PostgreSQL: the same for all messages of one attempt."""
    return derived_id("message", task_id, attempt)


def resend_after_s(wakeup: Wakeup, times: int) -> float:
    """Seconds from the `times`-th message to the next, unless a worker reports that it received nothing."""
    first_s = wakeup.resend_ms / 1000
    return capped_power(first_s, 2.0, times - 1, max(first_s, wakeup.resend_max_ms / 1000))
