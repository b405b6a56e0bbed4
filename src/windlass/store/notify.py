"""Notifications: collected while a transaction runs, sent with its commit. Defines their text form.

PostgreSQL sends equal messages of one transaction once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import UUID

from windlass.core.states import State, Transition, Verb

ENDED_BY_ENGINE = frozenset({Verb.CANCEL, Verb.TIME_OUT})  # the attempt may end without a report of its worker
SEPARATOR = "\x1f"  # no name may contain it


@dataclass(slots=True)
class PendingNotifications:
    """Queues with tasks that may be claimed, awaited tasks that ended, leases whose worker must read a cancel."""

    queues: set[tuple[str, str]] = field(default_factory=set)
    tasks: set[UUID] = field(default_factory=set)
    leases: set[UUID] = field(default_factory=set)
    effects: bool = False
    wakeup_messages: set[tuple[str, str]] = field(default_factory=set)  # queues with wake-up messages to receive
    schedules: bool = False  # one is due earlier than before
    everything: bool = False

    def __bool__(self) -> bool:
        some = self.queues or self.tasks or self.leases or self.wakeup_messages
        return bool(some or self.effects or self.schedules or self.everything)

    def messages(self) -> list[str]:
        out = [SEPARATOR.join(("queue", *queue)) for queue in sorted(self.queues)]
        out += [SEPARATOR.join(("task", str(task_id))) for task_id in sorted(self.tasks)]
        out += [SEPARATOR.join(("lease", str(lease_id))) for lease_id in sorted(self.leases)]
        out += [SEPARATOR.join(("message", *queue)) for queue in sorted(self.wakeup_messages)]
        return out + (["effect"] if self.effects else []) + (["schedule"] if self.schedules else [])


def parse(message: str) -> PendingNotifications:
    """Parse a notification. An unknown one wakes all waiters: too many wake-ups are harmless, a missing one is not."""
    match message.split(SEPARATOR):
        case ["queue", namespace, queue]:
            return PendingNotifications(queues={(namespace, queue)})
        case ["task", task_id]:
            return PendingNotifications(tasks={UUID(task_id)})
        case ["lease", lease_id]:
            return PendingNotifications(leases={UUID(lease_id)})
        case ["message", namespace, queue]:
            return PendingNotifications(wakeup_messages={(namespace, queue)})
        case ["effect"]:
            return PendingNotifications(effects=True)
        case ["schedule"]:
            return PendingNotifications(schedules=True)
    return PendingNotifications(everything=True)


def wakes_of(moves: Iterable[Transition]) -> tuple[PendingNotifications, set[tuple[str, str]]]:
    """The notifications of these moves, and the queues in which a running task ended."""
    wakes, freed = PendingNotifications(), set()
    for move in moves:
        before, after = move.before, move.after
        if after.state is State.QUEUED:
            wakes.queues.add((after.namespace, after.queue))
        if before.state is State.RUNNING and after.state is not State.RUNNING:
            freed.add((after.namespace, after.queue))
        if after.awaited and after.terminal and not before.terminal:
            wakes.tasks.add(after.id)
        if after.state is State.RUNNING and after.cancel is not before.cancel and after.lease_id is not None:
            wakes.leases.add(after.lease_id)
        if move.verb in ENDED_BY_ENGINE and before.state is State.RUNNING and before.lease_id is not None:
            wakes.leases.add(before.lease_id)  # so that its worker stops before the next heartbeat
        wakes.effects = wakes.effects or bool(move.effects)
    return wakes, freed - wakes.queues
