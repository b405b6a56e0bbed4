"""The worker's side of a carrier: receive a message, keep it while its task runs, and settle it.

A message is only a hint: it may come twice, late, out of order, or before its task can be read. The lease keeps two
workers apart; visibility only avoids needless claims. So a worker that loses a message goes on under its lease:
`extend` returns False, and nothing else happens.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec

from windlass.errors import Unavailable

Call = Callable[[str, bytes, float], Awaitable[tuple[int, bytes]]]
"""POST to `/internal/…` of a server with the worker's certificate: path, body, seconds to wait for the answer. Returns
status and body. Raises Unavailable if no server answers."""


class CarrierUnavailable(Unavailable):
    """The carrier of wake-ups does not answer; try again later."""


class Message(msgspec.Struct, frozen=True):
    """A received message. `deliveries` includes this delivery; `receipt` belongs to the carrier."""

    id: str
    body: bytes
    deliveries: int
    receipt: Any = None


class Consumer(Protocol):
    """The wake-ups of one queue. All methods but `receive` may be called concurrently. After CarrierUnavailable, try
    again later."""

    visibility_s: float
    max_deliveries: int

    async def receive(self, limit: int, wait_s: float) -> list[Message]:
        """Up to `limit` messages. Waits up to `wait_s` for the first. Other workers do not get them for
        `visibility_s`."""
        ...

    async def report_idle(self) -> None:
        """Report that `receive` waited and got nothing, so that a server sends lost messages again."""
        ...

    async def extend(self, message: Message) -> bool:
        """Keep the message from others for `visibility_s` from now on. False if it was lost to another worker."""
        ...

    async def ack(self, message: Message) -> None:
        """Delete the message. Call this only after the report of its task was accepted."""
        ...

    async def nack(self, message: Message, delay_s: float = 0.0) -> None:
        """Deliver the message again after `delay_s`."""
        ...

    async def dead_letter(self, message: Message, reason: str) -> None:
        """No worker can handle the message: a server keeps it as a dead letter, and the carrier deletes it."""
        ...

    async def close(self) -> None: ...
