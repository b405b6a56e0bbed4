"""Waiters and notifications inside one engine.

A waiter joins its line before it reads the database, so that nothing announced between the read and the wait is missed.
Waiters for the same work share a line. A notification wakes the first; a waiter that found work wakes the next, so that
a thousand idle polls do not all query the database at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from enum import Enum
from typing import Any, Protocol

from windlass.core.queue import QueueName
from windlass.store.notify import PendingNotifications


class Topic(Enum):
    """The topics of subscriptions."""

    QUEUES = "queues"  # a task may have become claimable, or settings have changed
    LEASES = "leases"  # a worker should read a cancel
    EFFECTS = "effects"  # the outbox has new rows
    MESSAGES = "messages"  # a message can be received
    SCHEDULES = "schedules"  # a schedule is due or has changed


class Timers(Protocol):
    """Calls back after a delay: by the event loop's clock, or by a virtual one."""

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Any: ...


class LoopTimers:
    def call_later(self, delay_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(delay_s, callback)


class Waiter:
    """A place in one or more lines. `idle` while it waits and has not been woken."""

    __slots__ = ("_event", "idle", "keys", "left", "woken_by")

    def __init__(self, keys: tuple[Hashable, ...]) -> None:
        self.keys = keys
        self._event = asyncio.Event()
        self.woken_by: Hashable | None = None
        self.idle = self.left = False

    def wake(self, key: Hashable) -> None:
        self.woken_by = key
        self._event.set()

    @property
    def woken(self) -> bool:
        return self.woken_by is not None

    async def wait(self, timers: Timers, timeout_s: float) -> bool:
        """Wait until woken. Returns False after `timeout_s`."""
        alarm = timers.call_later(timeout_s, self._event.set)
        self.idle = True
        try:
            await self._event.wait()
        finally:
            self.idle = False
            alarm.cancel()
        return self.woken


class Notifications:
    """The lines of one engine. A key begins with what is waited for: ("queue", …), ("task", id), ("lease", id),
    ("message", namespace, queue)."""

    def __init__(self, timers: Timers) -> None:
        self.timers = timers
        self._lines: dict[Hashable, deque[Waiter]] = {}
        self._groups: dict[tuple[str, str], dict[Hashable, None]] = {}  # ordered sets of keys, by queue
        self._alarms: dict[tuple[str, str], tuple[float, Any]] = {}
        self._news: dict[tuple[str, str] | None, int] = {}
        self._alarms_due: dict[tuple[str, str], int] = {}
        self._subscribers: dict[Topic, list[Callable[[QueueName | None], None]]] = {topic: [] for topic in Topic}

    # ----------------------------------------------------------------------------------------- subscriptions

    def subscribe(self, topic: Topic, callback: Callable[[QueueName | None], None]) -> Callable[[], None]:
        """Call `callback` for each event of the topic. Returns a function that ends the subscription."""
        self._subscribers[topic].append(callback)
        return lambda: self._subscribers[topic].remove(callback)

    def publish(self, topic: Topic, queue: QueueName | None = None) -> None:
        """Call all subscribers. `queue` is where it happened; None stands for any queue."""
        for callback in self._subscribers[topic]:
            callback(queue)

    # ----------------------------------------------------------------------------------------- waiting

    def queue_up(self, waiter: Waiter, namespace: str, queues: tuple[str, ...]) -> None:
        """Join the lines of these queues, behind other waiters that can take the same tasks."""
        for queue, key in zip(queues, waiter.keys, strict=True):
            self._groups.setdefault((namespace, queue), {})[key] = None
            self._lines.setdefault(key, deque()).append(waiter)

    def waiter(self, *key: Hashable) -> Waiter:
        waiter = Waiter((key,))
        self._lines.setdefault(key, deque()).append(waiter)
        return waiter

    async def wait(self, *key: Hashable, timeout_s: float) -> bool:
        """Wait in the line of this key until woken. Returns False after `timeout_s`."""
        waiter = self.waiter(*key)
        try:
            return await waiter.wait(self.timers, timeout_s)
        finally:
            self.leave(waiter)

    def leave(self, waiter: Waiter) -> None:
        """Leave all lines. Every waiter must leave in the end, also one that was woken."""
        waiter.left = True
        for key in waiter.keys:
            line = self._lines.get(key)
            if line is None:
                continue
            if waiter in line:
                line.remove(waiter)
            if not line:
                del self._lines[key]
                if isinstance(key, tuple) and key[0] == "queue":
                    self._groups[key[1], key[2]].pop(key, None)

    def pass_on(self, waiter: Waiter) -> None:
        """This waiter found work: wake the next in its lines, since there may be more."""
        for key in waiter.keys:
            self._wake_first(key)

    def idle(self, namespace: str, queue: str) -> Iterator[Waiter]:
        """The waiters for this queue that have not been woken."""
        for key in self._groups.get((namespace, queue), ()):
            for waiter in self._lines.get(key, ()):
                if waiter.idle and not waiter.woken:
                    yield waiter

    # ----------------------------------------------------------------------------------------- waking

    def announce(self, wakes: PendingNotifications) -> None:
        if wakes.everything:
            self._news[None] = self._news.get(None, 0) + 1
            self.publish(Topic.QUEUES)
            for key in list(self._lines):
                self._wake_all(key)
        for queue in wakes.queues:
            self.wake_queue(*queue)
        for task_id in wakes.tasks:
            self._wake_all(("task", task_id))
        for lease_id in wakes.leases:
            self._wake_all(("lease", lease_id))
        for queue in wakes.wakeup_messages:
            self._wake_first(("message", *queue))
            self.publish(Topic.MESSAGES, queue)
        if wakes.leases or wakes.everything:
            self.publish(Topic.LEASES)
        if wakes.effects or wakes.everything:
            self.publish(Topic.EFFECTS)
        if wakes.schedules or wakes.everything:
            self.publish(Topic.SCHEDULES)

    def wake_queue(self, namespace: str, queue: str) -> None:
        self._news[namespace, queue] = self._news.get((namespace, queue), 0) + 1
        self._wake_line(namespace, queue)

    def news(self, namespace: str, queue: str) -> int:
        """A counter that goes up when something may have become claimable, but not when a known due time comes."""
        return self._news.get((namespace, queue), 0) + self._news.get(None, 0)

    def stamp(self, namespace: str, queue: str) -> tuple[int, int]:
        """A value that changes whenever there may be something new to find in the queue."""
        return self.news(namespace, queue), self._alarms_due.get((namespace, queue), 0)

    def _wake_line(self, namespace: str, queue: str) -> None:
        self.publish(Topic.QUEUES, (namespace, queue))
        for key in list(self._groups.get((namespace, queue), ())):
            self._wake_first(key)

    def wake_waiting(self) -> None:
        """Wake the first of every line, as if something had happened in all queues with waiters."""
        self.publish(Topic.QUEUES)
        for namespace, queue in list(self._groups):
            self.wake_queue(namespace, queue)
        for key in list(self._lines):
            if isinstance(key, tuple) and key[0] != "queue":
                self._wake_all(key)

    def remind(self, namespace: str, queue: str, delay_s: float, now_s: float) -> None:
        """Set the alarm of a queue, one per queue, for the next time at which a task in it becomes due."""
        at_s = now_s + delay_s
        known = self._alarms.get((namespace, queue))
        if known is not None:
            if known[0] <= at_s:
                return
            known[1].cancel()

        def due() -> None:
            self._alarms.pop((namespace, queue), None)
            self._alarms_due[namespace, queue] = self._alarms_due.get((namespace, queue), 0) + 1
            self._wake_line(namespace, queue)

        handle = self.timers.call_later(max(0.0, delay_s), due)
        self._alarms[namespace, queue] = (at_s, handle)

    def close(self) -> None:
        for _, handle in self._alarms.values():
            handle.cancel()
        self._alarms.clear()

    def _wake_first(self, key: Hashable) -> None:
        """Wake the first waiter that has not been woken yet; one that was woken reads the database anyway."""
        for waiter in self._lines.get(key, ()):
            if not waiter.woken:
                waiter.wake(key)
                return

    def _wake_all(self, key: Hashable) -> None:
        for waiter in self._lines.get(key, ()):
            waiter.wake(key)
