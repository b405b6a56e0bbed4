"""`windlass schedules`: cron expressions that submit tasks. A schedule is named by its name or its id."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from cyclopts import Parameter

from windlass.cli.api import HERE, ApiOptions
from windlass.cli.output import Unusable, instant, pairs, say, show, table
from windlass.cli.submit import read_payload, seconds_of

COLUMNS = ("name", "cron", "timezone", "next", "last", "kind", "queue", "fired", "state", "id")
Overlap = Literal["allow", "skip", "queue", "cancel"]
Which = Annotated[str, Parameter(help="The schedule, by its name or its id.")]
Payload = Annotated[str | None, Parameter(name=("--payload", "-p"))]


def list_schedules(*, queue: str | None = None, limit: int = 100, api: ApiOptions = HERE) -> None:
    """List schedules, newest first.

    Parameters
    ----------
    queue
        Only those that submit to this queue.
    limit
        How many at most.
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
    """Why it does not fire, if it does not."""
    if schedule["paused"]:
        return "paused"
    if schedule["problem"]:
        return str(schedule["problem"])
    return "" if schedule["next_fire_at"] else "ended"


def show_schedule(schedule: Which, *, api: ApiOptions = HERE) -> None:
    """Show a schedule: what it submits, when it fired last, and when it will next."""
    client = api.client()
    found = client.get(f"/schedules/{schedule}", api.space)
    fires = client.get(f"/schedules/{schedule}/preview", {**api.space, "count": 3})
    show(found, api.json, lambda: _tell(found, fires["local"]))


def _tell(s: dict[str, Any], fires: list[str]) -> None:
    pairs([
        ("name", s["name"]), ("id", s["id"]), ("cron", f"{s['cron']}   {s['timezone']}"), ("state", _state(s)),
        ("kind", s["kind"]), ("queue", s["queue"]), ("overlap", s["overlap"]), ("max catch-up", s["max_catchup"]),
        ("declared by", s["app"]), ("last fire", instant(s["last_fire_at"])), ("last task", s["last_task_id"]),
        ("fired", s["fired"]), ("skipped", s["skipped"] or None),
    ])  # fmt: skip
    if s["paused"]:
        say(f"It is paused; `windlass schedules resume {s['name'] or s['id']}` makes up for what was missed.")
    else:
        _tell_fires(fires, s["timezone"])


def _tell_fires(fires: list[str], timezone: str) -> None:
    """As the clocks of the zone show them, with their distance from UTC, which tells two equal times apart."""
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
    """Make a schedule: `windlass schedules create report "0 9 * * MON" --name weekly --timezone Europe/Rome`.

    Parameters
    ----------
    kind
        The name of the handler.
    cron
        Five fields as in crontab, six or seven with seconds first, or `@daily` and its like.
    name
        How it is called; default: by its id.
    timezone
        Whose clocks are meant.
    queue
        Where its tasks wait.
    payload
        JSON text; `@FILE` reads a file, `-` reads standard input.
    priority
        From -100 to 100; like `nice`, a lower number runs first.
    max_attempts
        How often the handler of a task may fail.
    timeout
        How long an attempt may take, such as `10m`.
    overlap
        When an earlier task has not ended: run beside it, skip the fire, queue behind it, or cancel it.
    max_catchup
        How many missed fires are made up for, the newest ones.
    paused
        Do not fire yet.
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
    """Change what is named of a schedule, and nothing else.

    Parameters
    ----------
    cron
        Another expression; it begins now.
    timezone
        Whose clocks are meant.
    kind
        The name of another handler.
    queue
        Where its tasks wait.
    payload
        JSON text; `@FILE` reads a file, `-` reads standard input.
    priority
        From -100 to 100; like `nice`, a lower number runs first.
    max_attempts
        How often the handler of a task may fail.
    timeout
        How long an attempt may take, such as `10m`.
    overlap
        When an earlier task has not ended: run beside it, skip the fire, queue behind it, or cancel it.
    max_catchup
        How many missed fires are made up for, the newest ones.
    rename
        Another name.
    """
    said = {
        "cron": cron, "timezone": timezone, "kind": kind, "queue": queue, "priority": priority,
        "retry": _retry(max_attempts, timeout), "overlap": overlap, "max_catchup": max_catchup, "name": rename,
    }  # fmt: skip
    changes = {field: value for field, value in said.items() if value is not None}
    if payload is not None:
        changes["payload"] = read_payload(payload)
    if not changes:
        raise Unusable("name what is to be different, such as --cron")
    changed = api.client().patch(f"/schedules/{schedule}", changes, query=api.space)
    show(changed, api.json, lambda: say(f"{schedule} fires next at {instant(changed['next_fire_at'])} UTC"))


def pause_schedule(schedule: Which, *, api: ApiOptions = HERE) -> None:
    """Let a schedule not fire, until it is resumed."""
    paused = api.client().post(f"/schedules/{schedule}/pause", query=api.space)
    show(paused, api.json, lambda: say(f"{schedule} is paused."))


def resume_schedule(schedule: Which, *, api: ApiOptions = HERE) -> None:
    """Let a schedule fire again, and make up for what was missed."""
    resumed = api.client().post(f"/schedules/{schedule}/resume", query=api.space)
    show(resumed, api.json, lambda: say(f"{schedule} fires next at {instant(resumed['next_fire_at'])} UTC"))


def trigger_schedule(schedule: Which, *, api: ApiOptions = HERE) -> None:
    """Submit the task of a schedule now; prints its id."""
    made = api.client().post(f"/schedules/{schedule}/trigger", query=api.space)
    show(made, api.json, lambda: say(made["task_id"]))


def preview_schedule(
    schedule: str, *, count: int = 10, timezone: str | None = None, after: str | None = None, api: ApiOptions = HERE
) -> None:
    """When a schedule will fire; or an expression: `windlass schedules preview "30 2 * * *" --timezone Europe/Rome`.

    Parameters
    ----------
    schedule
        A name, an id, or a cron expression (of five to seven fields, or `@daily` and its like).
    count
        How many times to show.
    timezone
        Whose clocks are meant, for an expression; default: UTC.
    after
        Begin after this instant, such as `2026-10-25T00:00:00Z`; default: now.
    """
    client, query = api.client(), {"count": count, "after": after}
    if schedule.startswith("@") or len(schedule.split()) > 1:
        found = client.get("/cron", {**query, "cron": schedule, "timezone": timezone})
    else:
        found = client.get(f"/schedules/{schedule}/preview", {**api.space, **query})
    show(found, api.json, lambda: _tell_fires(found["local"], found["timezone"]))


def delete_schedule(schedule: Which, *, api: ApiOptions = HERE) -> None:
    """Forget a schedule; the tasks that it has submitted stay."""
    gone = api.client().delete(f"/schedules/{schedule}", query=api.space)
    show(gone, api.json, lambda: say(f"{schedule} is deleted."))


def _retry(max_attempts: int | None, timeout: str | None) -> dict[str, object] | None:
    limits = {"max_attempts": max_attempts, "timeout_s": None if timeout is None else seconds_of("--timeout", timeout)}
    said: dict[str, object] = {name: value for name, value in limits.items() if value is not None}
    return said or None
