"""Waits for a task, a run or a backfill to end, or for a version of a DAG to be built. Shows a progress bar on a
terminal."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from windlass.api.client import ApiClient
from windlass.cli.output import errors
from windlass.core.states import TERMINAL
from windlass.errors import Unavailable

FIRST_POLL_S, MAX_POLL_S, UNAVAILABLE_S = 0.05, 1.0, 30.0
BAR_WIDTH = 30
Show = Callable[[str, int, int | None], None]


def follow_task(client: ApiClient, task: dict[str, Any], limit_s: float | None) -> dict[str, Any]:
    """Returns the task when it has ended or `limit_s` has passed."""

    def poll() -> tuple[bool, dict[str, Any]]:
        current = client.get(f"/tasks/{task['id']}")
        progress = current.get("progress") or {}
        words = " ".join(str(word) for word in (current["state"], progress.get("message")) if word)
        show(words, int(progress.get("current") or 0), progress.get("maximum"))
        return current["state"] in TERMINAL, current

    with bar(f"{task['kind']}") as show:
        return _until(poll, limit_s)


def follow_run(client: ApiClient, run_id: str, limit_s: float | None) -> dict[str, Any]:
    """Returns the run when all its tasks have ended or `limit_s` has passed."""

    def poll() -> tuple[bool, dict[str, Any]]:
        run = client.get(f"/runs/{run_id}")
        ended = sum(count for state, count in run["counts"].items() if state in TERMINAL)
        total = sum(run["counts"].values())
        show("", ended, total)
        return ended == total, run

    with bar("run") as show:
        return _until(poll, limit_s)


def follow_version(
    client: ApiClient,
    version: dict[str, Any],
    query: Mapping[str, object],
    ends: Collection[str],
    limit_s: float | None,
) -> tuple[dict[str, Any], int]:
    """Returns a version of a DAG when it is in one of these states or `limit_s` has passed, and the number of tasks
    that have built it."""
    most = 0

    def poll() -> tuple[bool, dict[str, Any]]:
        nonlocal most
        current = client.get(f"/dags/{version['dag']}/versions/{version['id']}", query)
        owed, done = (sum(one[name] for one in current["built"].values()) for name in ("owed", "done"))
        most = max(most, done)
        show(current["state"], done, owed or None)
        return current["state"] in ends, current

    with bar(f"{version['dag']} version {version['number']}") as show:
        return _until(poll, limit_s), most


def follow_backfill(
    client: ApiClient, backfill: dict[str, Any], ends: Collection[str], limit_s: float | None
) -> dict[str, Any]:
    """Returns a backfill when it has ended or `limit_s` has passed."""

    def poll() -> tuple[bool, dict[str, Any]]:
        current = client.get(f"/backfills/{backfill['id']}")
        jobs = current["jobs"]
        done = sum(job[name] for job in jobs for name in ("succeeded", "failed", "cancelled"))
        show(current["state"], done, sum(job["partitions"] for job in jobs) or None)
        return current["state"] in ends, current

    with bar(f"{backfill['dag']}/{backfill['job']}") as show:
        return _until(poll, limit_s)


def _until(poll: Callable[[], tuple[bool, dict[str, Any]]], limit_s: float | None) -> dict[str, Any]:
    """Polls often at first, then once a second. Tolerates a server that is away for up to `UNAVAILABLE_S` seconds."""
    began_s, pause_s, unavailable_since_s = time.monotonic(), FIRST_POLL_S, math.inf
    while True:
        now_s = time.monotonic()
        left_s = math.inf if limit_s is None else limit_s - (now_s - began_s)
        try:
            ended, current = poll()
            unavailable_since_s = math.inf
            if ended or left_s <= 0:
                return current
        except Unavailable:
            unavailable_since_s = min(unavailable_since_s, now_s)
            if left_s <= 0 or now_s - unavailable_since_s > UNAVAILABLE_S:
                raise
        time.sleep(max(0.0, min(pause_s, left_s)))
        pause_s = min(pause_s * 1.5, MAX_POLL_S)


class Amount(ProgressColumn):
    """A bar and a count, if the total is known."""

    def render(self, task: Task) -> Text:
        if not task.total:
            return Text("")
        full = int(BAR_WIDTH * min(1.0, task.completed / task.total))
        filled, left = Text("━" * full, "green"), Text("━" * (BAR_WIDTH - full), "dim")
        return Text.assemble(filled, left, f" {task.completed:g}/{task.total:g}")


@contextmanager
def bar(name: str) -> Iterator[Show]:
    """A progress bar on standard error, so that the result can be piped. A spinner until the total is known."""
    if not errors.is_terminal:
        yield lambda _words, _done, _total: None
        return
    columns = (SpinnerColumn(), TextColumn(name), Amount(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=errors, transient=True) as progress:
        shown = progress.add_task("", total=None)
        yield lambda words, done, total: progress.update(shown, description=words, completed=done, total=total)
