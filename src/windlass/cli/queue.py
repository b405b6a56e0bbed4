"""`windlass queues`: lists queues; sets their limits; pauses, resumes and drains them."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from windlass.api.client import ApiClient
from windlass.cli.api import HERE, ApiOptions, Watch
from windlass.cli.options import Duration, seconds_of, without_none
from windlass.cli.output import Exit, Unusable
from windlass.errors import NotFound

STATES = ("queued", "running", "failed", "sleeping", "blocked", "parked")
COLUMNS = ("name", "paused", *STATES, "limits", "delivery")
QueueName = Annotated[str, Parameter(help="Name of the queue.")]


def list_queues(*, watch: Watch = False, api: ApiOptions = HERE) -> None:
    """List queues with their number of tasks in each state."""
    api.show_items("/queues", api.space, COLUMNS, _row, watch=watch, empty="There are no queues yet.")


def _row(queue: dict[str, Any]) -> list[object]:
    counts = [queue["counts"].get(state) or "" for state in STATES]
    return [queue["name"], "paused" if queue["paused"] else "", *counts, _limits(queue), queue["delivery"]["type"]]


def _limits(queue: dict[str, Any]) -> str:
    limits = queue["limits"]
    parts = [
        f"{name} {limits[name]}" for name in ("max_running", "max_running_per_key") if limits.get(name) is not None
    ]
    parts += [f"{kind} {limit}" for kind, limit in (limits.get("max_running_per_kind") or {}).items()]
    if limits.get("rate"):
        parts.append(f"{limits['rate']['count']} in {limits['rate']['period_s']:g} s")
    return ", ".join(parts)


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
    """Set the limits of a queue. Limits that are not given stay as they are.

    Parameters
    ----------
    max_running
        Maximum number of tasks that run at the same time.
    max_running_per_key
        Maximum per concurrency key.
    max_running_per_kind
        Maximum for one kind, such as `send=5`; repeatable.
    rate
        Maximum number of starts per period, such as `10/1s` or `1000/1h`.
    max_attempts
        Maximum number of failed attempts, for tasks that set none.
    max_losses
        Maximum number of lost workers per task.
    clear
        Remove all limits that are not given.
    """
    client = api.client()
    known = known_queue(client, name, api)
    limits = {} if clear else dict(known["limits"])
    limits |= without_none(max_running=max_running, max_running_per_key=max_running_per_key, rate=_rate(rate))
    if max_running_per_kind:
        limits["max_running_per_kind"] = dict(_kind_limit(text) for text in max_running_per_kind)
    known["retry"] |= without_none(max_attempts=max_attempts, max_losses=max_losses)
    order = {"limits": limits, **{part: known[part] for part in ("delivery", "retry") if known[part]}}
    queue = client.put(f"/queues/{name}", order, query=api.space)
    api.show(queue, f"The queue {name}: {_limits(queue) or 'no limits'}.")


def known_queue(client: ApiClient, name: str, api: ApiOptions) -> dict[str, Any]:
    """The current configuration of a queue; empty if the queue does not exist yet."""
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
        raise Unusable(f"--rate: {text!r} is not a rate, such as 10/1s")
    return {"count": int(count), "period_s": seconds_of("--rate", period)}


def _kind_limit(text: str) -> tuple[str, int]:
    kind, separator, limit = text.rpartition("=")
    if not separator or not kind or not limit.isdigit():
        raise Unusable(f"--max-running-per-kind: {text!r} is not KIND=COUNT, such as send=5")
    return kind, int(limit)


def pause_queue(name: QueueName, *, api: ApiOptions = HERE) -> None:
    """Pause a queue: no more tasks are claimed from it. Running tasks continue."""
    queue = api.client().post(f"/queues/{name}/pause", query=api.space)
    api.show(queue, f"The queue {name} is paused.")


def resume_queue(name: QueueName, *, api: ApiOptions = HERE) -> None:
    """Resume a paused queue."""
    queue = api.client().post(f"/queues/{name}/resume", query=api.space)
    api.show(queue, f"The queue {name} is resumed.")


def drain_queue(name: QueueName, *, wait: Duration = 60.0, api: ApiOptions = HERE) -> int:
    """Pause a queue and wait until none of its tasks runs. Exit code 1 if some still do.

    Parameters
    ----------
    wait
        Maximum time to wait, in seconds or such as `5m`.
    """
    client = api.client(timeout_s=wait + 30)
    queue = client.post(f"/queues/{name}/drain", {"wait_s": wait}, query=api.space)
    left = queue["counts"].get("running", 0)
    api.show(queue, f"The queue {name} is paused; {f'{left} tasks are still' if left else 'no task is'} running.")
    return Exit.FAILED if left else Exit.OK
