"""Ids and random numbers. The engine gets them only here, so that a simulation can make all of them from a seed."""

from __future__ import annotations

import random
import time
from typing import Protocol
from uuid import UUID

from windlass.core.ids import RANDOM_BITS, uuid7
from windlass.core.lease_token import TOKEN_BITS, lease_token

STEP_BITS = 48  # between ids of one millisecond: the next cannot be guessed, and millions fit


class Randomness(Protocol):
    def new_id(self) -> UUID: ...

    def new_token(self, delivery: str) -> UUID:
        """The lease token of an attempt that this delivery begins. Unlike an id, it cannot be guessed."""
        ...

    def jitter(self) -> float:
        """At least 0, less than 1."""
        ...


class SystemRandomness:
    """The randomness of the operating system. Ids carry this machine's clock for their order only; no rule reads it."""

    def __init__(self) -> None:
        self._random = random.SystemRandom()
        self._fast = random.Random(self._random.getrandbits(128))  # noqa: S311 (jitter and id tails need no secrecy)
        self._last_ms = self._tail = 0

    def new_id(self) -> UUID:
        """An id that sorts after all before it, also within a millisecond or when the clock goes back, so that a list
        shows the tasks of one submission in order."""
        now_ms = time.time_ns() // 1_000_000
        if now_ms > self._last_ms:
            self._last_ms, self._tail = now_ms, self._fast.getrandbits(RANDOM_BITS - 1)  # which leaves room for more
        else:
            self._tail += 1 + self._fast.getrandbits(STEP_BITS)
        return uuid7(self._last_ms, self._tail)

    def new_token(self, delivery: str) -> UUID:
        return lease_token(self._random.getrandbits(TOKEN_BITS), delivery)

    def jitter(self) -> float:
        return self._fast.random()
