"""`windlass letters`: messages to workers that were given up."""

from __future__ import annotations

from rich.markup import escape

from windlass.cli.api import HERE, ApiOptions
from windlass.cli.output import instant, say, show, table

COLUMNS = ("id", "queue", "task", "deliveries", "since", "reason")


def list_letters(*, queue: str | None = None, limit: int = 100, api: ApiOptions = HERE) -> None:
    """List messages that no worker could do anything with, newest first.

    Parameters
    ----------
    queue
        Only those of this queue.
    limit
        How many, at most.
    """
    found = list(api.client().items("/letters", {**api.space, **({} if queue is None else {"queue": queue})}, limit))
    rows = [
        [one["id"], one["queue"], one["task_id"] or "", one["deliveries"], instant(one["dead_at"]), one["reason"]]
        for one in found
    ]
    show(found, api.json, lambda: table(COLUMNS, rows, nothing="There are no dead letters."))


def replay_letter(letter_id: str, *, api: ApiOptions = HERE) -> None:
    """Wake a worker for the task of a dead letter again.

    Parameters
    ----------
    letter_id
        The letter, as `windlass letters list` shows it.
    """
    letter = api.client().post(f"/letters/{letter_id}/replay", {})
    show(letter, api.json, lambda: say(f"A worker is woken for task {escape(str(letter['task_id']))} again."))


def discard_letter(letter_id: str, *, api: ApiOptions = HERE) -> None:
    """Throw a dead letter away, unless a task still waits for it.

    Parameters
    ----------
    letter_id
        The letter, as `windlass letters list` shows it.
    """
    letter = api.client().delete(f"/letters/{letter_id}")
    show(letter, api.json, lambda: say(f"The letter {escape(letter['id'])} is gone."))
