"""Waiting for the end of long work: a bar on a terminal, silence elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from windlass.cli.output import errors
from windlass.core.error import Unavailable
from windlass.core.transition import TERMINAL
from windlass.http.client import ApiClient

FIRST_LOOK_S, SELDOM_S, AWAY_S = 0.05, 1.0, 30.0
BAR_WIDTH = 30
Show = Callable[[str, int, int | None], None]


def follow_task(client: ApiClient, task: dict[str, Any], limit_s: float | None) -> dict[str, Any]:
    """The task when it has ended, or as it is when the time is over."""

    def look() -> tuple[bool, dict[str, Any]]:
        seen = client.get(f"/tasks/{task['id']}")
        progress = seen.get("progress") or {}
        words = " ".join(str(word) for word in (seen["state"], progress.get("message")) if word)
        show(words, int(progress.get("current") or 0), progress.get("maximum"))
        return seen["state"] in TERMINAL, seen

    with bar(f"{task['kind']}") as show:
        return _until(look, limit_s)


def follow_run(client: ApiClient, run_id: str, limit_s: float | None) -> dict[str, Any]:
    """The run when all of its tasks have ended, or as it is when the time is over."""

    def look() -> tuple[bool, dict[str, Any]]:
        run = client.get(f"/runs/{run_id}")
        ended = sum(count for state, count in run["counts"].items() if state in TERMINAL)
        total = sum(run["counts"].values())
        show("", ended, total)
        return ended == total, run

    with bar("run") as show:
        return _until(look, limit_s)


def _until(look: Callable[[], tuple[bool, dict[str, Any]]], limit_s: float | None) -> dict[str, Any]:
    """Looks again soon at first, seldom later. A server that restarts meanwhile is waited for."""
    began_s, pause_s, away_since_s = time.monotonic(), FIRST_LOOK_S, math.inf
    while True:
        now_s = time.monotonic()
        left_s = math.inf if limit_s is None else limit_s - (now_s - began_s)
        try:
            ended, seen = look()
            away_since_s = math.inf
            if ended or left_s <= 0:
                return seen
        except Unavailable:
            away_since_s = min(away_since_s, now_s)
            if left_s <= 0 or now_s - away_since_s > AWAY_S:
                raise
        time.sleep(max(0.0, min(pause_s, left_s)))
        pause_s = min(pause_s * 1.5, SELDOM_S)


class Amount(ProgressColumn):
    """How far it is, where that is known."""

    def render(self, task: Task) -> Text:
        if not task.total:
            return Text("")
        full = int(BAR_WIDTH * min(1.0, task.completed / task.total))
        filled, left = Text("━" * full, "green"), Text("━" * (BAR_WIDTH - full), "dim")
        return Text.assemble(filled, left, f" {task.completed:g}/{task.total:g}")


@contextmanager
def bar(name: str) -> Iterator[Show]:
    """On standard error, so that the answer can be piped; a spinner until the length is known."""
    if not errors.is_terminal:
        yield lambda _words, _done, _total: None
        return
    columns = (SpinnerColumn(), TextColumn(name), Amount(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=errors, transient=True) as progress:
        shown = progress.add_task("", total=None)
        yield lambda words, done, total: progress.update(shown, description=words, completed=done, total=total)
