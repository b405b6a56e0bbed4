"""`windlass tasks`: inspects, cancels, retries and replays tasks."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from cyclopts import Parameter
from rich.markup import escape

from windlass.cli.api import HERE, ApiOptions
from windlass.cli.options import Limit, without_none
from windlass.cli.output import instant, pairs, print_json, say
from windlass.core.failure import reason_and_message
from windlass.core.states import TERMINAL
from windlass.errors import WindlassError

TaskId = Annotated[str, Parameter(help="Id of the task.")]
OfQueue = Annotated[str | None, Parameter(name=("--queue", "-q"), help="Only tasks of this queue.")]
OfKind = Annotated[str | None, Parameter(help="Only tasks of this kind.")]
OfRun = Annotated[str | None, Parameter(help="Only tasks of this run, by id.")]
Reason = Annotated[str, Parameter(help="Reason, kept in the history of the task.")]
Name = Literal["blocked", "queued", "running", "sleeping", "parked", "succeeded", "failed", "cancelled", "skipped"]
States = Annotated[
    tuple[Name, ...],
    Parameter(name=("--state", "-s"), show_default=False, help="Only tasks in this state; repeatable."),
]
COLUMNS = ("id", "state", "kind", "queue", "created", "attempt", "reason")
Attempt = Annotated[int | None, Parameter(help="Only log lines of this attempt, by number.")]


class Failed(WindlassError):
    """The task or the run did not succeed."""

    code = "failed"


def fail_with(task: dict[str, Any]) -> Failed:
    """The error for a task that did not succeed."""
    if task["state"] not in TERMINAL:
        return Failed(f"task {task['id']} is {task['state']}: see `windlass tasks why {task['id']}`")
    why = why_failed(task)
    return Failed(f"task {task['id']} is {task['state']}" + (f": {why}" if why else ""))


def why_failed(task: dict[str, Any]) -> str:
    """The reason and the error message of a task."""
    error = task.get("error") or {}
    return reason_and_message(str(task.get("reason") or ""), str(error.get("message") or ""))


def list_tasks(
    *,
    state: States = (),
    queue: OfQueue = None,
    kind: OfKind = None,
    run: OfRun = None,
    limit: Limit = 50,
    api: ApiOptions = HERE,
) -> None:
    """List tasks, newest first."""
    query = {"state": state, "queue": queue, "kind": kind, "run_id": run, **api.space}
    api.show_items("/tasks", query, COLUMNS, row_of, limit=limit, empty="There are no such tasks.")


def row_of(task: dict[str, Any]) -> list[object]:
    first = [task[name] for name in ("id", "state", "kind", "queue")]
    return [*first, instant(task["created_at"]), task["attempt"], (why_failed(task).splitlines() or [""])[0]]


def get_task(task_id: TaskId, *, api: ApiOptions = HERE) -> None:
    """Show a task."""
    task = api.client().get(f"/tasks/{task_id}")
    if api.json:
        print_json(task)
        return
    error = task.get("error") or {}
    shown = ("id", "state", "namespace", "queue", "kind", "priority", "attempt", "failures", "losses", "worker")
    times = ("created_at", "available_at", "started_at", "finished_at", "deadline_at")
    pairs(
        [
            *((name, task.get(name)) for name in shown),
            *((name, instant(task.get(name))) for name in times),
            ("run", task.get("run_id")),
            ("progress", _progress(task.get("progress"))),
            ("payload", _json(task.get("payload"))),
            ("result", _json(task.get("result"))),
            ("category", error.get("category")),
            ("reason", why_failed(task)),
        ]
    )
    if error.get("trace"):
        say(escape(error["trace"].rstrip()))


def _json(value: object) -> str:
    return "" if value is None else msgspec.json.encode(value).decode()


def _progress(progress: dict[str, Any] | None) -> str:
    if not progress:
        return ""
    of = f" of {progress['maximum']}" if progress.get("maximum") is not None else ""
    return f"{progress.get('current')}{of} {progress.get('message') or ''}".rstrip()


def cancel_task(
    task_id: TaskId,
    *,
    reason: Reason = "",
    force: Annotated[
        bool, Parameter(show_default=False, help="End the task now, without waiting for its worker.")
    ] = False,
    api: ApiOptions = HERE,
) -> None:
    """Cancel a task. A running task gets its grace period, unless `--force` is given."""
    task = api.client().post(f"/tasks/{task_id}/cancel", {"reason": reason, "force": force})
    running = task["state"] == "running"
    message = "Cancellation requested; the task is still running." if running else f"The task is {task['state']}."
    api.show(task, message)


def retry_task(task_id: TaskId, *, api: ApiOptions = HERE) -> None:
    """Retry a task now. A task that has ended is replayed as a new task."""
    task = api.client().post(f"/tasks/{task_id}/retry")
    new = task.get("replay_of") is not None and task["id"] != task_id
    api.show(task, f"Replayed as task {task['id']}." if new else f"The task is {task['state']}.")


def replay_tasks(
    *,
    state: Annotated[
        tuple[Name, ...], Parameter(name=("--state", "-s"), help="Only tasks in this state; repeatable.")
    ] = ("failed",),
    queue: OfQueue = None,
    kind: OfKind = None,
    run: OfRun = None,
    dry_run: Annotated[bool, Parameter(show_default=False, help="Only count the tasks.")] = False,
    api: ApiOptions = HERE,
) -> None:
    """Replay all tasks that match a filter and did not succeed. Each task is replayed at most once."""
    body = without_none(state=state, queue=queue, kind=kind, run_id=run, dry_run=dry_run, **api.space)
    client, matched, ids = api.client(), 0, list[str]()
    while True:
        page = client.post("/tasks/replay", body)
        matched, ids = matched + page["matched"], ids + page["task_ids"]
        if not page.get("next"):
            break
        body["after"] = page["next"]
    message = f"{matched} tasks would be replayed." if dry_run else f"Replayed {len(ids)} of {matched} tasks."
    api.show({"matched": matched, "task_ids": ids, "dry_run": dry_run}, message)


def task_history(task_id: TaskId, *, api: ApiOptions = HERE) -> None:
    """Show the history of a task, oldest event first."""
    history = api.client().get(f"/tasks/{task_id}/history")
    rows = [
        (instant(line["at"]), line["attempt"] or None, line["what"], line["worker"], _detail(line["detail"] or {}))
        for line in history["items"]
    ]
    api.show_table(history, ("time", "attempt", "what", "worker", "detail"), rows, "No history yet.")


def _detail(detail: dict[str, Any]) -> str:
    parts = [str(detail[name]) for name in ("category", "reason", "error") if detail.get(name)]
    caller = detail.get("caller")
    return ", ".join([*parts, f"by {caller.get('subject')}"] if isinstance(caller, dict) else parts)


def task_events(task_id: TaskId, *, api: ApiOptions = HERE) -> None:
    """Show the datasets that a task has written and the batches that it has published."""
    client = api.client()
    events = list(client.items(f"/tasks/{task_id}/events", {}, 1000))
    batches = list(client.items(f"/tasks/{task_id}/publishes", {}, 1000))
    rows = [
        (instant(one["at"]), one["attempt"], one["dataset_uuid"], one["partition_key"] or one["cursor"],
         "" if one["declared"] else "undeclared: kept for audit")
        for one in events
    ]  # fmt: skip
    rows += [
        (instant(one["at"]), one["attempt"], one["dataset_uuid"], f"{one['record_count']} records",
         f"{one['batch_uri']}: {one['problem']}" if one["problem"] else one["batch_uri"])
        for one in batches
    ]  # fmt: skip
    columns = ("time", "attempt", "dataset", "what", "")
    found = {"events": events, "publishes": batches}
    api.show_table(found, columns, rows, "The task has written no datasets.")


def task_logs(task_id: TaskId, *, attempt: Attempt = None, api: ApiOptions = HERE) -> None:
    """Show the log lines of all attempts of a task."""
    found = api.client().get(f"/tasks/{task_id}/logs", {"attempt": attempt})
    if api.json:
        print_json(found)
        return
    for line in found["items"]:
        level = str(line.get("level") or "info")
        say(f"[dim]{instant(line['at'])}[/dim] {line['attempt']} {level:<7} {escape(str(line['message']))}")
    if not found["items"]:
        say("[dim]No log lines.[/dim]")


def why_waiting(task_id: TaskId, *, api: ApiOptions = HERE) -> None:
    """Explain why a task is not running."""
    found = api.client().get(f"/tasks/{task_id}/why-waiting")
    rows = [(item["reason"], item["message"], instant(item.get("until"))) for item in found["items"]]
    api.show_table(found, ("reason", "meaning", "until"), rows, "Nothing: the task is running or has ended.")
