"""What a seed contains: how many of everybody, which queues with which limits, and what is submitted.

Numbers are small on purpose: races need few tasks that meet often, not many that pass each other by.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
from tests.sim.seed import Seed, Stream

from windlass.core.queue import Rate
from windlass.core.retry import DEFAULT_POLICY, Policy
from windlass.core.submission import Submission

KINDS = ("a", "b", "c")
KEYS = ("", "", "k1", "k2")
LABELS = ("gpu",)


@dataclass(frozen=True, slots=True)
class Plan:
    hosts: int
    queues: tuple[str, ...]
    workers: int
    clients: int
    chaos_s: float
    operations: int
    keep_finished_s: float
    crash_every_s: float | None
    worker_death: float
    clock_jump: bool
    tick_s: float
    pooled: bool
    listen: bool

    @classmethod
    def drawn(cls, seed: Seed) -> Plan:
        stream = seed.stream("plan")
        return cls(
            hosts=stream.pick({1: 1, 2: 3, 3: 1}),
            queues=("q0", "q1", "q2")[: stream.pick({1: 3, 2: 3, 3: 1})],
            workers=stream.pick({2: 2, 3: 2, 4: 1}),
            clients=stream.randint(1, 3),
            chaos_s=stream.between(5.0, 15.0),
            operations=stream.randint(15, 35),
            keep_finished_s=stream.pick({8.0: 2, 60.0: 1, 3600.0: 3}),
            crash_every_s=stream.pick({None: 2, 10.0: 2, 3.0: 1}),
            worker_death=stream.pick({0.0: 2, 0.02: 1, 0.1: 1}),
            clock_jump=stream.often(0.3),
            tick_s=stream.pick({0.4: 1, 1.0: 2}),
            pooled=stream.often(0.2),
            listen=stream.often(0.85),
        )


def drawn_limits(stream: Stream) -> dict[str, Any]:
    """The settings of one queue."""
    limits: dict[str, Any] = {}
    if stream.often(0.3):
        limits["max_running"] = stream.randint(1, 4)
    if stream.often(0.3):
        limits["max_running_per_kind"] = {kind: stream.randint(1, 2) for kind in stream.some(KINDS)}
    if stream.often(0.4):
        limits["max_running_per_key"] = stream.randint(1, 2)
    if stream.often(0.25):
        limits["rate"] = Rate(stream.randint(1, 4), stream.pick({0.5: 1, 1.0: 1, 2.0: 1}))
    return limits


def drawn_policy(stream: Stream) -> Policy:
    if stream.often(0.3):
        return DEFAULT_POLICY
    return Policy(
        max_attempts=stream.randint(1, 4),
        max_losses=stream.randint(0, 3),
        timeout_s=stream.pick({None: 3, 0.5: 1, 3.0: 1}),
        cancel_grace_s=stream.pick({0.0: 1, 1.0: 2, 3.0: 1}),
        retry_delay_s=stream.pick({0.0: 1, 0.2: 2, 1.0: 1}),
        retry_factor=stream.pick({1.0: 1, 2.0: 1}),
        retry_delay_max_s=3.0,
    )


def drawn_submission(stream: Stream, plan: Plan, token: str, now: datetime, **fields: Any) -> Submission:
    """Plain half of the time, since plain ones take another path through the store."""
    if stream.often(0.4):
        return Submission(kind="a", queue=stream.choice(plan.queues), payload=payload(token), **fields)
    delay_s = stream.around(1.5) if stream.often(0.25) else None
    deadline_s = stream.between(0.5, 10.0) if stream.often(0.15) else None
    chosen: dict[str, Any] = {
        "kind": stream.choice(KINDS),
        "queue": stream.choice(plan.queues),
        "priority": stream.pick({-1: 1, 0: 3, 1: 1}),
        "available_at": None if delay_s is None else now + timedelta(seconds=delay_s),
        "deadline_at": None if deadline_s is None else now + timedelta(seconds=deadline_s),
        "concurrency_key": stream.choice(KEYS),
        "policy": drawn_policy(stream),
        "requires": LABELS if stream.often(0.1) else (),
        "payload": payload(token),
    }
    return Submission(**(chosen | fields))


def payload(token: str, **more: Any) -> bytes:
    return msgspec.json.encode({"token": token, **more})


def token_of(submission: Submission) -> str:
    return str(msgspec.json.decode(submission.payload)["token"])


def drawn_run(stream: Stream, ids: list[UUID]) -> list[tuple[UUID, tuple[UUID, ...]]]:
    """Who waits for whom: a chain, a fan-out with its fan-in, or layers of both. Each with those it waits for."""
    if len(ids) < 2:
        return [(id_, ()) for id_ in ids]
    shape = stream.pick({"chain": 1, "fan": 2, "layers": 1})
    if shape == "chain":
        return [(id_, tuple(ids[max(0, i - 1) : i])) for i, id_ in enumerate(ids)]
    if shape == "fan":
        middle = tuple(ids[1:-1])
        first, last = ids[0], ids[-1]
        return [(first, ()), *((id_, (first,)) for id_ in middle), (last, middle or (first,))]
    return [(id_, tuple(stream.some(ids[:i], 0)) if i else ()) for i, id_ in enumerate(ids)]
