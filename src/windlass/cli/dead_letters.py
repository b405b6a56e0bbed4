"""`windlass dead-letters`: messages that no worker could handle. `windlass letters` is the older name."""

from __future__ import annotations

from rich.markup import escape

from windlass.cli.api import HERE, ApiOptions
from windlass.cli.output import instant, say, show, table

COLUMNS = ("id", "queue", "task", "deliveries", "since", "reason")


def list_dead_letters(*, queue: str | None = None, limit: int = 100, api: ApiOptions = HERE) -> None:
    """List messages that no worker could handle, newest first.

    Parameters
    ----------
    queue
        Only dead letters of this queue.
    limit
        Maximum number to list.
    """
    found = list(api.client().items("/letters", {**api.space, **({} if queue is None else {"queue": queue})}, limit))
    rows = [
        [row["id"], row["queue"], row["task_id"] or "", row["deliveries"], instant(row["dead_at"]), row["reason"]]
        for row in found
    ]
    show(found, api.json, lambda: table(COLUMNS, rows, nothing="There are no dead letters."))


def replay_dead_letter(letter_id: str, *, api: ApiOptions = HERE) -> None:
    """Send a dead letter again, to wake a worker for its task.

    Parameters
    ----------
    letter_id
        Id of the dead letter, from `windlass dead-letters list`.
    """
    dead_letter = api.client().post(f"/letters/{letter_id}/replay", {})
    show(dead_letter, api.json, lambda: say(f"Sent again for task {escape(str(dead_letter['task_id']))}."))


def discard_dead_letter(letter_id: str, *, api: ApiOptions = HERE) -> None:
    """Delete a dead letter, unless a task still waits for it.

    Parameters
    ----------
    letter_id
        Id of the dead letter, from `windlass dead-letters list`.
    """
    dead_letter = api.client().delete(f"/letters/{letter_id}")
    show(dead_letter, api.json, lambda: say(f"Deleted dead letter {escape(dead_letter['id'])}."))
