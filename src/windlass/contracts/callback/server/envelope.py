"""Makes the envelope that is pushed to a worker. Fields that only this contract has come from the task's `wire`."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from windlass.contracts.callback.delivery import HEARTBEAT_TIMEOUT_MS, Push
from windlass.contracts.callback.rules import Scope
from windlass.contracts.callback.wire.envelope import Resources, TaskEnvelope
from windlass.contracts.callback.wire.names import run_of
from windlass.core.submission import wire_fields
from windlass.core.task import Task
from windlass.engine.read.tasks import TaskView
from windlass.net.ids import ulid

OPERATION = "materialize"


def make_envelope(
    view: TaskView, push: Push, scope: Scope, token: str, base_url: str, checkpoint: bytes | None
) -> TaskEnvelope:
    """The envelope of a task's current attempt. `base_url` is where the worker calls back."""
    task = view.task
    fields = wire_fields(view.wire)
    return TaskEnvelope(
        task_id=ulid("task", task.id),
        run_id=run_of(task.id, task.run_id),
        asset_id=_text(fields.get("assetId")) or task.kind,
        task_key=fields.get("taskKey") or _task_key(task),
        tenant_id=scope.tenant,
        workspace_id=scope.workspace,
        attempt=task.attempt,
        resources=_resources(task, push, fields.get("resources")),
        enqueued_at=view.created_at,
        deadline=task.deadline_at,
        callback_base_url=base_url,
        task_token=token,
        token_expires_at=_utc(scope.expires_at),
        heartbeat_interval_ms=push.heartbeat_interval_ms,
        heartbeat_timeout_ms=push.heartbeat_timeout_ms or HEARTBEAT_TIMEOUT_MS,
        cancel_grace_period_ms=round(task.policy.cancel_grace_s * 1000),
        kind=task.kind,
        queue=task.queue,
        payload=msgspec.Raw(view.payload),
        failures=task.failures,
        ends_at=task.timer_at,
        traceparent=task.trace,
        checkpoint=UNSET if checkpoint is None else msgspec.Raw(checkpoint),
    )


def _task_key(task: Task) -> dict[str, Any]:
    return {"asset_key": {"namespace": task.namespace, "name": task.kind}, "operation": OPERATION}


def _resources(task: Task, push: Push, submitted: object) -> Resources:
    """The resources of the queue, changed by those of the submission and by the time limit of the task."""
    resources = Resources(
        memory_bytes=push.resources.memory_bytes,
        cpu_millicores=push.resources.cpu_millicores,
        timeout_ms=push.resources.timeout_ms,
    )
    if isinstance(submitted, dict):
        with suppress(msgspec.ValidationError):
            resources = msgspec.convert({**msgspec.to_builtins(resources), **submitted}, Resources)
    if task.policy.timeout_s is not None:
        resources = replace(resources, timeout_ms=max(1, round(task.policy.timeout_s * 1000)))
    return resources


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _utc(instant: datetime) -> datetime:
    return instant.replace(microsecond=0)
