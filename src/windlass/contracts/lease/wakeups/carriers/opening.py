"""Opens the carriers and the Lambda client that this server is set up for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windlass.contracts.lease.wakeups.carriers.drivers import DRIVERS, CarrierSender
from windlass.contracts.lease.wakeups.carriers.options import CarrierOptions

if TYPE_CHECKING:
    from windlass.contracts.lease.server.lambda_function import Lambda


def make_senders(options: CarrierOptions) -> dict[str, CarrierSender]:
    """The senders of this server, by carrier name. PostgreSQL needs none: the planner writes its messages."""
    drivers = {name: driver for name, driver in DRIVERS.items() if getattr(options, driver.setting) is not None}
    return {name: driver.sides().sender(options) for name, driver in drivers.items()}


def make_lambda(options: CarrierOptions) -> Lambda | None:
    """The client of AWS Lambda, if AWS is set up."""
    if options.aws_region is None:
        return None
    from windlass.contracts.lease.server.lambda_function import Lambda

    return Lambda(options)
