"""`windlass schedules`: manages cron schedules. A schedule is addressed by its name or its id."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from cyclopts import Parameter

from windlass.cli.api import HERE, ApiOptions
from windlass.cli.output import Unusable, instant, pairs, say, show, table
from windlass.cli.submit import read_payload, seconds_of

COLUMNS = ("name", "cron", "timezone", "next", "last", "kind", "queue", "fired", "state", "id")
Overlap = Literal["allow", "skip", "queue", "cancel"]
Which = Annotated[str, Parameter(help="Name or id of the schedule.")]
Payload = Annotated[str | None, Parameter(name=("--payload", "-p"))]


def list_schedules(*, queue: str | None = None, limit: int = 100, api: ApiOptions = HERE) -> None:
    """List schedules, newest first.

    Parameters
    ----------
    queue
        Only schedules that submit to this queue.
    limit
        Maximum number to list.
    """
    found = list(api.client().items("/schedules", {**api.space, "queue": queue}, limit))
    show(found, api.json, lambda: table(COLUMNS, map(_row, found), nothing="There are no schedules yet."))


def _row(schedule: dict[str, Any]) -> list[object]:
    s = schedule
    return [
        s["name"] or "", s["cron"], s["timezone"], "" if s["paused"] else instant(s["next_fire_at"]),
        instant(s["last_fire_at"]), s["kind"], s["queue"], s["fired"] or "", _state(s), s["id"],
    ]  # fmt: skip


def _state(schedule: dict[str, Any]) -> str:
    """Why the schedule does not fire; empty if it does."""
    if schedule["paused"]:
        return "paused"
    if schedule["problem"]:
        return str(schedule["problem"])
    return "" if schedule["next_fire_at"] else "ended"


def show_schedule(schedule: Which, *, api: ApiOptions = HERE) -> None:
    """Show a schedule: the task that it submits, its last fire and its next fires."""
    client = api.client()
    found = client.get(f"/schedules/{schedule}", api.space)
    fires = client.get(f"/schedules/{schedule}/preview", {**api.space, "count": 3})
    show(found, api.json, lambda: _print(found, fires["local"]))


def _print(s: dict[str, Any], fires: list[str]) -> None:
    pairs([
        ("name", s["name"]), ("id", s["id"]), ("cron", f"{s['cron']}   {s['timezone']}"), ("state", _state(s)),
        ("kind", s["kind"]), ("queue", s["queue"]), ("overlap", s["overlap"]), ("max catch-up", s["max_catchup"]),
        ("declared by", s["app"]), ("last fire", instant(s["last_fire_at"])), ("last task", s["last_task_id"]),
        ("fired", s["fired"]), ("skipped", s["skipped"] or None),
    ])  # fmt: skip
    if s["paused"]:
        say(f"Paused. `windlass schedules resume {s['name'] or s['id']}` resumes it and catches up on missed fires.")
    else:
        _print_fires(fires, s["timezone"])


def _print_fires(fires: list[str], timezone: str) -> None:
    """Prints local times with their UTC offset, which distinguishes the two equal times when clocks go back."""
    for fire in fires:
        say(f"  {fire.replace('T', ' ').replace('Z', ' +00:00')}  {timezone}")


def create_schedule(
    kind: str,
    cron: str,
    *,
    name: str | None = None,
    timezone: str = "UTC",
    queue: Annotated[str, Parameter(name=("--queue", "-q"))] = "default",
    payload: Annotated[str, Parameter(name=("--payload", "-p"))] = "null",
    priority: int = 0,
    max_attempts: int | None = None,
    timeout: str | None = None,
    overlap: Overlap = "allow",
    max_catchup: int = 100,
    paused: Annotated[bool, Parameter(show_default=False)] = False,
    api: ApiOptions = HERE,
) -> None:
    """Create a schedule: `windlass schedules create report "0 9 * * MON" --name weekly --timezone Europe/Rome`.

    Parameters
    ----------
    kind
        Name of the handler.
    cron
        Cron expression: five fields, six or seven with seconds first, or a shortcut such as `@daily`.
    name
        Name of the schedule. Default: none, only an id.
    timezone
        Time zone of the cron expression.
    queue
        Queue of its tasks.
    payload
        JSON text, `@FILE`, or `-` for standard input.
    priority
        From -100 to 100; lower numbers run first, as with `nice`.
    max_attempts
        Maximum number of failed attempts per task.
    timeout
        Maximum duration of an attempt, such as `10m`.
    overlap
        If an earlier task has not ended: allow both, skip the fire, queue the new task, or cancel the earlier one.
    max_catchup
        Maximum number of missed fires to catch up on, newest first.
    paused
        Create it paused.
    """
    order = {
        "kind": kind, "cron": cron, "name": name, "timezone": timezone, "queue": queue,
        "payload": read_payload(payload), "priority": priority, "retry": _retry(max_attempts, timeout),
        "overlap": overlap, "max_catchup": max_catchup, "paused": paused, **api.space,
    }  # fmt: skip
    made = api.client().post("/schedules", order)
    show(made, api.json, lambda: say(f"{made['id']}  fires next at {instant(made['next_fire_at'])} UTC"))


def update_schedule(
    schedule: Which,
    *,
    cron: str | None = None,
    timezone: str | None = None,
    kind: str | None = None,
    queue: Annotated[str | None, Parameter(name=("--queue", "-q"))] = None,
    payload: Payload = None,
    priority: int | None = None,
    max_attempts: int | None = None,
    timeout: str | None = None,
    overlap: Overlap | None = None,
    max_catchup: int | None = None,
    rename: str | None = None,
    api: ApiOptions = HERE,
) -> None:
    """Change the given fields of a schedule.

    Parameters
    ----------
    cron
        New cron expression, effective now.
    timezone
        Time zone of the cron expression.
    kind
        Name of the new handler.
    queue
        Queue of its tasks.
    payload
        JSON text, `@FILE`, or `-` for standard input.
    priority
        From -100 to 100; lower numbers run first, as with `nice`.
    max_attempts
        Maximum number of failed attempts per task.
    timeout
        Maximum duration of an attempt, such as `10m`.
    overlap
        If an earlier task has not ended: allow both, skip the fire, queue the new task, or cancel the earlier one.
    max_catchup
        Maximum number of missed fires to catch up on, newest first.
    rename
        New name.
    """
    fields = {
        "cron": cron, "timezone": timezone, "kind": kind, "queue": queue, "priority": priority,
        "retry": _retry(max_attempts, timeout), "overlap": overlap, "max_catchup": max_catchup, "name": rename,
    }  # fmt: skip
    changes = {field: value for field, value in fields.items() if value is not None}
    if payload is not None:
        changes["payload"] = read_payload(payload)
    if not changes:
        raise Unusable("nothing to change: give at least one flag, such as --cron")
    changed = api.client().patch(f"/schedules/{schedule}", changes, query=api.space)
    show(changed, api.json, lambda: say(f"{schedule} fires next at {instant(changed['next_fire_at'])} UTC"))


def pause_schedule(schedule: Which, *, api: ApiOptions = HERE) -> None:
    """Pause a schedule until it is resumed."""
    paused = api.client().post(f"/schedules/{schedule}/pause", query=api.space)
    show(paused, api.json, lambda: say(f"{schedule} is paused."))


def resume_schedule(schedule: Which, *, api: ApiOptions = HERE) -> None:
    """Resume a paused schedule and catch up on missed fires."""
    resumed = api.client().post(f"/schedules/{schedule}/resume", query=api.space)
    show(resumed, api.json, lambda: say(f"{schedule} fires next at {instant(resumed['next_fire_at'])} UTC"))


def trigger_schedule(schedule: Which, *, api: ApiOptions = HERE) -> None:
    """Submit the task of a schedule now and print its id."""
    made = api.client().post(f"/schedules/{schedule}/trigger", query=api.space)
    show(made, api.json, lambda: say(made["task_id"]))


def preview_schedule(
    schedule: str, *, count: int = 10, timezone: str | None = None, after: str | None = None, api: ApiOptions = HERE
) -> None:
    """Show when a schedule or an expression fires: `windlass schedules preview "30 2 * * *" --timezone Europe/Rome`.

    Parameters
    ----------
    schedule
        Name, id or cron expression (five to seven fields, or a shortcut such as `@daily`).
    count
        Number of fires to show.
    timezone
        Time zone of the expression. Default: UTC.
    after
        Start time, such as `2026-10-25T00:00:00Z`. Default: now.
    """
    client, query = api.client(), {"count": count, "after": after}
    if schedule.startswith("@") or len(schedule.split()) > 1:
        found = client.get("/cron", {**query, "cron": schedule, "timezone": timezone})
    else:
        found = client.get(f"/schedules/{schedule}/preview", {**api.space, **query})
    show(found, api.json, lambda: _print_fires(found["local"], found["timezone"]))


def delete_schedule(schedule: Which, *, api: ApiOptions = HERE) -> None:
    """Delete a schedule. The tasks that it has submitted stay."""
    gone = api.client().delete(f"/schedules/{schedule}", query=api.space)
    show(gone, api.json, lambda: say(f"{schedule} is deleted."))


def _retry(max_attempts: int | None, timeout: str | None) -> dict[str, object] | None:
    limits = {"max_attempts": max_attempts, "timeout_s": None if timeout is None else seconds_of("--timeout", timeout)}
    return {name: value for name, value in limits.items() if value is not None} or None
