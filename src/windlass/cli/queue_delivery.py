"""`windlass queues push|pull|wakeup|invoke|secret`: sets the delivery of tasks; prints and rotates signing secrets."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from windlass.cli.api import HERE, ApiOptions
from windlass.cli.options import Duration, without_none
from windlass.cli.output import Unusable
from windlass.cli.queue import QueueName, known_queue
from windlass.contracts.lease.wakeups.addresses import CarrierName
from windlass.errors import NotFound


def push_queue(
    name: QueueName,
    worker: str,
    *,
    heartbeat_interval: Duration | None = None,
    heartbeat_timeout: Duration | None = None,
    cancel_grace: Duration | None = None,
    dispatch_timeout: Duration | None = None,
    token_ttl: Duration | None = None,
    label: Annotated[list[str] | None, Parameter(name=["--label", "-l"])] = None,
    header: Annotated[list[str] | None, Parameter(name="--header")] = None,
    api: ApiOptions = HERE,
) -> None:
    """Push the tasks of a queue to an HTTP service, and print the signing secret for its worker. Limits and retries
    stay as they are.

    Parameters
    ----------
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
    delivery = without_none(
        type="push",
        url=worker,
        heartbeat_interval_ms=_milliseconds(heartbeat_interval),
        heartbeat_timeout_ms=_milliseconds(heartbeat_timeout),
        cancel_grace_period_ms=_milliseconds(cancel_grace),
        dispatch_timeout_ms=_milliseconds(dispatch_timeout),
        token_ttl_seconds=None if token_ttl is None else round(token_ttl),
        labels=label or None,
        headers=dict(map(_header, header)) if header else None,
    )
    text = f"The queue {name} pushes to {worker}."
    _put_delivery(name, delivery, api, text, "Its worker needs WINDLASS_SIGNING_SECRET=")


def _header(text: str) -> tuple[str, str]:
    name, separator, value = text.partition(":")
    if not separator:
        raise Unusable(f"--header: {text!r} is not NAME: VALUE")
    return name.strip(), value.strip()


def pull_queue(name: QueueName, *, api: ApiOptions = HERE) -> None:
    """Let workers claim the tasks of a queue. They are no longer pushed."""
    _put_delivery(name, {"type": "pull"}, api, f"Workers claim from the queue {name}.")


def wake_queue(
    name: QueueName,
    *,
    carrier: CarrierName = "postgres",
    address: str | None = None,
    lease: Duration | None = None,
    visibility: Duration | None = None,
    max_deliveries: int | None = None,
    resend: Duration | None = None,
    resend_max: Duration | None = None,
    untrusted: Annotated[bool, Parameter(show_default=False)] = False,
    secret: Annotated[tuple[str, ...], Parameter(show_default=False)] = (),
    api: ApiOptions = HERE,
) -> None:
    """Wake the workers of a queue by messages. Each carries the id of a task, which the worker claims. Limits and
    retries stay as they are.

    Parameters
    ----------
    carrier
        Carrier of the messages.
    address
        NATS subject, or name or URL of an SQS queue. Default: made from the namespace and the queue.
    lease
        Time without a heartbeat after which the task is given to another worker. Default: `60s`.
    visibility
        How long a received message is hidden from other workers; its worker can extend it. Default: `60s`.
    max_deliveries
        Number of deliveries after which a message becomes a dead letter. Default: 10.
    resend
        Delay before the first repeated message for an unclaimed task. Default: `60s`.
    resend_max
        Maximum delay between two messages for such a task. Default: `10m`.
    untrusted
        Run operators without access to the certificate and the secrets of the worker.
    secret
        Environment variable of the worker that operators receive; repeatable.
    """
    delivery = without_none(
        type="wakeup",
        carrier=carrier,
        address=address,
        lease_ms=_milliseconds(lease),
        visibility_ms=_milliseconds(visibility),
        max_deliveries=max_deliveries,
        resend_ms=_milliseconds(resend),
        resend_max_ms=_milliseconds(resend_max),
        trusted=False if untrusted else None,
        secrets=list(secret) or None,
    )
    _put_delivery(name, delivery, api, f"Workers of the queue {name} are woken by {carrier}.")


def invoke_queue(name: QueueName, function: str, *, lease: Duration | None = None, api: ApiOptions = HERE) -> None:
    """Call a function for each task of a queue: `windlass queues invoke resize https://shop.example/resize`. Limits and
    retries stay as they are.

    Parameters
    ----------
    function
        URL of the function, such as https://shop.example/run, or name or ARN of an AWS Lambda function.
    lease
        Time after the call or the last heartbeat until the task is given up as lost. Default: `15m`.
    """
    field = "url" if function.startswith(("http://", "https://")) else "function"
    delivery = without_none(**{"type": "invoke", field: function, "lease_ms": _milliseconds(lease)})
    text = f"{function} is called for the tasks of the queue {name}."
    _put_delivery(name, delivery, api, text, "Calls are signed with ")


def _put_delivery(name: str, delivery: dict[str, Any], api: ApiOptions, text: str, secret_text: str = "") -> None:
    """Sets the delivery of a queue. Prints the text, and after `secret_text` the signing secret of the queue."""
    client = api.client()
    known = known_queue(client, name, api)
    kept = {part: known[part] for part in ("limits", "retry") if known[part]}
    queue = client.put(f"/queues/{name}", {**kept, "delivery": delivery}, query=api.space)
    secret = queue.get("signing_secret") if secret_text else None
    api.show(queue, f"{text}\n{secret_text}{secret}" if secret else text)


def _milliseconds(duration_s: float | None) -> int | None:
    return None if duration_s is None else round(duration_s * 1000)


def queue_secret(
    name: QueueName,
    *,
    rotate: Annotated[bool, Parameter(show_default=False)] = False,
    overlap: Duration | None = None,
    api: ApiOptions = HERE,
) -> None:
    """Print the signing secret for the pushes or calls of a queue.

    Parameters
    ----------
    rotate
        Create a new secret. Requests are signed with both for a while, so that every worker can get the new one.
    overlap
        How long the old secret stays in use, such as `1d`.
    """
    client = api.client()
    if overlap is not None and not rotate:
        raise Unusable("--overlap needs --rotate")
    if rotate:
        queue = client.post(f"/queues/{name}/rotate-secret", without_none(overlap_s=overlap), query=api.space)
    else:
        queue = client.get(f"/queues/{name}", api.space)
    secret = queue.get("signing_secret")
    if secret is None:
        raise NotFound(f"the queue {name} has no signing secret, or this API key may not read it")
    api.show({"signing_secret": secret}, secret)
