"""`windlass submit` and `windlass tasks wait`: submits a task, waits for its result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Parameter

from windlass.api.client import ApiClient
from windlass.cli.api import HERE, ApiOptions
from windlass.cli.follow import follow_task
from windlass.cli.options import Duration, Payload, without_none
from windlass.cli.output import errors, print_json
from windlass.cli.task import TaskId, fail_with


@Parameter(name="*")
@dataclass(frozen=True)
class TaskOptions:
    """Flags that describe a task to submit, now or by a schedule."""

    payload: Payload = None
    queue: Annotated[str | None, Parameter(name=("--queue", "-q"), help="Queue of the task.")] = None
    priority: Annotated[int | None, Parameter(help="From -100 to 100; lower numbers run first, as with `nice`.")] = None
    max_attempts: Annotated[
        int | None, Parameter(help="Maximum number of failed attempts. Default: that of the queue.")
    ] = None
    timeout: Annotated[Duration | None, Parameter(help="Maximum duration of an attempt, such as `10m`.")] = None


DEFAULT_TASK = TaskOptions()


def submit(
    kind: str,
    *,
    task: TaskOptions = DEFAULT_TASK,
    delay: Duration | None = None,
    key: str | None = None,
    run: str | None = None,
    wait: Annotated[bool, Parameter(name=("--wait", "-w"), show_default=False)] = False,
    wait_timeout: Duration | None = None,
    api: ApiOptions = HERE,
) -> None:
    """Submit a task: `windlass submit send --payload '{"to": "ada"}' --wait`. By default the queue is `default`, the
    payload `null` and the priority 0.

    Parameters
    ----------
    kind
        Name of the handler.
    delay
        Earliest start, from now, such as `90s` or `1h30m`.
    key
        Idempotency key: submitting the same key again returns the same task.
    run
        Id of the run that the task belongs to.
    wait
        Wait for the task to end and print its result. Exit code 1 if it does not succeed.
    wait_timeout
        Maximum time to wait, such as `30s`. Default: no limit.
    """
    client = api.client()
    order = without_none(
        kind=kind, payload=task.payload, queue=task.queue, priority=task.priority, delay_s=delay, idempotency_key=key,
        max_attempts=task.max_attempts, timeout_s=task.timeout, run_id=run, **api.space,
    )  # fmt: skip
    submitted = client.post("/tasks", order)
    if not wait:
        api.show(submitted, submitted["id"])
        return
    if not api.json:
        errors.print(f"submitted {submitted['id']}", style="dim")
    wait_for(submitted, client, wait_timeout, api.json)


def wait_task(task_id: TaskId, *, timeout: Duration | None = None, api: ApiOptions = HERE) -> None:
    """Wait for a task to end and print its result. Exit code 1 if it does not succeed.

    Parameters
    ----------
    timeout
        Maximum time to wait, such as `30s`. Default: no limit.
    """
    client = api.client()
    wait_for(client.get(f"/tasks/{task_id}"), client, timeout, api.json)


def wait_for(task: dict[str, Any], client: ApiClient, limit_s: float | None, as_json: bool) -> None:
    """Prints the result, or the whole task as JSON. Raises `Failed` if the task did not succeed."""
    ended = follow_task(client, task, limit_s)
    succeeded = ended["state"] == "succeeded"
    if as_json or succeeded:
        print_json(ended if as_json else ended["result"])
    if not succeeded:
        raise fail_with(ended)
