"""What this server sends wake-ups and calls functions with, as far as that is set up here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windlass.core.carrier import POSTGRES
from windlass.engine.message import Messages
from windlass.queues.driver import DRIVERS, CarrierSender
from windlass.queues.option import CarrierOptions
from windlass.queues.postgres import PostgresSender

if TYPE_CHECKING:
    from windlass.queues.function import Lambda


def make_senders(options: CarrierOptions, messages: Messages) -> dict[str, CarrierSender]:
    """By the names that deliveries use."""
    senders: dict[str, CarrierSender] = {POSTGRES: PostgresSender(messages)}
    senders |= {name: driver.sides().sender(options) for name, driver in DRIVERS.items() if driver.is_set_up(options)}
    return senders


def make_lambda(options: CarrierOptions) -> Lambda | None:
    """Functions of AWS."""
    if options.aws_region is None:
        return None
    from windlass.queues.function import Lambda

    return Lambda(options)
