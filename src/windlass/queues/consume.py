"""The consumer of a queue, whatever carries its wake-ups. Knows neither the engine nor the database."""

from __future__ import annotations

from windlass.core.error import Invalid
from windlass.queues.internal import InternalConsumer, ask_route
from windlass.queues.option import NO_CARRIERS, CarrierOptions
from windlass.queues.port import Call, Consumer
from windlass.wire.wakeup import Route

__all__ = ["ask_route", "make_consumer"]


def make_consumer(route: Route, call: Call, options: CarrierOptions = NO_CARRIERS) -> Consumer:
    """`call` reaches a server's `/internal`; what else is needed to reach the carrier is in the options."""
    match route.carrier:
        case "postgres":
            return InternalConsumer(route, call)
        case "nats":
            from windlass.queues.nats import NatsConsumer

            return NatsConsumer(route, call, options)
        case "sqs":
            from windlass.queues.sqs import SqsConsumer

            return SqsConsumer(route, call, options)
    raise Invalid(f"{route.carrier!r} is a carrier that this version does not know", field="carrier")
