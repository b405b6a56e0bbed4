"""`windlass queues push|pull|secret`: sets how tasks are delivered; prints and rotates signing secrets."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter
from rich.markup import escape

from windlass.cli.api import HERE, ApiOptions
from windlass.cli.output import Unusable, say, show
from windlass.cli.queue import known_queue
from windlass.cli.submit import seconds_of
from windlass.errors import NotFound


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
    """Push the tasks of a queue to an HTTP service, and print the signing secret for its worker. Limits and retries
    stay as they are.

    Parameters
    ----------
    name
        Name of the queue.
    worker
        URL that receives the pushes, such as https://shop.example/windlass.
    heartbeat_interval
        Interval between heartbeats of the worker. Default: `30s`.
    heartbeat_timeout
        Time without a heartbeat after which the task is given to another worker. Default: `90s`.
    cancel_grace
        Time that a cancelled task has to stop. Default: `30s`.
    dispatch_timeout
        Time from the push to the first callback of the worker. Default: `30s`.
    token_ttl
        Lifetime of a token; at most `2h`. Default: `1h`.
    label
        Label of the workers behind the URL, for tasks that require it; repeatable.
    header
        Header of each push, as `NAME: VALUE`; repeatable. `${NAME}` in a value is replaced by the server's environment
        variable PUSH_SECRET_NAME.
    """
    given = {
        "heartbeat_interval_ms": milliseconds("--heartbeat-interval", heartbeat_interval),
        "heartbeat_timeout_ms": milliseconds("--heartbeat-timeout", heartbeat_timeout),
        "cancel_grace_period_ms": milliseconds("--cancel-grace", cancel_grace),
        "dispatch_timeout_ms": milliseconds("--dispatch-timeout", dispatch_timeout),
        "token_ttl_seconds": None if token_ttl is None else round(seconds_of("--token-ttl", token_ttl)),
        "labels": label or None,
        "headers": dict(map(header_of, header)) if header else None,
    }
    delivery = {"type": "push", "url": worker, **{name: value for name, value in given.items() if value is not None}}
    queue = put_delivery(name, delivery, api)

    def print_text() -> None:
        say(f"The queue {escape(name)} pushes to {escape(worker)}.")
        if queue.get("signing_secret"):
            say(f"Its worker needs WINDLASS_SIGNING_SECRET={escape(queue['signing_secret'])}")

    show(queue, api.json, print_text)


def header_of(text: str) -> tuple[str, str]:
    name, separator, value = text.partition(":")
    if not separator:
        raise Unusable(f"--header: {text!r} is not NAME: VALUE")
    return name.strip(), value.strip()


def pull_queue(name: str, *, api: ApiOptions = HERE) -> None:
    """Let workers claim the tasks of a queue. They are no longer pushed.

    Parameters
    ----------
    name
        Name of the queue.
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
    """Print the signing secret for the pushes or calls of a queue.

    Parameters
    ----------
    name
        Name of the queue.
    rotate
        Create a new secret. Requests are signed with both for a while, so that every worker can get the new one.
    overlap
        How long the old secret stays in use, such as `1d`.
    """
    client = api.client()
    if overlap is not None and not rotate:
        raise Unusable("--overlap needs --rotate")
    if rotate:
        order = {} if overlap is None else {"overlap_s": seconds_of("--overlap", overlap)}
        queue = client.post(f"/queues/{name}/rotate-secret", order, query=api.space)
    else:
        queue = client.get(f"/queues/{name}", api.space)
    secret = queue.get("signing_secret")
    if secret is None:
        raise NotFound(f"the queue {name} has no signing secret, or this API key may not read it")
    show({"signing_secret": secret}, api.json, lambda: say(escape(secret)))


def put_delivery(name: str, delivery: dict[str, Any], api: ApiOptions) -> dict[str, Any]:
    client = api.client()
    known = known_queue(client, name, api)
    kept = {part: known[part] for part in ("limits", "retry") if known[part]}
    queue: dict[str, Any] = client.put(f"/queues/{name}", {**kept, "delivery": delivery}, query=api.space)
    return queue


def milliseconds(flag: str, text: str | None) -> int | None:
    return None if text is None else round(seconds_of(flag, text) * 1000)
