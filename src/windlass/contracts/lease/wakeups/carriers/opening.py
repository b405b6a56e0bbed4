"""Opens the carriers and the Lambda client that this server is set up for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windlass.contracts.lease.wakeups.addresses import POSTGRES
from windlass.contracts.lease.wakeups.carriers.drivers import DRIVERS, CarrierSender
from windlass.contracts.lease.wakeups.carriers.options import CarrierOptions
from windlass.contracts.lease.wakeups.carriers.postgres import PostgresSender
from windlass.contracts.lease.wakeups.messages import Messages

if TYPE_CHECKING:
    from windlass.contracts.lease.server.lambda_function import Lambda


def make_senders(options: CarrierOptions, messages: Messages) -> dict[str, CarrierSender]:
    """The senders of this server, by carrier name."""
    senders: dict[str, CarrierSender] = {POSTGRES: PostgresSender(messages)}
    senders |= {name: driver.sides().sender(options) for name, driver in DRIVERS.items() if driver.is_set_up(options)}
    return senders


def make_lambda(options: CarrierOptions) -> Lambda | None:
    """The client of AWS Lambda, if AWS is set up."""
    if options.aws_region is None:
        return None
    from windlass.contracts.lease.server.lambda_function import Lambda

    return Lambda(options)
