"""What each of our errors is to a caller of the registry contract: the status, and the details that go with it.

`grpc-status-details-bin` has two forms. The origin's client is built with tonic and wants the bare bytes of an
`ErrorDetail`. Every other gRPC library wants a `google.rpc.Status` that holds the `ErrorDetail` as an `Any`; grpc-go
shows a call as INTERNAL when it finds anything else. The user agent decides.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import grpc

from windlass.core.error import WindlassError
from windlass.wire.protos import kagzi_pb2 as pb
from windlass.wire.protos.status_pb2 import Status
from windlass.wire.status import known_code, told_message

DETAILS_KEY = "grpc-status-details-bin"
MESSAGE_MAX = 1000  # status and details travel in headers, for which clients have small limits
_TONIC = re.compile(r"(?:^|\s)tonic/")


class Refusal(NamedTuple):
    """How a call ends: its status, its text, and the details for `grpc-status-details-bin`."""

    status: grpc.StatusCode
    message: str
    details: bytes


class Told(NamedTuple):
    """`grpc` is the name of the status; `final` that sending the same again will not help."""

    grpc: str
    code: pb.ErrorCode
    final: bool


_INVALID = Told("INVALID_ARGUMENT", pb.ERROR_CODE_INVALID_ARGUMENT, final=True)
_WRONG_STATE = Told("FAILED_PRECONDITION", pb.ERROR_CODE_PRECONDITION_FAILED, final=True)
_LATER = Told("UNAVAILABLE", pb.ERROR_CODE_UNAVAILABLE, final=False)
_DEFECT = Told("INTERNAL", pb.ERROR_CODE_INTERNAL, final=True)

TOLD: dict[str, Told] = {
    "invalid": _INVALID,
    "malformed": _INVALID,
    "too_large": Told("RESOURCE_EXHAUSTED", pb.ERROR_CODE_INVALID_ARGUMENT, final=True),
    "not_found": Told("NOT_FOUND", pb.ERROR_CODE_NOT_FOUND, final=True),
    "expired": Told("NOT_FOUND", pb.ERROR_CODE_NOT_FOUND, final=True),
    "conflict": _WRONG_STATE,
    "invalid_state": _WRONG_STATE,
    "lease_lost": _WRONG_STATE,
    "rejected": _WRONG_STATE,
    "step_held": Told("ABORTED", pb.ERROR_CODE_CONFLICT, final=False),
    "unauthenticated": Told("UNAUTHENTICATED", pb.ERROR_CODE_UNAUTHORIZED, final=True),
    "forbidden": Told("PERMISSION_DENIED", pb.ERROR_CODE_UNAUTHORIZED, final=True),
    "unavailable": _LATER,
    "store_busy": _LATER,
    "overloaded": _LATER,
    "draining": _LATER,
    "contract_violation": _DEFECT,
    "error": _DEFECT,
}


def told_as(error: WindlassError) -> Told:
    own = type(error).code
    return TOLD[own] if own in TOLD else TOLD[known_code(error)]


def asks_for_origin(user_agent: str | None) -> bool:
    """Whether the caller is built with tonic, as the origin's client is."""
    return _TONIC.search(user_agent or "") is not None


def refusal_of(error: WindlassError, user_agent: str | None) -> Refusal:
    """Status and details have the same text: libraries compare them."""
    told, message = told_as(error), told_message(error)[:MESSAGE_MAX]
    status: grpc.StatusCode = grpc.StatusCode[told.grpc]
    detail = pb.ErrorDetail(
        code=told.code,
        message=message,
        non_retryable=told.final,
        subject=str(error.details.get("subject", "")),
        subject_id=str(error.details.get("subject_id", "")),
    )
    if asks_for_origin(user_agent):
        return Refusal(status, message, bytes(detail.SerializeToString()))
    whole = Status(code=status.value[0], message=message)
    whole.details.add().Pack(detail)
    return Refusal(status, message, bytes(whole.SerializeToString()))
