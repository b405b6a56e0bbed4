"""Wake-ups: when a message is sent for a task that could be claimed, and when once more.

A message may be lost, so that a task which nobody claims is spoken of again: less and less often while nobody says
that he waits for one, soon when somebody does. It is not spoken of where a claim would be refused: what is paused, not
due or over a limit has to become claimable first.
"""

from __future__ import annotations

from uuid import UUID

import msgspec

from windlass.core.delivery import Wakeup
from windlass.core.id import derived_id
from windlass.core.queue import Usage
from windlass.core.retry import capped_power
from windlass.core.transition import Effect, Instant

WAKEUP = "wakeup"
UNHEARD_S, UNHEARD_MAX_S = 20.0, 300.0  # a message is older than that, at first and at most, when somebody misses it
REFUSED_AGAIN_S = 1.0  # after a claim that came too early; the look that follows says whether it is time


class Letter(msgspec.Struct, frozen=True):
    """A message to send. `id` is the same each time one is sent for this attempt of its task, `effect_id` another each
    time."""

    id: UUID
    effect_id: UUID
    namespace: str
    queue: str
    wakeup: Wakeup
    task_id: UUID

    @property
    def address(self) -> str:
        """Where it goes at its carrier."""
        return self.wakeup.address_of(self.namespace, self.queue)


def wake_up(namespace: str, queue: str, task_id: UUID, attempt: int, times: int) -> Effect:
    """The effect that sends a message for the `times`-th time since the last attempt, which had this number. It is
    never one that a running attempt needs."""
    return Effect(
        derived_id(WAKEUP, task_id, attempt, times),
        WAKEUP,
        namespace,
        task_id,
        attempt,
        {"queue": queue, "times": times},
    )


def message_id(task_id: UUID, attempt: int) -> UUID:
    """By this a carrier that can knows a message that it has already."""
    return derived_id("message", task_id, attempt)


def resend_after_s(wakeup: Wakeup, times: int) -> float:
    """How long to wait after the `times`-th message before the next, if nobody asks for one."""
    first_s = wakeup.resend_ms / 1000
    return capped_power(first_s, 2.0, times - 1, max(first_s, wakeup.resend_max_ms / 1000))


def with_announced(usage: Usage, announced: Usage, now: Instant) -> Usage:
    """What runs, and what somebody is about to claim: both have their places, and their share of the rate."""
    by_kind, by_key = dict(usage.running_by_kind), dict(usage.running_by_key)
    for counts, more in ((by_kind, announced.running_by_kind), (by_key, announced.running_by_key)):
        for name, count in more.items():
            counts[name] = counts.get(name, 0) + count
    starts = (*usage.starts, (now, announced.running)) if announced.running else usage.starts
    return Usage(usage.running + announced.running, by_kind, by_key, starts)
