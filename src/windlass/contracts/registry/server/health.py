"""The health check: whether the database answers."""

from __future__ import annotations

from windlass.contracts.registry.server.call import Call
from windlass.contracts.registry.wire import kagzi_pb2 as pb
from windlass.contracts.registry.wire.messages import timestamp
from windlass.errors import Unavailable
from windlass.net.status import public_message


async def health_check(call: Call, _request: pb.HealthCheckRequest) -> pb.HealthCheckResponse:
    """Answers even if the database is unreachable."""
    try:
        now = await call.engine.tasks.time()
    except Unavailable as error:
        return pb.HealthCheckResponse(status=pb.HealthCheckResponse.NOT_SERVING, message=public_message(error))
    return pb.HealthCheckResponse(
        status=pb.HealthCheckResponse.SERVING, message="ok", timestamp=timestamp(now.replace(microsecond=0))
    )
