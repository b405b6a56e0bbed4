"""`windlass schedules`: manages cron schedules. A schedule is addressed by its name or its id."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from windlass.cli.api import HERE, ApiOptions
from windlass.cli.options import Limit, without_none
from windlass.cli.output import Unusable, instant, pairs, print_json, say
from windlass.cli.submit import DEFAULT_TASK, TaskOptions

COLUMNS = ("name", "cron", "timezone", "next", "last", "kind", "queue", "fired", "state", "id")
Which = Annotated[str, Parameter(help="Name or id of the schedule.")]


@Parameter(name="*")
@dataclass(frozen=True)
class ScheduleOptions:
    """Flags that describe a schedule."""

    timezone: Annotated[str | None, Parameter(help="Time zone of the cron expression.")] = None
    overlap: Annotated[
        Literal["allow", "skip", "queue", "cancel"] | None,
        Parameter(
            help="If an earlier task has not ended: allow both, skip the fire, queue the new task, or cancel the "
            "earlier one."
        ),
    ] = None
    max_catchup: Annotated[
        int | None, Parameter(help="Maximum number of missed fires to catch up on, newest first.")
    ] = None

    def fields(self, task: TaskOptions) -> dict[str, Any]:
        """The fields of the request that flags set."""
        retry = without_none(max_attempts=task.max_attempts, timeout_s=task.timeout)
        return without_none(
            timezone=self.timezone, queue=task.queue, payload=task.payload, priority=task.priority,
            retry=retry or None, overlap=self.overlap, max_catchup=self.max_catchup,
        )  # fmt: skip


DEFAULT_SCHEDULE = ScheduleOptions()


def list_schedules(
    *,
    queue: Annotated[str | None, Parameter(help="Only schedules that submit to this queue.")] = None,
    limit: Limit = 100,
    api: ApiOptions = HERE,
) -> None:
    """List schedules, newest first."""
    query = {**api.space, "queue": queue}
    api.show_items("/schedules", query, COLUMNS, _row, limit=limit, empty="There are no schedules yet.")


def _row(s: dict[str, Any]) -> list[object]:
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
    s = client.get(f"/schedules/{schedule}", api.space)
    if api.json:
        print_json(s)
        return
    pairs([
        ("name", s["name"]), ("id", s["id"]), ("cron", f"{s['cron']}   {s['timezone']}"), ("state", _state(s)),
        ("kind", s["kind"]), ("queue", s["queue"]), ("overlap", s["overlap"]), ("max catch-up", s["max_catchup"]),
        ("declared by", s["app"]), ("last fire", instant(s["last_fire_at"])), ("last task", s["last_task_id"]),
        ("fired", s["fired"]), ("skipped", s["skipped"] or None),
    ])  # fmt: skip
    if s["paused"]:
        say(f"Paused. `windlass schedules resume {s['name'] or s['id']}` resumes it and catches up on missed fires.")
    else:
        fires = client.get(f"/schedules/{schedule}/preview", {**api.space, "count": 3})
        say(_fires(fires))


def _fires(preview: dict[str, Any]) -> str:
    """The local times with their UTC offset, which distinguishes the two equal times when clocks go back."""
    times = [time.replace("T", " ").replace("Z", " +00:00") for time in preview["local"]]
    return "\n".join(f"  {time}  {preview['timezone']}" for time in times) or "  no fires"


def create_schedule(
    kind: str,
    cron: str,
    *,
    name: str | None = None,
    schedule: ScheduleOptions = DEFAULT_SCHEDULE,
    task: TaskOptions = DEFAULT_TASK,
    paused: Annotated[bool, Parameter(show_default=False)] = False,
    api: ApiOptions = HERE,
) -> None:
    """Create a schedule: `windlass schedules create report "0 9 * * MON" --name weekly --timezone Europe/Rome`. By
    default the time zone is UTC, tasks may overlap, at most 100 missed fires are caught up on, the queue is `default`,
    the payload `null` and the priority 0.

    Parameters
    ----------
    kind
        Name of the handler.
    cron
        Cron expression: five fields, six or seven with seconds first, or a shortcut such as `@daily`.
    name
        Name of the schedule. Default: none, only an id.
    paused
        Create it paused.
    """
    order = {"kind": kind, "cron": cron, "name": name, "paused": paused, **schedule.fields(task), **api.space}
    made = api.client().post("/schedules", order)
    api.show(made, f"{made['id']}  fires next at {instant(made['next_fire_at'])} UTC")


def update_schedule(
    schedule: Which,
    *,
    cron: str | None = None,
    kind: str | None = None,
    rename: str | None = None,
    changes: ScheduleOptions = DEFAULT_SCHEDULE,
    task: TaskOptions = DEFAULT_TASK,
    api: ApiOptions = HERE,
) -> None:
    """Change the given fields of a schedule.

    Parameters
    ----------
    cron
        New cron expression, effective now.
    kind
        Name of the new handler.
    rename
        New name.
    """
    fields = without_none(cron=cron, kind=kind, name=rename, **changes.fields(task))
    if not fields:
        raise Unusable("nothing to change: give at least one flag, such as --cron")
    changed = api.client().patch(f"/schedules/{schedule}", fields, query=api.space)
    api.show(changed, f"{schedule} fires next at {instant(changed['next_fire_at'])} UTC")


def pause_schedule(schedule: Which, *, api: ApiOptions = HERE) -> None:
    """Pause a schedule until it is resumed."""
    paused = api.client().post(f"/schedules/{schedule}/pause", query=api.space)
    api.show(paused, f"{schedule} is paused.")


def resume_schedule(schedule: Which, *, api: ApiOptions = HERE) -> None:
    """Resume a paused schedule and catch up on missed fires."""
    resumed = api.client().post(f"/schedules/{schedule}/resume", query=api.space)
    api.show(resumed, f"{schedule} fires next at {instant(resumed['next_fire_at'])} UTC")


def trigger_schedule(schedule: Which, *, api: ApiOptions = HERE) -> None:
    """Submit the task of a schedule now and print its id."""
    made = api.client().post(f"/schedules/{schedule}/trigger", query=api.space)
    api.show(made, made["task_id"])


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
    api.show(found, _fires(found))


def delete_schedule(schedule: Which, *, api: ApiOptions = HERE) -> None:
    """Delete a schedule. The tasks that it has submitted stay."""
    deleted = api.client().delete(f"/schedules/{schedule}", query=api.space)
    api.show(deleted, f"{schedule} is deleted.")
