"""Extends a lease from the heartbeat process of a remote worker. `engine.liveness.lease_extender` does it beside the
database; both raise errors of the standard library, since that process imports none of ours."""

from __future__ import annotations

from uuid import UUID

import grpc

from windlass.contracts.session.wire import session_pb2 as pb
from windlass.contracts.session.wire.methods import EXTEND, LOSE
from windlass.errors import LeaseLost, NotFound
from windlass.net.grpc_channel import error_of, open_channel

TIMEOUT_S = 10.0


class LeaseExtender:
    """One gRPC channel, opened by the first call."""

    def __init__(self, server: str, api_key: str) -> None:
        channel = open_channel(server, blocking=True)
        self._extend = channel.unary_unary(EXTEND, pb.ExtendRequest.SerializeToString, pb.Extended.FromString)
        self._lose = channel.unary_unary(LOSE, pb.LoseRequest.SerializeToString, pb.Lost.FromString)
        self._metadata = (("authorization", f"Bearer {api_key}"),)

    def lose(self, lease_id: str, last_output: str) -> int:
        """End the lease of a worker that has died; returns the number of its attempts."""
        request = pb.LoseRequest(lease_id=UUID(lease_id).bytes, last_output=last_output)
        try:
            return int(self._lose(request, metadata=self._metadata, timeout=TIMEOUT_S).attempts)
        except grpc.RpcError as failed:
            raise error_of(failed) from None

    def extend(self, lease_id: str) -> list[tuple[str, int]]:
        """Extend it; returns its attempts that must stop."""
        request = pb.ExtendRequest(lease_id=UUID(lease_id).bytes)
        try:
            extended = self._extend(request, metadata=self._metadata, timeout=TIMEOUT_S)
        except grpc.RpcError as failed:
            error = error_of(failed)
            kind = LookupError if isinstance(error, LeaseLost | NotFound) else OSError
            raise kind(error.message) from None
        return [(str(UUID(bytes=cancel.task_id)), cancel.attempt) for cancel in extended.cancels]
