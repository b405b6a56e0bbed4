"""The drivers of the carriers besides PostgreSQL, each with a sender and a consumer. No other module names them.

A client library is imported when its carrier is used. Workers import this module, so it knows neither the engine nor
the database.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from windlass.contracts.lease.wakeups.carriers.options import CarrierOptions
from windlass.contracts.lease.wakeups.carriers.port import Call, Consumer
from windlass.contracts.lease.wakeups.rules import WakeupMessage
from windlass.contracts.lease.wire.wakeup import Route


class CarrierSender(Protocol):
    """The engine's side of a carrier (`contracts.lease.wakeups.planner.Sender`), with a check and a close."""

    async def send(self, messages: Sequence[WakeupMessage]) -> None: ...

    async def check(self) -> str:
        """Describe the state of the carrier in one sentence. Raises Unavailable if it does not answer."""
        ...

    async def close(self) -> None: ...


class Sides(NamedTuple):
    sender: Callable[[CarrierOptions], CarrierSender]
    consumer: Callable[[Route, Call, CarrierOptions], Consumer]


class Driver(NamedTuple):
    """A carrier. It is set up where the option `setting` has a value."""

    setting: str
    sides: Callable[[], Sides]

    def is_set_up(self, options: CarrierOptions) -> bool:
        return getattr(options, self.setting) is not None


def _nats() -> Sides:
    from windlass.contracts.lease.wakeups.carriers.nats import NatsConsumer, NatsSender

    return Sides(NatsSender, NatsConsumer)


def _sqs() -> Sides:
    from windlass.contracts.lease.wakeups.carriers.sqs import SqsConsumer, SqsSender

    return Sides(SqsSender, SqsConsumer)


DRIVERS: dict[str, Driver] = {
    "nats": Driver("nats_url", _nats),
    "sqs": Driver("aws_region", _sqs),
}
