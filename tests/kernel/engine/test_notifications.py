"""Subscriptions: any number of parts hear of the same thing, in whatever order they were made."""

from __future__ import annotations

from windlass.core.queue import QueueName
from windlass.engine.notifications import LoopTimers, Notifications, Topic
from windlass.store.notify import PendingNotifications


def test_all_subscribers_of_a_topic_are_told_until_they_leave() -> None:
    notifications = Notifications(LoopTimers())
    first: list[QueueName | None] = []
    second: list[QueueName | None] = []
    leases: list[QueueName | None] = []
    notifications.subscribe(Topic.QUEUES, first.append)
    leave = notifications.subscribe(Topic.QUEUES, second.append)
    notifications.subscribe(Topic.LEASES, leases.append)

    notifications.wake_queue("shop", "mail")
    leave()
    notifications.announce(PendingNotifications(everything=True))

    assert first == [("shop", "mail"), None]
    assert second == [("shop", "mail")]
    assert leases == [None]
