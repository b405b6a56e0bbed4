"""`windlass tasks`: look at tasks, cancel them, try them again."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from cyclopts import Parameter
from rich.markup import escape

from windlass.cli.api import HERE, ApiOptions
from windlass.cli.output import console, instant, pairs, print_json, say, show, table
from windlass.core.error import WindlassError
from windlass.core.failure import told
from windlass.core.transition import TERMINAL

TaskId = Annotated[str, Parameter(help="The task, by its id.")]
OfQueue = Annotated[str | None, Parameter(name=("--queue", "-q"), help="Only those of this queue.")]
OfKind = Annotated[str | None, Parameter(help="Only those of this kind.")]
OfRun = Annotated[str | None, Parameter(help="Only those of this run, by its id.")]
Reason = Annotated[str, Parameter(help="Why; it is kept with the task.")]
Limit = Annotated[int, Parameter(help="At most so many, newest first.")]
Name = Literal["blocked", "queued", "running", "sleeping", "parked", "succeeded", "failed", "cancelled", "skipped"]
States = Annotated[
    tuple[Name, ...], Parameter(name=("--state", "-s"), show_default=False, help="Only these; may be repeated.")
]
COLUMNS = ("id", "state", "kind", "queue", "created", "attempt", "reason")
Attempt = Annotated[int | None, Parameter(help="Only those of this attempt, by its number.")]


class Failed(WindlassError):
    """It did not succeed."""

    code = "failed"


def fail_with(task: dict[str, Any]) -> Failed:
    """What became of a task that did not succeed, in one line."""
    if task["state"] not in TERMINAL:
        return Failed(f"the task {task['id']} is {task['state']}: `windlass tasks why {task['id']}` may tell more")
    why = why_failed(task)
    return Failed(f"the task {task['id']} is {task['state']}" + (f": {why}" if why else ""))


def why_failed(task: dict[str, Any]) -> str:
    """What a person wants to know of it first."""
    error = task.get("error") or {}
    return told(str(task.get("reason") or ""), str(error.get("message") or ""))


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
    found = list(api.client().items("/tasks", query, limit))
    show(found, api.json, lambda: table(COLUMNS, map(row_of, found), nothing="There are no such tasks."))


def row_of(task: dict[str, Any]) -> list[object]:
    first = [task[name] for name in ("id", "state", "kind", "queue")]
    return [*first, instant(task["created_at"]), task["attempt"], (why_failed(task).splitlines() or [""])[0]]


def get_task(task_id: TaskId, *, api: ApiOptions = HERE) -> None:
    """Show one task."""
    task = api.client().get(f"/tasks/{task_id}")
    show(task, api.json, lambda: _tell(task))


def _tell(task: dict[str, Any]) -> None:
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
    force: Annotated[bool, Parameter(show_default=False, help="End it at once, whatever its worker does.")] = False,
    api: ApiOptions = HERE,
) -> None:
    """Ask a task to stop. What runs has its grace, unless it is forced."""
    task = api.client().post(f"/tasks/{task_id}/cancel", {"reason": reason, "force": force})
    told = f"The task is {task['state']}." if task["state"] != "running" else "The task runs, and will be told."
    show(task, api.json, lambda: say(told))


def retry_task(task_id: TaskId, *, api: ApiOptions = HERE) -> None:
    """Try a task again now. One that has ended is done again as a new task."""
    task = api.client().post(f"/tasks/{task_id}/retry")
    new = task.get("replay_of") is not None and task["id"] != task_id
    show(task, api.json, lambda: say(f"Done again as task {task['id']}." if new else f"The task is {task['state']}."))


def replay_tasks(
    *,
    state: Annotated[tuple[Name, ...], Parameter(name=("--state", "-s"), help="Only these; may be repeated.")] = (
        "failed",
    ),
    queue: OfQueue = None,
    kind: OfKind = None,
    run: OfRun = None,
    dry_run: Annotated[bool, Parameter(show_default=False, help="Only count them.")] = False,
    api: ApiOptions = HERE,
) -> None:
    """Do again all tasks that did not succeed, by filter. Asked twice, nothing is done twice."""
    asked = {"state": list(state), "queue": queue, "kind": kind, "run_id": run, "dry_run": dry_run, **api.space}
    body = {name: value for name, value in asked.items() if value is not None}
    client, matched, ids = api.client(), 0, list[str]()
    while True:
        page = client.post("/tasks/replay", body)
        matched, ids = matched + page["matched"], ids + page["task_ids"]
        if not page.get("next"):
            break
        body["after"] = page["next"]
    told = f"{matched} tasks would be done again." if dry_run else f"{len(ids)} of {matched} tasks are done again."
    show({"matched": matched, "task_ids": ids, "dry_run": dry_run}, api.json, lambda: say(told))


def task_history(task_id: TaskId, *, api: ApiOptions = HERE) -> None:
    """What happened to a task, in order."""
    history = api.client().get(f"/tasks/{task_id}/history")
    rows = [
        (instant(line["at"]), line["attempt"] or None, line["what"], line["worker"], _detail(line["detail"] or {}))
        for line in history["items"]
    ]
    columns = ("time", "attempt", "what", "worker", "detail")
    show(history, api.json, lambda: table(columns, rows, nothing="Nothing has happened yet."))


def _detail(detail: dict[str, Any]) -> str:
    told = [str(detail[name]) for name in ("category", "reason", "error") if detail.get(name)]
    caller = detail.get("caller")
    return ", ".join([*told, f"by {caller.get('subject')}"] if isinstance(caller, dict) else told)


def task_events(task_id: TaskId, *, api: ApiOptions = HERE) -> None:
    """What a task has told of its datasets, and the batches that it has handed over."""
    client = api.client()
    events = list(client.items(f"/tasks/{task_id}/events", {}, 1000))
    batches = list(client.items(f"/tasks/{task_id}/publishes", {}, 1000))
    rows = [
        (instant(one["at"]), one["attempt"], one["dataset_uuid"], one["partition_key"] or one["cursor"],
         "" if one["declared"] else "not declared: kept for audit")
        for one in events
    ]  # fmt: skip
    rows += [
        (instant(one["at"]), one["attempt"], one["dataset_uuid"], f"{one['record_count']} records", one["batch_uri"])
        for one in batches
    ]
    columns = ("time", "attempt", "dataset", "what", "")
    told = {"events": events, "publishes": batches}
    show(told, api.json, lambda: table(columns, rows, nothing="It has told of no data."))


def task_logs(task_id: TaskId, *, attempt: Attempt = None, api: ApiOptions = HERE) -> None:
    """What the attempts of a task have logged."""
    found = api.client().get(f"/tasks/{task_id}/logs", {"attempt": attempt})
    if api.json:
        print_json(found)
        return
    for line in found["items"]:
        level = str(line.get("level") or "info")
        console.print(f"[dim]{instant(line['at'])}[/dim] {line['attempt']} {level:<7} {escape(str(line['message']))}")
    if not found["items"]:
        console.print("Nothing was logged.", style="dim")


def why_waiting(task_id: TaskId, *, api: ApiOptions = HERE) -> None:
    """Why a task does not run."""
    found = api.client().get(f"/tasks/{task_id}/why-waiting")
    rows = [(item["reason"], item["message"], instant(item.get("until"))) for item in found["items"]]
    nothing = "Nothing holds it back: it runs or has ended."
    show(found, api.json, lambda: table(("reason", "meaning", "until"), rows, nothing=nothing))
