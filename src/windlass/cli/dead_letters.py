"""`windlass dead-letters`: messages that no worker could handle. `windlass letters` is the older name."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from windlass.cli.api import HERE, ApiOptions
from windlass.cli.options import Limit
from windlass.cli.output import instant

COLUMNS = ("id", "queue", "task", "deliveries", "since", "reason")
DeadLetterId = Annotated[str, Parameter(help="Id of the dead letter, from `windlass dead-letters list`.")]


def list_dead_letters(
    *,
    queue: Annotated[str | None, Parameter(help="Only dead letters of this queue.")] = None,
    limit: Limit = 100,
    api: ApiOptions = HERE,
) -> None:
    """List messages that no worker could handle, newest first."""
    query = {**api.space, "queue": queue}
    api.show_items("/letters", query, COLUMNS, _row, limit=limit, empty="There are no dead letters.")


def _row(found: dict[str, Any]) -> list[object]:
    since = instant(found["dead_at"])
    return [found["id"], found["queue"], found["task_id"] or "", found["deliveries"], since, found["reason"]]


def replay_dead_letter(letter_id: DeadLetterId, *, api: ApiOptions = HERE) -> None:
    """Send a dead letter again: to wake a worker for its task, or to let a sink try its batch again."""
    dead_letter = api.client().post(f"/letters/{letter_id}/replay")
    task_id = dead_letter["task_id"]
    what = f"for task {task_id}" if task_id else f"for batch {dead_letter['message_id']}"
    api.show(dead_letter, f"Sent again {what}.")


def discard_dead_letter(letter_id: DeadLetterId, *, api: ApiOptions = HERE) -> None:
    """Delete a dead letter, unless a task still waits for it."""
    dead_letter = api.client().delete(f"/letters/{letter_id}")
    api.show(dead_letter, f"Deleted dead letter {dead_letter['id']}.")
