"""Opens the carrier of a queue's wake-ups, as the server describes it."""

from __future__ import annotations

from windlass.contracts.lease.wakeups.carriers.consume import ask_route, make_consumer
from windlass.contracts.lease.wakeups.carriers.port import Call
from windlass.contracts.lease.worker.config import Config
from windlass.contracts.lease.worker.retry import until_answered
from windlass.contracts.lease.worker.wrapper import Line


async def open_line(config: Config, queue: str, call: Call) -> Line:
    """Raises NotFound for a queue that sends no wake-ups, and Invalid if its carrier cannot be reached from here."""
    route = await until_answered(f"the route of {queue}", lambda: ask_route(call, queue, config.namespace))
    consumer = make_consumer(route, call, config)
    return Line(queue, consumer, namespace=config.namespace, trusted=route.trusted, secrets=route.secrets)
