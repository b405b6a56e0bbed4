"""Whether this server can do its work: the database answers."""

from __future__ import annotations

from windlass.contracts.registry.call import Call
from windlass.core.error import Unavailable
from windlass.wire.protos import kagzi_pb2 as pb
from windlass.wire.registry import timestamp
from windlass.wire.status import told_message


async def health_check(call: Call, _request: pb.HealthCheckRequest) -> pb.HealthCheckResponse:
    """Always answered, also by a server without its database."""
    try:
        now = await call.engine.views.time()
    except Unavailable as error:
        return pb.HealthCheckResponse(status=pb.HealthCheckResponse.NOT_SERVING, message=told_message(error))
    return pb.HealthCheckResponse(
        status=pb.HealthCheckResponse.SERVING, message="ok", timestamp=timestamp(now.replace(microsecond=0))
    )
