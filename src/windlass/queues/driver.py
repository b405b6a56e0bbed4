"""Which carriers there are besides PostgreSQL: the only place that names their drivers, each with its two sides. A
library is imported when its carrier is asked for. Knows neither the engine nor the database, as workers read it too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from windlass.core.wakeup import Letter
from windlass.queues.option import CarrierOptions
from windlass.queues.port import Call, Consumer
from windlass.wire.wakeup import Route


class CarrierSender(Protocol):
    """The side that the engine sees (`engine.wakeup.Sender`), as it is opened and closed."""

    async def send(self, letters: Sequence[Letter]) -> None: ...

    async def check(self) -> str:
        """A sentence that says how it is. Raises Unavailable where it does not answer."""
        ...

    async def close(self) -> None: ...


class Sides(NamedTuple):
    sender: Callable[[CarrierOptions], CarrierSender]
    consumer: Callable[[Route, Call, CarrierOptions], Consumer]


class Driver(NamedTuple):
    """`setting` is the option without which the carrier is not used here."""

    setting: str
    sides: Callable[[], Sides]

    def is_set_up(self, options: CarrierOptions) -> bool:
        return getattr(options, self.setting) is not None


def _nats() -> Sides:
    from windlass.queues.nats import NatsConsumer, NatsSender

    return Sides(NatsSender, NatsConsumer)


def _sqs() -> Sides:
    from windlass.queues.sqs import SqsConsumer, SqsSender

    return Sides(SqsSender, SqsConsumer)


DRIVERS: dict[str, Driver] = {
    "nats": Driver("nats_url", _nats),
    "sqs": Driver("aws_region", _sqs),
}
