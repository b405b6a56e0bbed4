"""The HTTP status and the stable word of each of our errors in the lease contract."""

from __future__ import annotations

from typing import NamedTuple


class Status(NamedTuple):
    """A status, and the word that `error` has in the body."""

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
    "output_invalid": Status(400, "output_invalid"),
    "partition_overlap": Status(400, "partition_overlap"),
    "too_large": Status(413, "payload_too_large"),
    "forbidden": Status(403, "not_allowed"),
    "dataset_owned": Status(403, "not_allowed"),
    "not_found": _NOT_FOUND,
    "expired": _NOT_FOUND,
    "conflict": Status(409, "conflict"),
    "plan_changed": Status(409, "conflict"),
    "lease_lost": Status(409, "stale_lease"),
    "store_busy": _UNAVAILABLE,
    "overloaded": _UNAVAILABLE,
    "held": _UNAVAILABLE,
    "draining": _UNAVAILABLE,
    "unavailable": _UNAVAILABLE,
    "unauthenticated": _DEFECT,  # a connection without a certificate reaches no route
    "invalid_state": _DEFECT,
    "rejected": _DEFECT,
    "contract_violation": _DEFECT,
    "error": _DEFECT,
}
