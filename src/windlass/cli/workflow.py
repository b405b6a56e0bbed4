"""Commands for workflows: send a signal, list the recorded steps, fork."""

from __future__ import annotations

from windlass.cli.api import HERE, ApiOptions
from windlass.cli.options import Payload
from windlass.cli.output import instant
from windlass.cli.task import TaskId


def send_signal(task_id: TaskId, name: str, *, payload: Payload = None, api: ApiOptions = HERE) -> None:
    """Send a signal: `windlass signals send TASK approval --payload true`. A signal that arrives early is kept until
    the workflow waits for it.

    Parameters
    ----------
    name
        Name of the signal, as in `ctx.wait_signal("approval")`.
    """
    task = api.client().post(f"/tasks/{task_id}/signals/{name}", {"payload": payload})
    api.show(task, f"Sent. The workflow is {task['state']}.")


def list_steps(task_id: TaskId, *, api: ApiOptions = HERE) -> None:
    """List the recorded steps of a workflow, in the order of its code."""
    found = api.client().get(f"/tasks/{task_id}/steps")
    rows = [
        (step["name"], step["occurrence"], step["kind"], step["state"], step["attempt"], instant(step["recorded_at"]),
         instant(step["wake_at"]), (step["error"] or {}).get("message"))
        for step in found["items"]
    ]  # fmt: skip
    columns = ("step", "occurrence", "kind", "state", "attempt", "recorded", "until", "error")
    api.show_table(found["items"], columns, rows, "No steps recorded.")


def fork_task(task_id: TaskId, from_step: str, *, occurrence: int = 1, api: ApiOptions = HERE) -> None:
    """Rerun a workflow from one of its steps, as a new task that keeps the steps recorded before it.

    Parameters
    ----------
    from_step
        First step to rerun; `windlass tasks steps` lists them.
    occurrence
        Occurrence of the step with that name.
    """
    task = api.client().post(f"/tasks/{task_id}/fork", {"from_step": from_step, "occurrence": occurrence})
    api.show(task, f"Forked as task {task['id']}.")
