"""Makes the consumer of a queue for any carrier. Knows neither the engine nor the database."""

from __future__ import annotations

from windlass.contracts.lease.wakeups.addresses import POSTGRES
from windlass.contracts.lease.wakeups.carriers.drivers import DRIVERS
from windlass.contracts.lease.wakeups.carriers.internal import InternalConsumer, ask_route
from windlass.contracts.lease.wakeups.carriers.options import NO_CARRIERS, CarrierOptions
from windlass.contracts.lease.wakeups.carriers.port import Call, Consumer
from windlass.contracts.lease.wire.wakeup import Route
from windlass.errors import Invalid

__all__ = ["ask_route", "make_consumer"]


def make_consumer(route: Route, call: Call, options: CarrierOptions = NO_CARRIERS) -> Consumer:
    """The consumer of a route. `call` reaches a server's `/internal`; `options` say how to reach the carrier."""
    if route.carrier == POSTGRES:
        return InternalConsumer(route, call)
    driver = DRIVERS.get(route.carrier)
    if driver is None:
        raise Invalid(f"this version does not know the carrier {route.carrier!r}", field="carrier")
    return driver.sides().consumer(route, call, options)
