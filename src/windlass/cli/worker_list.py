"""`windlass workers …`: who is here and how much each runs; drain one, or say that it is gone."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from cyclopts import Parameter

from windlass.cli.api import HERE, ApiOptions
from windlass.cli.live import watching
from windlass.cli.output import instant, say, show, table
from windlass.cli.queue import Watch
from windlass.cli.submit import seconds_of

COLUMNS = ("name", "pid", "running", "state", "id", "queues", "kinds", "host", "version", "labels", "lease until")

WorkerId = Annotated[str, Parameter(help="The worker, by the id that `windlass workers list` shows.")]
State = Annotated[
    Literal["online", "draining", "offline"] | None, Parameter(help="Only those; default: all that are here.")
]


def list_workers(
    *, state: State = None, queue: str | None = None, watch: Watch = False, api: ApiOptions = HERE
) -> None:
    """List workers; without a state, those that are here.

    Parameters
    ----------
    queue
        Only those that take from this queue.
    """
    client = api.client()
    query = {**api.space, "state": state or "online,draining", **({} if queue is None else {"queue": queue})}

    def found() -> list[dict[str, Any]]:
        return list(client.items("/workers", query, 10_000))

    if watch and not api.json:
        watching(COLUMNS, lambda: map(_row, found()))
        return
    workers = found()
    show(workers, api.json, lambda: table(COLUMNS, map(_row, workers), nothing="No worker is here."))


def show_worker(worker_id: WorkerId, *, api: ApiOptions = HERE) -> None:
    """Show all that is known of a worker, also of one that went, for a week."""
    worker = api.client().get(f"/workers/{worker_id}")

    def shown() -> None:
        for field, value in worker.items():
            text = instant(value) if field.endswith("_at") else ", ".join(value) if isinstance(value, list) else value
            say(f"{field:14} {'(all)' if field == 'kinds' and value is None else '' if text is None else text}")

    show(worker, api.json, shown)


def drain_worker(worker_id: WorkerId, *, timeout: str | None = None, api: ApiOptions = HERE) -> None:
    """Let a worker finish what it has, and give it nothing new.

    Parameters
    ----------
    timeout
        What still runs after so long is taken from it, such as `5m`.
    """
    order = {} if timeout is None else {"timeout_s": seconds_of("--timeout", timeout)}
    worker = api.client().post(f"/workers/{worker_id}/drain", order)
    show(worker, api.json, lambda: say(f"The worker {worker['name']} is {worker['state']}, {worker['running']} run."))


def take_worker_offline(worker_id: WorkerId, *, api: ApiOptions = HERE) -> None:
    """Say that a worker is gone: what it ran is given to others now."""
    worker = api.client().post(f"/workers/{worker_id}/offline", {})
    show(worker, api.json, lambda: say(f"The worker {worker['name']} is {worker['state']}."))


def _row(worker: dict[str, Any]) -> list[object]:
    kinds = "(all)" if worker["kinds"] is None else ", ".join(worker["kinds"])
    return [
        worker["name"], worker["pid"], worker["running"], worker["state"], worker["id"], ", ".join(worker["queues"]),
        kinds, worker["host"], worker["version"], ", ".join(worker["labels"]), instant(worker["expires_at"]),
    ]  # fmt: skip
