"""Channels to our gRPC servers: their options, the key of a caller, and our error for a status."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import grpc

from windlass import errors
from windlass.core.validation import LARGE_MAX_BYTES
from windlass.errors import WindlassError
from windlass.net.problem import BY_CODE, error_from

MESSAGE_ROOM_BYTES = 8 * 1024 * 1024  # for many small values, or beside one large value
MESSAGE_MAX_BYTES = LARGE_MAX_BYTES + MESSAGE_ROOM_BYTES
CODE_KEY = "windlass-code"

OPTIONS = [
    ("grpc.max_receive_message_length", MESSAGE_MAX_BYTES),
    ("grpc.max_send_message_length", MESSAGE_MAX_BYTES),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
]

# Statuses without a code of ours come from gRPC itself or from a proxy.
WITHOUT_CODE: dict[grpc.StatusCode, type[WindlassError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: errors.Invalid,
    grpc.StatusCode.NOT_FOUND: errors.NotFound,
    grpc.StatusCode.ALREADY_EXISTS: errors.Conflict,
    grpc.StatusCode.FAILED_PRECONDITION: errors.InvalidState,
    grpc.StatusCode.PERMISSION_DENIED: errors.Forbidden,
    grpc.StatusCode.UNAUTHENTICATED: errors.Unauthenticated,
    grpc.StatusCode.ABORTED: errors.LeaseLost,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.Overloaded,
}


def open_channel(server: str, *, blocking: bool = False) -> Any:
    parts = urlsplit(server)
    kind = grpc if blocking else grpc.aio
    target = f"[{parts.hostname}]:{parts.port}" if ":" in (parts.hostname or "") else f"{parts.hostname}:{parts.port}"
    if parts.scheme == "https":
        return kind.secure_channel(target, grpc.ssl_channel_credentials(), options=OPTIONS)
    return kind.insecure_channel(target, options=OPTIONS)


def bearer_key(metadata: Any) -> str:
    """The key in the metadata of a call. Raises Unauthenticated if there is none."""
    scheme, _, key = dict(metadata or ()).get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not key:
        raise errors.Unauthenticated("send a key in the metadata: authorization: Bearer KEY")
    return str(key)


def error_of(error: Any) -> WindlassError:
    """The error that the server reported, or Unavailable if the call did not reach it."""
    code = dict(error.trailing_metadata() or ()).get(CODE_KEY)
    if code in BY_CODE:
        return error_from(code, error.details() or "")
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and "message larger than max" in (error.details() or ""):
        settings = "WINDLASS_BLOBS and WINDLASS_PAYLOAD_MAX_BYTES"
        return errors.TooLarge(f"{error.details()}; a server takes more with {settings}")
    return WITHOUT_CODE.get(error.code(), errors.Unavailable)(f"{error.code().name}: {error.details()}")
