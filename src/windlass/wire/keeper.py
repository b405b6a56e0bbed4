"""A lease kept alive from another process: what the heartbeat process of a remote worker imports. See `engine.keeper`
for the other one; both speak the errors of the standard library."""

from __future__ import annotations

from uuid import UUID

import grpc

from windlass.core.error import LeaseLost, NotFound
from windlass.wire.channel import EXTEND, LOSE, error_of, open_channel
from windlass.wire.protos import session_pb2 as pb

PATIENCE_S = 10.0


class LeaseKeeper:
    """One channel, opened when first needed."""

    def __init__(self, server: str, api_key: str) -> None:
        channel = open_channel(server, blocking=True)
        self._extend = channel.unary_unary(EXTEND, pb.ExtendRequest.SerializeToString, pb.Extended.FromString)
        self._lose = channel.unary_unary(LOSE, pb.LoseRequest.SerializeToString, pb.Lost.FromString)
        self._metadata = (("authorization", f"Bearer {api_key}"),)

    def lose(self, lease_id: str, last_output: str) -> int:
        """Its worker was seen to die."""
        request = pb.LoseRequest(lease_id=UUID(lease_id).bytes, last_output=last_output)
        try:
            return int(self._lose(request, metadata=self._metadata, timeout=PATIENCE_S).attempts)
        except grpc.RpcError as failed:
            raise error_of(failed) from None

    def extend(self, lease_id: str) -> list[tuple[str, int]]:
        """Extend it; returns the attempts under it that are to stop."""
        request = pb.ExtendRequest(lease_id=UUID(lease_id).bytes)
        try:
            extended = self._extend(request, metadata=self._metadata, timeout=PATIENCE_S)
        except grpc.RpcError as failed:
            error = error_of(failed)
            kind = LookupError if isinstance(error, LeaseLost | NotFound) else OSError
            raise kind(error.message) from None
        return [(str(UUID(bytes=cancel.task_id)), cancel.attempt) for cancel in extended.cancels]
