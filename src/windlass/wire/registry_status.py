"""What each of our errors is to a caller of the registry contract: the status, and the details that go with it.

The details are the raw bytes of one message in `grpc-status-details-bin`, as on the wire that we are compatible with.
"""

from __future__ import annotations

from typing import NamedTuple

from windlass.core.error import WindlassError
from windlass.wire.protos import kagzi_pb2 as pb
from windlass.wire.status import known_code

DETAILS_KEY = "grpc-status-details-bin"


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


def details_of(error: WindlassError) -> bytes:
    """`subject` and `subject_id` say what was not found."""
    told = told_as(error)
    detail = pb.ErrorDetail(
        code=told.code,
        message=error.message,
        non_retryable=told.final,
        subject=str(error.details.get("subject", "")),
        subject_id=str(error.details.get("subject_id", "")),
    )
    return bytes(detail.SerializeToString())
