"""Wake-ups inside one engine: who waits for what, and who is told when it may have come.

A waiter takes its ticket before it looks, so that what happens between the look and the wait is not missed. Waiters for
the same work stand in one line; a wake-up goes to the first, and whoever found work passes it on to the next, so that
a thousand idle polls do not all ask the database at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Protocol

from windlass.store.wake import Wakes


class Timers(Protocol):
    """How the engine waits for a moment: the event loop's clock, or a virtual one."""

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Any: ...


class LoopTimers:
    def call_later(self, delay_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(delay_s, callback)


class Ticket:
    """One waiter's place in one or more lines. `idle` from the moment it has looked and waits."""

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
        """True if it was woken, False if the time is over."""
        alarm = timers.call_later(timeout_s, self._event.set)
        self.idle = True
        try:
            await self._event.wait()
        finally:
            self.idle = False
            alarm.cancel()
        return self.woken


class Hub:
    """The lines of one engine. A key begins with what is waited for: ("queue", …), ("task", id), ("lease", id),
    ("message", namespace, queue)."""

    def __init__(self, timers: Timers) -> None:
        self.timers = timers
        self._lines: dict[Hashable, deque[Ticket]] = {}
        self._groups: dict[tuple[str, str], dict[Hashable, None]] = {}  # a set that keeps its order
        self._alarms: dict[tuple[str, str], tuple[float, Any]] = {}
        self._news: dict[tuple[str, str] | None, int] = {}
        self._rings: dict[tuple[str, str], int] = {}
        self.on_effects: Callable[[], None] = lambda: None
        self.on_queue: Callable[[tuple[str, str] | None], None] = lambda _: None  # None: any of them
        self.on_schedules: Callable[[], None] = lambda: None
        self.on_leases: Callable[[], None] = lambda: None

    # ----------------------------------------------------------------------------------------- waiting

    def queue_up(self, ticket: Ticket, namespace: str, queues: tuple[str, ...]) -> None:
        """Stand in the lines of these queues, behind others who can take the same tasks."""
        for queue, key in zip(queues, ticket.keys, strict=True):
            self._groups.setdefault((namespace, queue), {})[key] = None
            self._lines.setdefault(key, deque()).append(ticket)

    def ticket(self, *key: Hashable) -> Ticket:
        ticket = Ticket((key,))
        self._lines.setdefault(key, deque()).append(ticket)
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Every ticket leaves in the end, also one that was woken."""
        ticket.left = True
        for key in ticket.keys:
            line = self._lines.get(key)
            if line is None:
                continue
            if ticket in line:
                line.remove(ticket)
            if not line:
                del self._lines[key]
                if isinstance(key, tuple) and key[0] == "queue":
                    self._groups[key[1], key[2]].pop(key, None)

    def pass_on(self, ticket: Ticket) -> None:
        """Work was found: there may be more of it for the next in line."""
        for key in ticket.keys:
            self._wake_first(key)

    def idle(self, namespace: str, queue: str) -> Iterator[Ticket]:
        """Who waits for this queue and has not been woken."""
        for key in self._groups.get((namespace, queue), ()):
            for ticket in self._lines.get(key, ()):
                if ticket.idle and not ticket.woken:
                    yield ticket

    # ----------------------------------------------------------------------------------------- waking

    def announce(self, wakes: Wakes) -> None:
        if wakes.everything:
            self._wake_everybody()
        for queue in wakes.queues:
            self.wake_queue(*queue)
        for task_id in wakes.tasks:
            self._wake_all(("task", task_id))
        for lease_id in wakes.leases:
            self._wake_all(("lease", lease_id))
        for queue in wakes.letters:
            self._wake_first(("message", *queue))
        if wakes.leases or wakes.everything:
            self.on_leases()
        if wakes.effects or wakes.everything:
            self.on_effects()
        if wakes.schedules or wakes.everything:
            self.on_schedules()

    def wake_queue(self, namespace: str, queue: str) -> None:
        self._news[namespace, queue] = self._news.get((namespace, queue), 0) + 1
        self._wake_line(namespace, queue)

    def news(self, namespace: str, queue: str) -> int:
        """Goes up when something may have become claimable; not when a moment comes that was known before."""
        return self._news.get((namespace, queue), 0) + self._news.get(None, 0)

    def stamp(self, namespace: str, queue: str) -> tuple[int, int]:
        """Another one as soon as there may be something to find in the queue that was not there before."""
        return self.news(namespace, queue), self._rings.get((namespace, queue), 0)

    def _wake_line(self, namespace: str, queue: str) -> None:
        self.on_queue((namespace, queue))
        for key in list(self._groups.get((namespace, queue), ())):
            self._wake_first(key)

    def wake_waiting(self) -> None:
        """The first of every line, as if something had happened in all queues that anybody waits for."""
        self.on_queue(None)
        for namespace, queue in list(self._groups):
            self.wake_queue(namespace, queue)
        for key in list(self._lines):
            if isinstance(key, tuple) and key[0] != "queue":
                self._wake_all(key)

    def remind(self, namespace: str, queue: str, delay_s: float, now_s: float) -> None:
        """One alarm a queue, for the next moment at which a task in it becomes due."""
        at_s = now_s + delay_s
        known = self._alarms.get((namespace, queue))
        if known is not None:
            if known[0] <= at_s:
                return
            known[1].cancel()
        handle = self.timers.call_later(max(0.0, delay_s), lambda: self._ring(namespace, queue))
        self._alarms[namespace, queue] = (at_s, handle)

    def close(self) -> None:
        for _, handle in self._alarms.values():
            handle.cancel()
        self._alarms.clear()

    def _ring(self, namespace: str, queue: str) -> None:
        self._alarms.pop((namespace, queue), None)
        self._rings[namespace, queue] = self._rings.get((namespace, queue), 0) + 1
        self._wake_line(namespace, queue)

    def _wake_first(self, key: Hashable) -> None:
        """The first who has not been woken yet; one who was woken will look anyway."""
        for ticket in self._lines.get(key, ()):
            if not ticket.woken:
                ticket.wake(key)
                return

    def _wake_all(self, key: Hashable) -> None:
        for ticket in self._lines.get(key, ()):
            ticket.wake(key)

    def _wake_everybody(self) -> None:
        self._news[None] = self._news.get(None, 0) + 1
        self.on_queue(None)
        for key in list(self._lines):
            self._wake_all(key)
