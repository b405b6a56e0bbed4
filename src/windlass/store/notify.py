"""Who has to be woken by a change: collected while a transaction runs, announced when it has been committed.

Owns the spelling of a notification. PostgreSQL folds equal messages of one transaction into one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import UUID

from windlass.core.states import State, Transition, Verb

TAKEN = frozenset({Verb.CANCEL, Verb.TIME_OUT})  # the attempt may be over without a word of its worker
SEPARATOR = "\x1f"  # refused in every name, so that it cannot be part of one


@dataclass(slots=True)
class PendingNotifications:
    """Queues where something may be claimable, awaited tasks that ended, leases whose worker has to read a cancel."""

    queues: set[tuple[str, str]] = field(default_factory=set)
    tasks: set[UUID] = field(default_factory=set)
    leases: set[UUID] = field(default_factory=set)
    effects: bool = False
    wakeup_messages: set[tuple[str, str]] = field(default_factory=set)  # queues with wake-up messages to receive
    schedules: bool = False  # one is due earlier than was known
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
    """What these moves make possible, and the queues in which they freed a place."""
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
        if move.verb in TAKEN and before.state is State.RUNNING and before.lease_id is not None:
            wakes.leases.add(before.lease_id)  # its worker need not go on until the next heartbeat
        wakes.effects = wakes.effects or bool(move.effects)
    return wakes, freed - wakes.queues
