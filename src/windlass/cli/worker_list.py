"""`windlass workers`: lists workers, drains them, declares them lost."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from cyclopts import Parameter

from windlass.cli.api import HERE, ApiOptions, Watch
from windlass.cli.options import Duration, without_none
from windlass.cli.output import instant

COLUMNS = ("name", "pid", "running", "state", "id", "queues", "kinds", "host", "version", "labels", "lease until")

WorkerId = Annotated[str, Parameter(help="Id of the worker, from `windlass workers list`.")]
State = Annotated[
    Literal["online", "draining", "offline"] | None,
    Parameter(help="Only workers in this state. Default: online and draining."),
]


def list_workers(
    *, state: State = None, queue: str | None = None, watch: Watch = False, api: ApiOptions = HERE
) -> None:
    """List workers. Without `--state`, those that are online or draining.

    Parameters
    ----------
    queue
        Only workers that claim from this queue.
    """
    query = {**api.space, "state": state or "online,draining", "queue": queue}
    api.show_items("/workers", query, COLUMNS, _row, watch=watch, empty="There are no workers.")


def show_worker(worker_id: WorkerId, *, api: ApiOptions = HERE) -> None:
    """Show a worker. Offline workers are kept for a week."""
    worker = api.client().get(f"/workers/{worker_id}")
    lines = []
    for field, value in worker.items():
        text = instant(value) if field.endswith("_at") else ", ".join(value) if isinstance(value, list) else value
        lines.append(f"{field:14} {'(all)' if field == 'kinds' and value is None else '' if text is None else text}")
    api.show(worker, "\n".join(lines))


def drain_worker(worker_id: WorkerId, *, timeout: Duration | None = None, api: ApiOptions = HERE) -> None:
    """Drain a worker: it finishes its tasks and gets no new ones.

    Parameters
    ----------
    timeout
        Time after which tasks that still run are taken from it, such as `5m`.
    """
    worker = api.client().post(f"/workers/{worker_id}/drain", without_none(timeout_s=timeout))
    api.show(worker, f"The worker {worker['name']} is {worker['state']}; {worker['running']} tasks are running.")


def take_worker_offline(worker_id: WorkerId, *, api: ApiOptions = HERE) -> None:
    """Declare a worker lost: its tasks are given to other workers now."""
    worker = api.client().post(f"/workers/{worker_id}/offline", {})
    api.show(worker, f"The worker {worker['name']} is {worker['state']}.")


def _row(worker: dict[str, Any]) -> list[object]:
    kinds = "(all)" if worker["kinds"] is None else ", ".join(worker["kinds"])
    return [
        worker["name"], worker["pid"], worker["running"], worker["state"], worker["id"], ", ".join(worker["queues"]),
        kinds, worker["host"], worker["version"], ", ".join(worker["labels"]), instant(worker["expires_at"]),
    ]  # fmt: skip
