"""What a client asks for, and what is wrong with it: everything that can be said before the database is asked.

Owns the shape and range of every field of a submission; nothing that fails here has written anything.
"""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec

from windlass.core.error import Invalid
from windlass.core.retry import DEFAULT_POLICY, Policy
from windlass.core.transition import Instant

NAME_MAX = 200
KEY_MAX = 500
PAYLOAD_MAX_BYTES = 2 * 1024 * 1024
PRIORITY_MIN, PRIORITY_MAX = -100, 100
SECONDS_MAX = 100 * 365 * 86400.0
COUNT_MAX = 1_000_000


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """One task to be. Like `nice`, a lower `priority` runs first. `payload` is JSON text in UTF-8."""

    kind: str
    payload: bytes = b"null"
    queue: str = "default"
    namespace: str = "default"
    id: UUID | None = None
    priority: int = 0
    available_at: Instant | None = None
    deadline_at: Instant | None = None
    concurrency_key: str = ""
    idempotency_key: str | None = None
    policy: Policy = DEFAULT_POLICY
    requires: tuple[str, ...] = ()
    run_id: UUID | None = None
    after: tuple[UUID, ...] = ()
    after_any_outcome: bool = False


def check_submission(submission: Submission) -> None:
    """Raise Invalid naming the first field that cannot be accepted."""
    check_type("submission", submission, Submission)
    check_name("kind", submission.kind)
    check_name("queue", submission.queue)
    check_name("namespace", submission.namespace)
    check_payload("payload", submission.payload)
    if submission.priority.__class__ is not int or not PRIORITY_MIN <= submission.priority <= PRIORITY_MAX:
        raise Invalid(f"must be a whole number from {PRIORITY_MIN} to {PRIORITY_MAX}", field="priority")
    if submission.concurrency_key != "":
        check_text("concurrency_key", submission.concurrency_key, KEY_MAX)
    if submission.policy is not DEFAULT_POLICY:
        check_policy(submission.policy)
    _check_optional(submission)


def _check_optional(submission: Submission) -> None:
    if submission.id is not None:
        check_type("id", submission.id, UUID)
    if submission.idempotency_key is not None:
        check_text("idempotency_key", submission.idempotency_key, KEY_MAX)
    for field in ("available_at", "deadline_at"):
        value = getattr(submission, field)
        if value is not None:
            check_instant(field, value)
    if submission.requires != ():
        check_names("requires", submission.requires)
    if submission.run_id is not None:
        check_type("run_id", submission.run_id, UUID)
    if submission.after != ():
        _check_after(submission)
    if submission.after_any_outcome is not False:
        check_type("after_any_outcome", submission.after_any_outcome, bool)


def _check_after(submission: Submission) -> None:
    check_type("after", submission.after, tuple)
    for upstream in submission.after:
        check_type("after", upstream, UUID)
    if submission.run_id is None:
        raise Invalid("a task can only wait for tasks of its own run: give run_id", field="after")
    if submission.id in submission.after:
        raise Invalid("a task cannot wait for itself", field="after")


def check_policy(policy: Policy) -> None:
    check_type("policy", policy, Policy)
    check_count("policy.max_attempts", policy.max_attempts, least=1)
    check_count("policy.max_losses", policy.max_losses, least=0)
    if policy.timeout_s is not None:
        check_seconds("policy.timeout_s", policy.timeout_s, least=0.001)
    check_seconds("policy.cancel_grace_s", policy.cancel_grace_s)
    check_seconds("policy.retry_delay_s", policy.retry_delay_s)
    check_seconds("policy.retry_delay_max_s", policy.retry_delay_max_s)
    check_seconds("policy.retry_factor", policy.retry_factor, least=1.0, most=1000.0)


# --------------------------------------------------------------------------------------------- kinds of values


def check_type(field: str, value: object, kind: type) -> None:
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise Invalid(f"must be {kind.__name__}, not {type(value).__name__}", field=field)


def check_name(field: str, value: object) -> None:
    """A name of ours: queue, kind, namespace, worker, label."""
    check_text(field, value, NAME_MAX)


def check_names(field: str, values: object) -> None:
    for value in check_list(field, values):
        check_name(field, value)


def check_list(field: str, values: object) -> tuple[object, ...] | list[object]:
    if not isinstance(values, tuple | list):
        raise Invalid(f"must be a list, not {type(values).__name__}", field=field)
    return values


def check_text(field: str, value: object, longest: int) -> None:
    """Text that PostgreSQL can store and a person can read: UTF-8, no control characters, not empty."""
    if value.__class__ is not str or not isinstance(value, str):
        raise Invalid(f"must be text, not {type(value).__name__}", field=field)
    if not 0 < len(value) <= longest:
        raise Invalid(f"must have 1 to {longest} characters, not {len(value)}", field=field)
    if not value.isprintable():  # false for control characters, NUL among them, and for lone surrogates
        raise Invalid("must not contain control characters or text that is not UTF-8", field=field)


def check_message(field: str, value: object, longest: int = 64 * 1024) -> str:
    """Free text of a worker or a person: made storable instead of refused, since losing it would be worse."""
    if not isinstance(value, str):
        raise Invalid(f"must be text, not {type(value).__name__}", field=field)
    return value[:longest].encode("utf-8", "replace").decode().replace("\x00", "\ufffd")


def check_payload(field: str, value: object) -> None:
    if value.__class__ is not bytes or not isinstance(value, bytes):
        raise Invalid(f"must be bytes of JSON text, not {type(value).__name__}", field=field)
    if len(value) > PAYLOAD_MAX_BYTES:
        raise Invalid(f"has {len(value)} bytes, the limit is {PAYLOAD_MAX_BYTES}", field=field, limit=PAYLOAD_MAX_BYTES)
    try:
        msgspec.json.decode(value, type=msgspec.Raw)
        if not value.isascii():
            value.decode()
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"is not JSON text in UTF-8: {error}", field=field) from None
    except RecursionError:
        raise Invalid("is nested too deeply", field=field) from None


def check_instant(field: str, value: object) -> None:
    if not isinstance(value, datetime):
        raise Invalid(f"must be a datetime, not {type(value).__name__}", field=field)
    if value.tzinfo is None or value.utcoffset() is None:
        raise Invalid("must have a time zone", field=field)
    if not 1970 <= value.year <= 9000:
        raise Invalid("is too far away", field=field)


def check_count(field: str, value: object, *, least: int = 0, most: int = COUNT_MAX) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise Invalid(f"must be a whole number from {least} to {most}", field=field)


def check_seconds(field: str, value: object, *, least: float = 0.0, most: float = SECONDS_MAX) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Invalid("must be a number", field=field)
    if not least <= value <= most:  # refuses NaN and infinity too
        raise Invalid(f"must lie between {least:g} and {most:g}", field=field)
