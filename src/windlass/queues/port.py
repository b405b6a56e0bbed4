"""The side of a carrier that workers see: receive a message, keep it while working on it, and say what became of it.

A message is a hint and nothing more: it may come twice, late, out of order, or before its task can be seen. What keeps
two workers apart is the lease; visibility only keeps the same message from being looked at needlessly. So nobody has to
be told that a message was taken from him: `extend` says False, and the work goes on under its lease.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec

from windlass.core.error import Unavailable

Call = Callable[[str, bytes, float], Awaitable[tuple[int, bytes]]]
"""POST to `/internal/…` of a server with the worker's certificate: path, body, seconds to wait for the answer. Returns
status and body; raises Unavailable where no server answers."""


class CarrierAway(Unavailable):
    """The carrier of wake-ups does not answer; try again later."""


class Message(msgspec.Struct, frozen=True):
    """Received, and ours for a while. `deliveries` counts this one; `receipt` is the carrier's own."""

    id: str
    body: bytes
    deliveries: int
    receipt: Any = None


class Consumer(Protocol):
    """Wake-ups of one queue. All but `receive` may be called many at a time; CarrierAway means: later."""

    visibility_s: float
    max_deliveries: int

    async def receive(self, limit: int, wait_s: float) -> list[Message]:
        """Up to `limit` messages; with none at hand, wait up to `wait_s` for the first. Then they are hidden from
        others for `visibility_s`."""
        ...

    async def unheard(self) -> None:
        """`receive` waited and got nothing: if something was sent, it is lost, and a server sends it again."""
        ...

    async def extend(self, message: Message) -> bool:
        """Hidden for `visibility_s` from now on. False if it is no longer ours."""
        ...

    async def ack(self, message: Message) -> None:
        """It is done with, and not delivered again. Only after the report of its task was accepted."""
        ...

    async def nack(self, message: Message, delay_s: float = 0.0) -> None:
        """Deliver it again, after a while."""
        ...

    async def bury(self, message: Message, reason: str) -> None:
        """Nobody can do anything with it: a server keeps it where people see it, then it is done with."""
        ...

    async def close(self) -> None: ...
