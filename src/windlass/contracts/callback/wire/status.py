"""The HTTP status and the error code of each of our errors in the callback contract.

`server.forms.refused` refines `lease_lost`, the error of an attempt that has ended.
"""

from __future__ import annotations

from typing import NamedTuple


class Status(NamedTuple):
    """A status, and the value of `error` in the body."""

    http: int
    word: str


_INVALID = Status(400, "invalid_argument")
_NOT_FOUND = Status(404, "task_not_found")
_UNAVAILABLE = Status(503, "unavailable")
_DEFECT = Status(500, "internal")

STATUS: dict[str, Status] = {
    "invalid": _INVALID,
    "malformed": _INVALID,
    "dag_invalid": _INVALID,
    "output_invalid": _INVALID,
    "partition_overlap": _INVALID,
    "too_large": Status(413, "payload_too_large"),
    "unauthenticated": Status(401, "invalid_token"),
    "forbidden": Status(403, "token_scope"),
    "dataset_owned": Status(403, "token_scope"),
    "not_found": _NOT_FOUND,
    "expired": _NOT_FOUND,
    "lease_lost": Status(409, "attempt_mismatch"),
    "store_busy": _UNAVAILABLE,
    "overloaded": _UNAVAILABLE,
    "held": _UNAVAILABLE,
    "draining": _UNAVAILABLE,
    "unavailable": _UNAVAILABLE,
    "conflict": _DEFECT,
    "plan_changed": _DEFECT,
    "invalid_state": _DEFECT,
    "rejected": _DEFECT,
    "contract_violation": _DEFECT,
    "error": _DEFECT,
}
