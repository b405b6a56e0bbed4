"""`windlass queues push|pull|secret`: how work reaches the workers of a queue, and what pushes are signed with."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter
from rich.markup import escape

from windlass.cli.api import HERE, ApiOptions
from windlass.cli.output import Unusable, say, show
from windlass.cli.queue import known_queue
from windlass.cli.submit import seconds_of
from windlass.core.error import NotFound


def push_queue(
    name: str,
    worker: str,
    *,
    heartbeat_interval: str | None = None,
    heartbeat_timeout: str | None = None,
    cancel_grace: str | None = None,
    dispatch_timeout: str | None = None,
    token_ttl: str | None = None,
    label: Annotated[list[str] | None, Parameter(name=["--label", "-l"])] = None,
    header: Annotated[list[str] | None, Parameter(name="--header")] = None,
    api: ApiOptions = HERE,
) -> None:
    """Push the tasks of a queue to a service from now on; says the secret that its worker needs. Limits and retries
    stay as they are.

    Parameters
    ----------
    name
        The queue.
    worker
        Where the service takes pushes, such as https://shop.example/windlass.
    heartbeat_interval
        How often the worker says that it is alive; default: `30s`.
    heartbeat_timeout
        After how long without a word its task is given to another; default: `90s`.
    cancel_grace
        How long a task may take to stop when it is cancelled; default: `30s`.
    dispatch_timeout
        How long a worker may take from the push to its first word; default: `30s`.
    token_ttl
        How long a token is good before it is renewed; default: `1h`, at most `2h`.
    label
        What the workers behind the URL have, for tasks that require it; may be given several times.
    header
        A header of each push, as `NAME: VALUE`; may be given several times. `${NAME}` in a value is the server's
        variable PUSH_SECRET_NAME.
    """
    given = {
        "heartbeat_interval_ms": wanted_ms("--heartbeat-interval", heartbeat_interval),
        "heartbeat_timeout_ms": wanted_ms("--heartbeat-timeout", heartbeat_timeout),
        "cancel_grace_period_ms": wanted_ms("--cancel-grace", cancel_grace),
        "dispatch_timeout_ms": wanted_ms("--dispatch-timeout", dispatch_timeout),
        "token_ttl_seconds": None if token_ttl is None else round(seconds_of("--token-ttl", token_ttl)),
        "labels": label or None,
        "headers": dict(map(header_of, header)) if header else None,
    }
    delivery = {"type": "push", "url": worker, **{name: value for name, value in given.items() if value is not None}}
    queue = put_delivery(name, delivery, api)

    def tell() -> None:
        say(f"The queue {escape(name)} pushes to {escape(worker)}.")
        if queue.get("signing_secret"):
            say(f"Its worker needs WINDLASS_SIGNING_SECRET={escape(queue['signing_secret'])}")

    show(queue, api.json, tell)


def header_of(text: str) -> tuple[str, str]:
    name, separator, value = text.partition(":")
    if not separator:
        raise Unusable(f"--header: {text!r} is not like NAME: VALUE")
    return name.strip(), value.strip()


def pull_queue(name: str, *, api: ApiOptions = HERE) -> None:
    """Let workers claim the tasks of a queue again, instead of pushing them.

    Parameters
    ----------
    name
        The queue.
    """
    queue = put_delivery(name, {"type": "pull"}, api)
    show(queue, api.json, lambda: say(f"Workers claim from the queue {escape(name)}."))


def queue_secret(
    name: str,
    *,
    rotate: Annotated[bool, Parameter(show_default=False)] = False,
    overlap: str | None = None,
    api: ApiOptions = HERE,
) -> None:
    """Print the secret that pushes or calls of a queue are signed with, and nothing else.

    Parameters
    ----------
    name
        The queue.
    rotate
        Make a new one. All is signed with both for a while: give the new one to every worker meanwhile.
    overlap
        How long the old one is still used, such as `1d`.
    """
    client = api.client()
    if overlap is not None and not rotate:
        raise Unusable("--overlap goes with --rotate")
    if rotate:
        order = {} if overlap is None else {"overlap_s": seconds_of("--overlap", overlap)}
        queue = client.post(f"/queues/{name}/rotate-secret", order, query=api.space)
    else:
        queue = client.get(f"/queues/{name}", api.space)
    secret = queue.get("signing_secret")
    if secret is None:
        raise NotFound(f"the queue {name} sends nothing that is signed, or this key may not see its secret")
    show({"signing_secret": secret}, api.json, lambda: say(escape(secret)))


def put_delivery(name: str, delivery: dict[str, Any], api: ApiOptions) -> dict[str, Any]:
    client = api.client()
    known = known_queue(client, name, api)
    kept = {part: known[part] for part in ("limits", "retry") if known[part]}
    queue: dict[str, Any] = client.put(f"/queues/{name}", {**kept, "delivery": delivery}, query=api.space)
    return queue


def wanted_ms(flag: str, text: str | None) -> int | None:
    return None if text is None else round(seconds_of(flag, text) * 1000)
