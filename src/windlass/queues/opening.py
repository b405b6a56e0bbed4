"""Which carriers there are: the only place that names them all. A library is imported when its carrier is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from windlass.engine.message import Messages
from windlass.engine.wakeup import Sender
from windlass.queues.option import CarrierOptions
from windlass.queues.postgres import PostgresSender

if TYPE_CHECKING:
    from windlass.queues.function import Lambda


class CarrierSender(Sender, Protocol):
    async def check(self) -> str:
        """A sentence that says how it is. Raises Unavailable where it does not answer."""
        ...

    async def close(self) -> None: ...


def make_senders(options: CarrierOptions, messages: Messages) -> dict[str, CarrierSender]:
    """Those that are set up here, by the names that deliveries use."""
    senders: dict[str, CarrierSender] = {"postgres": PostgresSender(messages)}
    if options.nats_url is not None:
        from windlass.queues.nats import NatsSender

        senders["nats"] = NatsSender(options)
    if options.aws_region is not None:
        from windlass.queues.sqs import SqsSender

        senders["sqs"] = SqsSender(options)
    return senders


def make_lambda(options: CarrierOptions) -> Lambda | None:
    """Functions of AWS, if that is set up here."""
    if options.aws_region is None:
        return None
    from windlass.queues.function import Lambda

    return Lambda(options)
