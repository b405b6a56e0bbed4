"""`windlass queues`: what waits where, limits, pause and resume."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from windlass.cli.api import HERE, ApiOptions
from windlass.cli.live import watching
from windlass.cli.output import Unusable, say, show, table
from windlass.cli.submit import seconds_of
from windlass.core.error import NotFound
from windlass.http.client import ApiClient

STATES = ("queued", "running", "failed", "sleeping", "blocked", "parked")
COLUMNS = ("name", "paused", *STATES, "limits", "delivery")
QueueName = Annotated[str, Parameter(help="The queue.")]
Watch = Annotated[
    bool, Parameter(name=("--watch", "-w"), show_default=False, help="Redraw it every second, until Ctrl-C.")
]


def list_queues(*, watch: Watch = False, api: ApiOptions = HERE) -> None:
    """List queues, with how many tasks are in each state."""
    client = api.client()

    def found() -> list[dict[str, Any]]:
        return list(client.items("/queues", api.space, 10_000))

    if watch and not api.json:
        watching(COLUMNS, lambda: map(_row, found()))
        return
    queues = found()
    show(queues, api.json, lambda: table(COLUMNS, map(_row, queues), nothing="There are no queues yet."))


def _row(queue: dict[str, Any]) -> list[object]:
    counts = [queue["counts"].get(state) or "" for state in STATES]
    return [queue["name"], "paused" if queue["paused"] else "", *counts, _limits(queue), queue["delivery"]["type"]]


def _limits(queue: dict[str, Any]) -> str:
    limits = queue["limits"]
    said = [f"{name} {limits[name]}" for name in ("max_running", "max_running_per_key") if limits.get(name) is not None]
    said += [f"{kind} {limit}" for kind, limit in (limits.get("max_running_per_kind") or {}).items()]
    if limits.get("rate"):
        said.append(f"{limits['rate']['count']} in {limits['rate']['period_s']:g} s")
    return ", ".join(said)


def set_queue(
    name: QueueName,
    *,
    max_running: int | None = None,
    max_running_per_key: int | None = None,
    max_running_per_kind: Annotated[tuple[str, ...], Parameter(show_default=False)] = (),
    rate: str | None = None,
    max_attempts: int | None = None,
    max_losses: int | None = None,
    clear: Annotated[bool, Parameter(show_default=False)] = False,
    api: ApiOptions = HERE,
) -> None:
    """Set limits of a queue; what is not named stays as it is.

    Parameters
    ----------
    max_running
        How many of its tasks may run at the same time.
    max_running_per_key
        The same, for tasks with the same concurrency key.
    max_running_per_kind
        The same, for one kind: `send=5`; may be repeated.
    rate
        How many may start in a while: `10/1s`, `1000/1h`.
    max_attempts
        How often a task may fail that says nothing itself.
    max_losses
        How often its worker may be lost.
    clear
        Take away all limits that are not named here.
    """
    client = api.client()
    known = known_queue(client, name, api)
    limits = {} if clear else dict(known["limits"])
    given = {"max_running": max_running, "max_running_per_key": max_running_per_key, "rate": _rate(rate)}
    limits |= {limit: value for limit, value in given.items() if value is not None}
    if max_running_per_kind:
        limits["max_running_per_kind"] = dict(_kind_limit(text) for text in max_running_per_kind)
    budgets = {"max_attempts": max_attempts, "max_losses": max_losses}
    known["retry"] |= {budget: value for budget, value in budgets.items() if value is not None}
    order = {"limits": limits, **{part: known[part] for part in ("delivery", "retry") if known[part]}}
    queue = client.put(f"/queues/{name}", order, query=api.space)
    show(queue, api.json, lambda: say(f"The queue {name}: {_limits(queue) or 'no limits'}."))


def known_queue(client: ApiClient, name: str, api: ApiOptions) -> dict[str, Any]:
    """What is set so far; a queue that nobody has used yet is as good as any other."""
    try:
        found: dict[str, Any] = client.get(f"/queues/{name}", api.space)
    except NotFound:
        return {"limits": {}, "retry": {}, "delivery": {}}
    return found


def _rate(text: str | None) -> dict[str, object] | None:
    if text is None:
        return None
    count, separator, period = text.partition("/")
    if not separator or not count.isdigit():
        raise Unusable(f"--rate: {text!r} is not like 10/1s")
    return {"count": int(count), "period_s": seconds_of("--rate", period)}


def _kind_limit(text: str) -> tuple[str, int]:
    kind, separator, limit = text.rpartition("=")
    if not separator or not kind or not limit.isdigit():
        raise Unusable(f"--max-running-per-kind: {text!r} is not like send=5")
    return kind, int(limit)


def pause_queue(name: QueueName, *, api: ApiOptions = HERE) -> None:
    """Stop claims from a queue; what runs goes on."""
    queue = api.client().post(f"/queues/{name}/pause", query=api.space)
    show(queue, api.json, lambda: say(f"The queue {name} is paused."))


def resume_queue(name: QueueName, *, api: ApiOptions = HERE) -> None:
    """Let claims from a queue go on."""
    queue = api.client().post(f"/queues/{name}/resume", query=api.space)
    show(queue, api.json, lambda: say(f"The queue {name} goes on."))


def drain_queue(name: QueueName, *, wait: str = "60s", api: ApiOptions = HERE) -> int:
    """Pause a queue, and wait until nothing of it runs; exit code 1 if something still does.

    Parameters
    ----------
    wait
        Wait at most so long, such as `5m`.
    """
    limit_s = seconds_of("--wait", wait)
    queue = api.client(timeout_s=limit_s + 30).post(f"/queues/{name}/drain", {"wait_s": limit_s}, query=api.space)
    left = queue["counts"].get("running", 0)
    told = f"The queue {name} is paused, " + (f"{left} tasks still run." if left else "nothing runs.")
    show(queue, api.json, lambda: say(told))
    return 1 if left else 0
