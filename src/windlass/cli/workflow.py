"""For workflows: `windlass signals send`, and the steps that they have recorded."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from windlass.cli.api import HERE, ApiOptions
from windlass.cli.output import instant, say, show, table
from windlass.cli.submit import read_payload
from windlass.cli.task import TaskId


def send_signal(
    task_id: TaskId,
    name: str,
    *,
    payload: Annotated[str, Parameter(name=("--payload", "-p"))] = "null",
    api: ApiOptions = HERE,
) -> None:
    """Send a signal: `windlass signals send TASK approval --payload true`. Sent before it is waited for, it is kept.

    Parameters
    ----------
    name
        What the workflow calls it: `ctx.wait_signal("approval")`.
    payload
        JSON text; `@FILE` reads a file, `-` reads standard input.
    """
    task = api.client().post(f"/tasks/{task_id}/signals/{name}", {"payload": read_payload(payload)})
    show(task, api.json, lambda: say(f"Sent. The workflow is {task['state']}."))


def list_steps(task_id: TaskId, *, api: ApiOptions = HERE) -> None:
    """The steps that a workflow has recorded, in the order in which its code asked for them."""
    found = api.client().get(f"/tasks/{task_id}/steps")
    rows = [
        (step["name"], step["occurrence"], step["kind"], step["state"], step["attempt"], instant(step["recorded_at"]),
         instant(step["wake_at"]), (step["error"] or {}).get("message"))
        for step in found["items"]
    ]  # fmt: skip
    columns = ("step", "occurrence", "kind", "state", "attempt", "recorded", "until", "error")
    show(found["items"], api.json, lambda: table(columns, rows, nothing="No steps are recorded."))


def fork_task(task_id: TaskId, from_step: str, *, occurrence: int = 1, api: ApiOptions = HERE) -> None:
    """Do a workflow again from one of its steps, as a new task that keeps what was recorded before.

    Parameters
    ----------
    from_step
        The first step that is done again; `windlass tasks steps` lists them.
    occurrence
        Which of the steps with that name.
    """
    task = api.client().post(f"/tasks/{task_id}/fork", {"from_step": from_step, "occurrence": occurrence})
    show(task, api.json, lambda: say(f"Forked as task {task['id']}."))
