"""Rows to records and back. Knows which columns are structured, and how they are spelled (JSON).

A row that cannot be a record is a defect, and fails loudly here rather than in a rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from windlass.core.delivery import PULL, Delivery, QueueSettings, decode_delivery
from windlass.core.failure import Failure
from windlass.core.fairness import Lane
from windlass.core.lease import Lease
from windlass.core.queue import QueueConfig
from windlass.core.retry import DEFAULT_POLICY, Policy
from windlass.core.schedule import Outage, Overlap, Schedule
from windlass.core.states import Effect, State
from windlass.core.step import Step, StepKind, StepState
from windlass.core.task import Cancel, Outcome, Task
from windlass.store.task_columns import TASK_COLUMNS
from windlass.store.task_columns import as_json as as_json

Row = Sequence[Any]

STATES: Mapping[str, State] = {state.value: state for state in State}
_STEP_KINDS: Mapping[str, StepKind] = {kind.value: kind for kind in StepKind}
_STEP_STATES: Mapping[str, StepState] = {state.value: state for state in StepState}
OUTCOMES: Mapping[str | None, Outcome | None] = {None: None, **{o.value: o for o in Outcome}}
decode_cancel = msgspec.json.Decoder(Cancel).decode
_decode_policy = msgspec.json.Decoder(Policy).decode
_decode_failure = msgspec.json.Decoder(Failure).decode
_decode_config = msgspec.json.Decoder(QueueConfig).decode
_decode_outages = msgspec.json.Decoder(tuple[Outage, ...]).decode

WIDTH = len(TASK_COLUMNS)
_STATE, _OUTCOME, _CANCEL, _POLICY, _ERROR = map(TASK_COLUMNS.index, ("state", "outcome", "cancel", "policy", "error"))


def task_from(row: Row) -> Task:
    """The record in the first columns of a row."""
    values = list(row[:WIDTH])
    values[_STATE] = STATES[values[_STATE]]
    values[_OUTCOME] = OUTCOMES[values[_OUTCOME]]
    policy = values[_POLICY]
    values[_POLICY] = DEFAULT_POLICY if policy is None else _decode_policy(policy)
    if values[_CANCEL] is not None:
        values[_CANCEL] = decode_cancel(values[_CANCEL])
    if values[_ERROR] is not None:
        values[_ERROR] = _decode_failure(values[_ERROR])
    return Task(*values)


def started_from(row: Row, lease: Lease, queue: str, lane: Lane, now: datetime) -> Task:
    """A task that was just begun at this time, from `{started_columns}` and what is the same for all of the claim. By
    position, which is twice as fast as by name and part of every claim; a missing column fails loudly."""
    (
        id_, kind, available_at, attempt, failures, losses, finished_at, deadline_at, timer_at, run_id, has_dependents,
        awaited, cancel, policy, error, result, trace, parent_id,
    ) = row  # fmt: skip
    return Task(
        id_, lease.namespace, queue, kind, State.RUNNING, available_at, lane.priority, lane.key, attempt, failures,
        losses, None, lease.id, lease.worker, now, finished_at, deadline_at, timer_at, run_id, has_dependents, awaited,
        None if cancel is None else decode_cancel(cancel),
        DEFAULT_POLICY if policy is None else _decode_policy(policy),
        None if error is None else _decode_failure(error),
        result,
        trace,
        parent_id,
    )  # fmt: skip


def step_from(row: Row) -> Step:
    (
        task_id, name, occurrence, position, kind, state, attempt, recorded_at, took_s, failures, wake_at, child_id,
        error, result,
    ) = row  # fmt: skip
    return Step(
        task_id, name, occurrence, position, _STEP_KINDS[kind], _STEP_STATES[state], attempt, recorded_at, took_s,
        failures, wake_at, child_id, None if error is None else _decode_failure(error), result,
    )  # fmt: skip


def lease_from(row: Row) -> Lease:
    id_, namespace, worker, queues, kinds, labels, ttl_s, expires_at, host, pid, version, delivery = row[:12]
    return Lease(
        id_, namespace, worker, tuple(queues), None if kinds is None else tuple(kinds), tuple(labels), ttl_s,
        expires_at, host, pid, version, delivery,
    )  # fmt: skip


def policy_from(text: str) -> Policy:
    return _decode_policy(text)


def schedule_from(row: Row) -> Schedule:
    """The record in the first columns of a row."""
    fields = dict(zip(Schedule.__struct_fields__, row, strict=False))
    policy = fields["policy"]
    fields["policy"] = None if policy is None else _decode_policy(policy)
    fields["overlap"] = Overlap(fields["overlap"])
    return Schedule(**fields)


def outages_from(text: str) -> tuple[Outage, ...]:
    return _decode_outages(text)


def config_from(text: str | None) -> QueueConfig:
    return QueueConfig() if text is None else _decode_config(text)


def delivery_from(text: str | None) -> Delivery:
    return PULL if text is None else decode_delivery(text)


def settings_from(row: Row) -> QueueSettings:
    config, delivery, policy, secret, previous = row
    return QueueSettings(
        config_from(config),
        delivery_from(delivery),
        DEFAULT_POLICY if policy is None else _decode_policy(policy),
        secret,
        previous,
    )


def policy_as_json(policy: Policy) -> str | None:
    """The default policy itself is not stored: who asked for nothing gets what is set for the queue, or a later
    default. One that was asked for is, also where it says the same."""
    return None if policy is DEFAULT_POLICY else as_json(policy)


LABELS = "\x1f"  # between labels where an array of arrays would be needed; refused in every name


def effect_from(row: Row) -> tuple[Effect, int]:
    """An effect and the number of times it was taken."""
    id_, kind, namespace, task_id, attempt, body, tries = row
    return Effect(id_, kind, namespace, task_id, attempt, msgspec.json.decode(body)), tries


def tasks_with_time(rows: Sequence[Row]) -> tuple[list[Task], datetime | None]:
    """Records from rows whose last column is the time; with no row there is no time either."""
    return [task_from(row) for row in rows], rows[0][-1] if rows else None
