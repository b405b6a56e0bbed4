"""The HTTP status of each error code in the machine contract, whose error bodies are `{"error": message}`."""

from __future__ import annotations

STATUS: dict[str, int] = {
    "invalid": 400,
    "malformed": 400,
    "too_large": 413,
    "unauthenticated": 401,
    "dag_invalid": 400,
    "output_invalid": 400,
    "partition_overlap": 400,
    "forbidden": 403,
    "dataset_owned": 403,
    "not_found": 404,
    "expired": 404,
    "conflict": 409,
    "plan_changed": 409,
    "invalid_state": 500,
    "rejected": 500,
    "lease_lost": 500,
    "store_busy": 503,
    "overloaded": 503,
    "held": 503,
    "draining": 503,
    "unavailable": 503,
    "contract_violation": 500,
    "error": 500,
}
