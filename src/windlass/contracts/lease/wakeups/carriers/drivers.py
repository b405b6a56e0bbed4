"""The drivers of the carriers, each with a sender and a consumer. No other module names them.

A client library is imported when its carrier is used. Workers import this module, so it knows neither the engine nor
the database.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from windlass.contracts.lease.wakeups.addresses import POSTGRES
from windlass.contracts.lease.wakeups.carriers.internal import InternalConsumer
from windlass.contracts.lease.wakeups.carriers.options import NO_CARRIERS, CarrierOptions
from windlass.contracts.lease.wakeups.carriers.port import Call, Consumer
from windlass.contracts.lease.wakeups.rules import WakeupMessage
from windlass.contracts.lease.wire.wakeup import Route
from windlass.errors import Invalid


class Sender(Protocol):
    """The engine's side of a carrier. Sending a message twice does no harm."""

    async def send(self, messages: Sequence[WakeupMessage]) -> None:
        """Returns when the carrier has stored them all. Raises Unavailable if it does not answer, and Undeliverable if
        another try will not help."""
        ...


class CarrierSender(Sender, Protocol):
    """A sender with a check and a close."""

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


def make_consumer(route: Route, call: Call, options: CarrierOptions = NO_CARRIERS) -> Consumer:
    """The consumer of a route. `call` reaches a server's `/internal`; `options` say how to reach the carrier."""
    if route.carrier == POSTGRES:
        return InternalConsumer(route, call)
    driver = DRIVERS.get(route.carrier)
    if driver is None:
        raise Invalid(f"this version does not know the carrier {route.carrier!r}", field="carrier")
    return driver.sides().consumer(route, call, options)
