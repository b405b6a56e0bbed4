"""Where the wake-ups of a queue come from: asked of a server, and opened."""

from __future__ import annotations

from windlass.queues.consume import ask_route, make_consumer
from windlass.queues.port import Call
from windlass.wrapper.config import Config
from windlass.wrapper.patience import until_heard
from windlass.wrapper.wrapper import Line


async def open_line(config: Config, queue: str, call: Call) -> Line:
    """Raises NotFound for a queue that sends no wake-ups, Invalid where its carrier cannot be reached from here."""
    route = await until_heard(f"the route of {queue}", lambda: ask_route(call, queue, config.namespace))
    consumer = make_consumer(route, call, config)
    return Line(queue, consumer, namespace=config.namespace, trusted=route.trusted, secrets=route.secrets)
