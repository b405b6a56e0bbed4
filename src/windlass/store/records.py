"""Converts rows to records and back. Structured columns are JSON.

A row that does not fit its record is a defect, and raises here rather than in a rule.
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
OUTCOMES: Mapping[str | None, Outcome | None] = {None: None, **{o.value: o for o in Outcome}}
decode_cancel = msgspec.json.Decoder(Cancel).decode
policy_from = msgspec.json.Decoder(Policy).decode
outages_from = msgspec.json.Decoder(tuple[Outage, ...]).decode
_decode_failure = msgspec.json.Decoder(Failure).decode
_decode_config = msgspec.json.Decoder(QueueConfig).decode

WIDTH = len(TASK_COLUMNS)
_STATE, _OUTCOME, _CANCEL, _POLICY, _ERROR = map(TASK_COLUMNS.index, ("state", "outcome", "cancel", "policy", "error"))


def task_from(row: Row) -> Task:
    """The record in the first columns of a row."""
    values = list(row[:WIDTH])
    values[_STATE] = STATES[values[_STATE]]
    values[_OUTCOME] = OUTCOMES[values[_OUTCOME]]
    policy = values[_POLICY]
    values[_POLICY] = DEFAULT_POLICY if policy is None else policy_from(policy)
    if values[_CANCEL] is not None:
        values[_CANCEL] = decode_cancel(values[_CANCEL])
    if values[_ERROR] is not None:
        values[_ERROR] = _decode_failure(values[_ERROR])
    return Task(*values)


def started_from(row: Row, lease: Lease, queue: str, lane: Lane, now: datetime) -> Task:
    """A task that a claim began at this time, from `{started_columns}` and the values that the whole claim shares. By
    position, which is twice as fast as by name; this is part of every claim."""
    (
        id_, kind, available_at, attempt, failures, losses, finished_at, deadline_at, timer_at, run_id, has_dependents,
        awaited, cancel, policy, error, result, trace, parent_id, job_id,
    ) = row  # fmt: skip
    return Task(
        id_, lease.namespace, queue, kind, State.RUNNING, available_at, lane.priority, lane.key, attempt, failures,
        losses, None, lease.id, lease.worker, now, finished_at, deadline_at, timer_at, run_id, has_dependents, awaited,
        None if cancel is None else decode_cancel(cancel), DEFAULT_POLICY if policy is None else policy_from(policy),
        None if error is None else _decode_failure(error), result, trace, parent_id, job_id,
    )  # fmt: skip


def step_from(row: Row) -> Step:
    (
        task_id, name, occurrence, position, kind, state, attempt, recorded_at, took_s, failures, wake_at, child_id,
        error, result,
    ) = row  # fmt: skip
    return Step(
        task_id, name, occurrence, position, StepKind(kind), StepState(state), attempt, recorded_at, took_s,
        failures, wake_at, child_id, None if error is None else _decode_failure(error), result,
    )  # fmt: skip


def lease_from(row: Row) -> Lease:
    id_, namespace, worker, queues, kinds, labels, ttl_s, expires_at, host, pid, version, delivery = row[:12]
    return Lease(
        id_, namespace, worker, tuple(queues), None if kinds is None else tuple(kinds), tuple(labels), ttl_s,
        expires_at, host, pid, version, delivery,
    )  # fmt: skip


def schedule_from(row: Row) -> Schedule:
    """The record in the first columns of a row."""
    fields = dict(zip(Schedule.__struct_fields__, row, strict=False))
    policy = fields["policy"]
    fields["policy"] = None if policy is None else policy_from(policy)
    fields["overlap"] = Overlap(fields["overlap"])
    return Schedule(**fields)


def config_from(text: str | None) -> QueueConfig:
    return QueueConfig() if text is None else _decode_config(text)


def delivery_from(text: str | None) -> Delivery:
    return PULL if text is None else decode_delivery(text)


def settings_from(row: Row) -> QueueSettings:
    config, delivery, policy, secret, previous = row
    default = DEFAULT_POLICY if policy is None else policy_from(policy)
    return QueueSettings(config_from(config), delivery_from(delivery), default, secret, previous)


def policy_as_json(policy: Policy) -> str | None:
    """A policy that the caller gave, also if it equals the default. Without one, NULL is stored: the task gets the
    policy of its queue, or the default of a later release."""
    return None if policy is DEFAULT_POLICY else as_json(policy)


LABELS = "\x1f"  # joins labels, since unnest would flatten an array of arrays; no name may contain it


def effect_from(row: Row) -> tuple[Effect, int]:
    """An effect and the number of times it was taken."""
    id_, kind, namespace, task_id, attempt, body, tries = row
    return Effect(id_, kind, namespace, task_id, attempt, msgspec.json.decode(body)), tries


def tasks_with_time(rows: Sequence[Row]) -> tuple[list[Task], datetime | None]:
    """Tasks from rows whose last column is the time, and the time; None without a row."""
    return [task_from(row) for row in rows], rows[0][-1] if rows else None
