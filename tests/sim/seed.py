"""One seed for everything: each part of the simulation draws from a stream of its own, named after it.

Own streams keep a change in one part (a planted bug, one more actor) from reshuffling all others.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from windlass.core.ids import RANDOM_BITS, uuid7
from windlass.core.lease_token import TOKEN_BITS, lease_token

T = TypeVar("T")


class Stream(random.Random):
    """Chance with a few words for what actors ask of it."""

    def often(self, probability: float) -> bool:
        return self.random() < probability

    def between(self, low: float, high: float) -> float:
        return self.uniform(low, high)

    def around(self, mean: float) -> float:
        """Mostly short, now and then long, never endless."""
        return min(self.expovariate(1.0 / mean), 8.0 * mean)

    def pick(self, weights: dict[T, float]) -> T:
        return self.choices(list(weights), list(weights.values()))[0]

    def some(self, options: Sequence[T], least: int = 1) -> list[T]:
        """A part of the options, in their order."""
        count = self.randint(least, len(options))
        chosen = set(self.sample(range(len(options)), count))
        return [option for i, option in enumerate(options) if i in chosen]


@dataclass(frozen=True, slots=True)
class Seed:
    number: int

    def stream(self, *name: object) -> Stream:
        return Stream(f"{self.number}/" + "/".join(map(str, name)))


class SeededChance:
    """Ids, tokens and jitter of one engine or client."""

    def __init__(self, stream: Stream, epoch_ms: Callable[[], int]) -> None:
        self._stream, self._epoch_ms = stream, epoch_ms

    def new_id(self) -> UUID:
        return uuid7(self._epoch_ms(), self._stream.getrandbits(RANDOM_BITS))

    def new_token(self, delivery: str) -> UUID:
        return lease_token(self._stream.getrandbits(TOKEN_BITS), delivery)

    def jitter(self) -> float:
        return self._stream.random()
