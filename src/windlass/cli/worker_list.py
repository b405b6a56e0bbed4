"""`windlass workers`: who is alive, and how much they run."""

from __future__ import annotations

from typing import Any

from windlass.cli.api import HERE, ApiOptions
from windlass.cli.live import watching
from windlass.cli.output import instant, show, table
from windlass.cli.queue import Watch

COLUMNS = ("name", "pid", "running", "queues", "kinds", "host", "version", "labels", "lease until")


def list_workers(*, watch: Watch = False, api: ApiOptions = HERE) -> None:
    """List the workers that are alive."""
    client = api.client()

    def found() -> list[dict[str, Any]]:
        return list(client.items("/workers", api.space, 10_000))

    if watch and not api.json:
        watching(COLUMNS, lambda: map(_row, found()))
        return
    workers = found()
    show(workers, api.json, lambda: table(COLUMNS, map(_row, workers), nothing="No worker is alive."))


def _row(worker: dict[str, Any]) -> list[object]:
    kinds = "(all)" if worker["kinds"] is None else ", ".join(worker["kinds"])
    return [
        worker["name"], worker["pid"], worker["running"], ", ".join(worker["queues"]), kinds, worker["host"],
        worker["version"], ", ".join(worker["labels"]), instant(worker["expires_at"]),
    ]  # fmt: skip
