"""Queues: their settings, and how many tasks may start right now.

Arithmetic on counts that were read under the lock of the queue's row. Which tasks start is selected in SQL. The running
tasks themselves are counted, not a counter kept beside them, so a slot cannot leak when its worker dies.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

import msgspec

from windlass.core.states import Instant
from windlass.core.validation import check_count, check_name, check_seconds, check_type

UNLIMITED = 2**31 - 1
QueueName = tuple[str, str]  # namespace, name


class Rate(msgspec.Struct, frozen=True):
    """At most `count` starts in any window of `period_s` seconds."""

    count: int
    period_s: float


class QueueConfig(msgspec.Struct, frozen=True, omit_defaults=True):
    """The limits of a queue. A queue that was never configured has none and needs no row."""

    paused: bool = False
    max_running: int | None = None
    max_running_per_kind: Mapping[str, int] = msgspec.field(default_factory=dict)
    max_running_per_key: int | None = None
    rate: Rate | None = None

    @property
    def restricted(self) -> bool:
        """Whether a claim has to take the queue's lock first."""
        limits = (self.max_running, self.max_running_per_key, self.rate)
        return self.paused or bool(self.max_running_per_kind) or any(limit is not None for limit in limits)


def check_config(config: QueueConfig) -> None:
    """Raise Invalid naming the first setting that cannot be accepted."""
    check_type("paused", config.paused, bool)
    for field in ("max_running", "max_running_per_key"):
        if getattr(config, field) is not None:
            check_count(field, getattr(config, field), least=0)
    for kind, limit in config.max_running_per_kind.items():
        check_name("max_running_per_kind", kind)
        check_count("max_running_per_kind", limit, least=0)
    if config.rate is not None:
        check_type("rate", config.rate, Rate)
        check_count("rate.count", config.rate.count, least=0)
        check_seconds("rate.period_s", config.rate.period_s, least=0.001)


class Usage(msgspec.Struct, frozen=True):
    """What runs in a queue now, and the starts within the window of its rate (oldest first)."""

    running: int = 0
    running_by_kind: Mapping[str, int] = msgspec.field(default_factory=dict)
    running_by_key: Mapping[str, int] = msgspec.field(default_factory=dict)
    starts: tuple[tuple[Instant, int], ...] = ()


class Admission(msgspec.Struct, frozen=True):
    """What a claim may take: at most `total` tasks, none of `full_kinds`, and of each key what its limit leaves."""

    total: int
    full_kinds: tuple[str, ...] = ()
    room_per_key: int = UNLIMITED
    room_by_key: Mapping[str, int] = msgspec.field(default_factory=dict)
    reason: str | None = None
    next_at: Instant | None = None


OPEN = Admission(UNLIMITED)


def admit(config: QueueConfig, usage: Usage, wanted: int, now: Instant) -> Admission:
    """How many of `wanted` tasks may start. If none may, `reason` is the limit that is reached."""
    if config.paused:
        return Admission(0, reason="paused")
    room = UNLIMITED if config.max_running is None else max(0, config.max_running - usage.running)
    if room == 0:
        return Admission(0, reason="concurrency_limit")
    rate_left = rate_room(config.rate, usage.starts, now)
    if rate_left == 0:
        return Admission(0, reason="rate_limit", next_at=rate_next_at(config.rate, usage.starts, now))
    kind_rooms = {
        kind: limit - usage.running_by_kind.get(kind, 0) for kind, limit in config.max_running_per_kind.items()
    }
    # A batch no larger than the smallest room of a limited kind cannot overshoot that kind, whatever it contains.
    total = min([wanted, room, rate_left, *(left for left in kind_rooms.values() if left > 0)])
    per_key = UNLIMITED if config.max_running_per_key is None else config.max_running_per_key
    return Admission(
        total,
        full_kinds=tuple(kind for kind, left in kind_rooms.items() if left <= 0),
        room_per_key=per_key,
        room_by_key={key: max(0, per_key - used) for key, used in usage.running_by_key.items()},
    )


def rate_room(rate: Rate | None, starts: tuple[tuple[Instant, int], ...], now: Instant) -> int:
    """Starts left in the window that ends now."""
    if rate is None:
        return UNLIMITED
    since = now - timedelta(seconds=rate.period_s)
    return max(0, rate.count - sum(count for at, count in starts if at > since))


def rate_next_at(rate: Rate | None, starts: tuple[tuple[Instant, int], ...], now: Instant) -> Instant | None:
    """When the oldest start leaves the window, so that another one fits."""
    if rate is None or rate_room(rate, starts, now) > 0:
        return None
    period = timedelta(seconds=rate.period_s)
    used = 0
    for at, count in sorted(starts, reverse=True):
        used += count
        if used >= rate.count:
            return at + period
    return None
