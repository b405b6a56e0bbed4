"""Maps our errors to a gRPC status and error details of the registry contract.

`grpc-status-details-bin` has two forms. The origin's client is built with tonic and expects the bare bytes of an
`ErrorDetail`. Every other gRPC library expects a `google.rpc.Status` that holds the `ErrorDetail` as an `Any`; grpc-go
reports INTERNAL for anything else. The user agent decides.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import grpc

from windlass.contracts.registry.wire import kagzi_pb2 as pb
from windlass.contracts.registry.wire.status_pb2 import Status
from windlass.errors import WindlassError
from windlass.net.status import known_code, public_message

DETAILS_KEY = "grpc-status-details-bin"
MESSAGE_MAX = 1000  # status and details travel in headers, which clients limit
_TONIC = re.compile(r"(?:^|\s)tonic/")


class Refusal(NamedTuple):
    """How a call ends: its status, its text, and the details for `grpc-status-details-bin`."""

    status: grpc.StatusCode
    message: str
    details: bytes


class ErrorMapping(NamedTuple):
    """`grpc` is the name of the status; `final` means that a repeated call fails again."""

    grpc: str
    code: pb.ErrorCode
    final: bool


_INVALID = ErrorMapping("INVALID_ARGUMENT", pb.ERROR_CODE_INVALID_ARGUMENT, final=True)
_WRONG_STATE = ErrorMapping("FAILED_PRECONDITION", pb.ERROR_CODE_PRECONDITION_FAILED, final=True)
_LATER = ErrorMapping("UNAVAILABLE", pb.ERROR_CODE_UNAVAILABLE, final=False)
_DEFECT = ErrorMapping("INTERNAL", pb.ERROR_CODE_INTERNAL, final=True)

MAPPINGS: dict[str, ErrorMapping] = {
    "invalid": _INVALID,
    "malformed": _INVALID,
    "too_large": ErrorMapping("RESOURCE_EXHAUSTED", pb.ERROR_CODE_INVALID_ARGUMENT, final=True),
    "not_found": ErrorMapping("NOT_FOUND", pb.ERROR_CODE_NOT_FOUND, final=True),
    "expired": ErrorMapping("NOT_FOUND", pb.ERROR_CODE_NOT_FOUND, final=True),
    "conflict": _WRONG_STATE,
    "invalid_state": _WRONG_STATE,
    "lease_lost": _WRONG_STATE,
    "rejected": _WRONG_STATE,
    "step_held": ErrorMapping("ABORTED", pb.ERROR_CODE_CONFLICT, final=False),
    "unauthenticated": ErrorMapping("UNAUTHENTICATED", pb.ERROR_CODE_UNAUTHORIZED, final=True),
    "forbidden": ErrorMapping("PERMISSION_DENIED", pb.ERROR_CODE_UNAUTHORIZED, final=True),
    "unavailable": _LATER,
    "store_busy": _LATER,
    "overloaded": _LATER,
    "held": _LATER,
    "draining": _LATER,
    "contract_violation": _DEFECT,
    "error": _DEFECT,
}


def asks_for_origin(user_agent: str | None) -> bool:
    """Whether the caller is built with tonic, as the origin's client is."""
    return _TONIC.search(user_agent or "") is not None


def refusal_of(error: WindlassError, user_agent: str | None) -> Refusal:
    """Status and details have the same text, because libraries compare them."""
    mapping = MAPPINGS.get(type(error).code) or MAPPINGS[known_code(error)]
    message = public_message(error)[:MESSAGE_MAX]
    status: grpc.StatusCode = grpc.StatusCode[mapping.grpc]
    detail = pb.ErrorDetail(
        code=mapping.code,
        message=message,
        non_retryable=mapping.final,
        subject=str(error.details.get("subject", "")),
        subject_id=str(error.details.get("subject_id", "")),
    )
    if asks_for_origin(user_agent):
        return Refusal(status, message, bytes(detail.SerializeToString()))
    whole = Status(code=status.value[0], message=message)
    whole.details.add().Pack(detail)
    return Refusal(status, message, bytes(whole.SerializeToString()))
