"""The worker of the Restate peer: an ASGI application that hypercorn serves."""

from __future__ import annotations

import restate

from bench import recorder
from bench.peers.restate import SERVICE

_service = restate.Service(SERVICE)


@_service.handler()
async def noop(context: restate.Context, request: list[float]) -> None:
    recorder.hit(int(request[0]), request[1])


@_service.handler()
async def flow(context: restate.Context, request: list[float]) -> int:
    for number in range(3):
        await context.run_typed(f"step {number}", _step)
    recorder.hit(int(request[0]), request[1])
    return 1


async def _step() -> int:
    return 1


app = restate.app([_service])
