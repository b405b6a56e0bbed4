"""The consumer of a queue, whatever carries its wake-ups. Knows neither the engine nor the database."""

from __future__ import annotations

from windlass.core.carrier import POSTGRES
from windlass.core.error import Invalid
from windlass.queues.driver import DRIVERS
from windlass.queues.internal import InternalConsumer, ask_route
from windlass.queues.option import NO_CARRIERS, CarrierOptions
from windlass.queues.port import Call, Consumer
from windlass.wire.wakeup import Route

__all__ = ["ask_route", "make_consumer"]


def make_consumer(route: Route, call: Call, options: CarrierOptions = NO_CARRIERS) -> Consumer:
    """`call` reaches a server's `/internal`; what else is needed to reach the carrier is in the options."""
    if route.carrier == POSTGRES:
        return InternalConsumer(route, call)
    driver = DRIVERS.get(route.carrier)
    if driver is None:
        raise Invalid(f"{route.carrier!r} is a carrier that this version does not know", field="carrier")
    return driver.sides().consumer(route, call, options)
