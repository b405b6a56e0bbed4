"""Submissions, and the shape and range of each of their fields. A check that fails here has written nothing."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec
from msgspec.structs import replace

from windlass.core.retry import DEFAULT_POLICY, Policy
from windlass.core.states import Instant
from windlass.core.trace import check_trace
from windlass.core.validation import (
    KEY_MAX,
    PAYLOAD_MAX_BYTES,
    check_count,
    check_ids,
    check_instant,
    check_name,
    check_names,
    check_object,
    check_payload,
    check_queue_of_users,
    check_seconds,
    check_text,
    check_type,
)
from windlass.errors import Invalid

PRIORITY_MIN, PRIORITY_MAX = -100, 100


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """A task to submit. Like `nice`, a lower `priority` runs first. `payload` is JSON text in UTF-8.

    It becomes available `delay_s` after its submission by the database's clock, or at `available_at`. `wire` is a JSON
    object with the fields of one contract; `replay_of` is the ended task that this one repeats.
    """

    kind: str
    payload: bytes = b"null"
    queue: str = "default"
    namespace: str = "default"
    id: UUID | None = None
    priority: int = 0
    delay_s: float = 0.0
    available_at: Instant | None = None
    deadline_at: Instant | None = None
    concurrency_key: str = ""
    idempotency_key: str | None = None
    policy: Policy = DEFAULT_POLICY
    requires: tuple[str, ...] = ()
    run_id: UUID | None = None
    after: tuple[UUID, ...] = ()
    after_any_outcome: bool = False
    trace: str | None = None
    wire: bytes | None = None
    replay_of: UUID | None = None
    parent_id: UUID | None = None  # the workflow that is woken when this task ends
    schedule_id: UUID | None = None  # the schedule that submits it
    job_id: UUID | None = None  # the job of a DAG that it runs


def wire_fields(wire: bytes | None) -> dict[str, Any]:
    """The fields of one contract that came with the submission."""
    found = None if wire is None else msgspec.json.decode(wire)
    return found if isinstance(found, dict) else {}


class Batch(msgspec.Struct, frozen=True):
    """Submissions that differ only in id and payload: the shared fields are sent and checked once."""

    shared: Submission
    ids: list[UUID]
    payloads: list[bytes]

    def submissions(self) -> list[Submission]:
        pairs = zip(self.ids, self.payloads, strict=True)
        return [replace(self.shared, id=task_id, payload=payload) for task_id, payload in pairs]


def check_submission(submission: Submission, most: int = PAYLOAD_MAX_BYTES) -> None:
    """Raise Invalid naming the first field that cannot be accepted. The payload may have at most `most` bytes."""
    check_type("submission", submission, Submission)
    check_name("kind", submission.kind)
    check_name("queue", submission.queue)
    if submission.job_id is None:
        check_queue_of_users("queue", submission.queue)
    check_name("namespace", submission.namespace)
    check_payload("payload", submission.payload, most)
    if submission.priority.__class__ is not int or not PRIORITY_MIN <= submission.priority <= PRIORITY_MAX:
        raise Invalid(f"must be a whole number from {PRIORITY_MIN} to {PRIORITY_MAX}", field="priority")
    if submission.concurrency_key != "":
        check_text("concurrency_key", submission.concurrency_key, KEY_MAX)
    if submission.policy is not DEFAULT_POLICY:
        check_policy(submission.policy)
        if submission.policy.unlimited and submission.job_id is None:
            raise Invalid("only jobs that always run have no budget", field="policy.unlimited")
    _check_optional(submission)


def _check_optional(submission: Submission) -> None:
    if submission.id is not None:
        check_type("id", submission.id, UUID)
    if submission.idempotency_key is not None:
        check_text("idempotency_key", submission.idempotency_key, KEY_MAX)
    if submission.available_at is not None:
        check_instant("available_at", submission.available_at)
    if submission.deadline_at is not None:
        check_instant("deadline_at", submission.deadline_at)
    if submission.delay_s != 0.0:
        check_seconds("delay_s", submission.delay_s)
        if submission.available_at is not None:
            raise Invalid("give a delay or available_at, not both", field="delay_s")
    if submission.requires != ():
        check_names("requires", submission.requires)
    if submission.run_id is not None:
        check_type("run_id", submission.run_id, UUID)
    if submission.parent_id is not None:
        check_type("parent_id", submission.parent_id, UUID)
    if submission.schedule_id is not None:
        check_type("schedule_id", submission.schedule_id, UUID)
    if submission.job_id is not None:
        check_type("job_id", submission.job_id, UUID)
    if submission.replay_of is not None:
        check_type("replay_of", submission.replay_of, UUID)
    if submission.after != ():
        check_type("after", submission.after, tuple)
        check_ids("after", submission.after)
        if submission.run_id is None:
            raise Invalid("a task can only wait for tasks of its own run: give run_id", field="after")
        if submission.id in submission.after:
            raise Invalid("a task cannot wait for itself", field="after")
    if submission.after_any_outcome is not False:
        check_type("after_any_outcome", submission.after_any_outcome, bool)
    if submission.trace is not None:
        check_trace("trace", submission.trace)
    if submission.wire is not None:
        check_object("wire", submission.wire)


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
    check_type("policy.unlimited", policy.unlimited, bool)
    if policy.lease_s is not None:
        check_seconds("policy.lease_s", policy.lease_s, least=1.0)
