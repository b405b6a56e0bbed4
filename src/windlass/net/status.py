"""The HTTP status and the gRPC code of each of our errors: one table, so that a new error is one row.

A contract whose wire has other statuses or words keeps a table of its own in its `wire/`, with the same keys.
"""

from __future__ import annotations

from typing import NamedTuple

from windlass.errors import StoreBusy, WindlassError


class Status(NamedTuple):
    """`http` is the status in our own API, `grpc` the name of the code."""

    http: int
    grpc: str


STATUS: dict[str, Status] = {
    "invalid": Status(422, "INVALID_ARGUMENT"),
    "malformed": Status(400, "INVALID_ARGUMENT"),
    "too_large": Status(413, "RESOURCE_EXHAUSTED"),
    "dag_invalid": Status(422, "INVALID_ARGUMENT"),
    "output_invalid": Status(422, "INVALID_ARGUMENT"),
    "partition_overlap": Status(422, "INVALID_ARGUMENT"),
    "plan_changed": Status(409, "ABORTED"),
    "unauthenticated": Status(401, "UNAUTHENTICATED"),
    "forbidden": Status(403, "PERMISSION_DENIED"),
    "dataset_owned": Status(403, "PERMISSION_DENIED"),
    "not_found": Status(404, "NOT_FOUND"),
    "expired": Status(410, "OUT_OF_RANGE"),
    "conflict": Status(409, "ALREADY_EXISTS"),
    "invalid_state": Status(409, "FAILED_PRECONDITION"),
    "rejected": Status(400, "FAILED_PRECONDITION"),
    "lease_lost": Status(409, "ABORTED"),
    "store_busy": Status(503, "UNAVAILABLE"),
    "overloaded": Status(503, "RESOURCE_EXHAUSTED"),
    "held": Status(429, "RESOURCE_EXHAUSTED"),
    "draining": Status(503, "UNAVAILABLE"),
    "unavailable": Status(503, "UNAVAILABLE"),
    "contract_violation": Status(400, "INTERNAL"),
    "error": Status(500, "INTERNAL"),
}


def known_code(error: WindlassError) -> str:
    """The code that callers know. An error that is not in the table (`commit_unknown`) has the code of its nearest
    ancestor there."""
    codes = (kind.code for kind in type(error).__mro__ if issubclass(kind, WindlassError))
    return next(code for code in codes if code in STATUS)


def public_message(error: WindlassError) -> str:
    """The message for callers. Details about the database are for operators only."""
    hidden = isinstance(error, StoreBusy) and error.code != "lock_held"
    return "the database is away or busy; try again later" if hidden else error.message


def status_of(error: WindlassError) -> Status:
    return STATUS[known_code(error)]
