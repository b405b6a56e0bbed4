"""Makes the envelope that is pushed to a worker. Fields that only this contract has come from the task's `wire`."""

from __future__ import annotations

from contextlib import suppress

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


def make_envelope(
    view: TaskView, push: Push, scope: Scope, token: str, base_url: str, checkpoint: bytes | None
) -> TaskEnvelope:
    """The envelope of a task's current attempt. `base_url` is where the worker calls back."""
    task = view.task
    fields = wire_fields(view.wire)
    asset_id = fields.get("assetId")
    task_key = {"asset_key": {"namespace": task.namespace, "name": task.kind}, "operation": "materialize"}
    return TaskEnvelope(
        task_id=ulid("task", task.id),
        run_id=run_of(task.id, task.run_id),
        asset_id=asset_id if isinstance(asset_id, str) and asset_id else task.kind,
        task_key=fields.get("taskKey") or task_key,
        tenant_id=scope.tenant,
        workspace_id=scope.workspace,
        attempt=task.attempt,
        resources=_resources(task, push, fields.get("resources")),
        enqueued_at=view.created_at,
        deadline=task.deadline_at,
        callback_base_url=base_url,
        task_token=token,
        token_expires_at=scope.expires_at.replace(microsecond=0),
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


def _resources(task: Task, push: Push, submitted: object) -> Resources:
    """The resources of the queue, changed by those of the submission and by the time limit of the task."""
    resources = Resources(**msgspec.structs.asdict(push.resources))
    if isinstance(submitted, dict):
        with suppress(msgspec.ValidationError):
            resources = msgspec.convert({**msgspec.to_builtins(resources), **submitted}, Resources)
    if task.policy.timeout_s is not None:
        resources = replace(resources, timeout_ms=max(1, round(task.policy.timeout_s * 1000)))
    return resources
