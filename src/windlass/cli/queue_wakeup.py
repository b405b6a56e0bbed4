"""`windlass queues wakeup|invoke`: workers that are woken by messages, functions that are called."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter
from rich.markup import escape

from windlass.cli.api import HERE, ApiOptions
from windlass.cli.output import say, show
from windlass.cli.queue_delivery import put_delivery, wanted_ms
from windlass.core.carrier import CarrierName


def wake_queue(
    name: str,
    *,
    carrier: CarrierName = "postgres",
    address: str | None = None,
    lease: str | None = None,
    visibility: str | None = None,
    max_deliveries: int | None = None,
    resend: str | None = None,
    resend_max: str | None = None,
    untrusted: Annotated[bool, Parameter(show_default=False)] = False,
    secret: Annotated[tuple[str, ...], Parameter(show_default=False)] = (),
    api: ApiOptions = HERE,
) -> None:
    """Wake the workers of a queue by messages from now on: each carries the id of a task, which its worker claims.
    Limits and retries stay as they are.

    Parameters
    ----------
    name
        The queue.
    carrier
        What carries the messages.
    address
        A subject of NATS, or the name or URL of a queue of SQS; default: one made from the names.
    lease
        How long a worker may be silent before its task is given to another; default: `60s`.
    visibility
        How long a message is kept from other workers, unless its own asks for longer; default: `60s`.
    max_deliveries
        After how many deliveries a message that no worker can handle is given up; default: 10.
    resend
        After how long a task that nobody has claimed is spoken of again, at first; default: `60s`.
    resend_max
        The longest pause between two messages for such a task; default: `10m`.
    untrusted
        Its tasks run code that must not see the worker's certificate or secrets.
    secret
        A variable of the worker that its operators get; as many as are needed.
    """
    given = {
        "address": address,
        "lease_ms": wanted_ms("--lease", lease),
        "visibility_ms": wanted_ms("--visibility", visibility),
        "max_deliveries": max_deliveries,
        "resend_ms": wanted_ms("--resend", resend),
        "resend_max_ms": wanted_ms("--resend-max", resend_max),
        "trusted": False if untrusted else None,
        "secrets": list(secret) or None,
    }
    delivery = {
        "type": "wakeup",
        "carrier": carrier,
        **{key: value for key, value in given.items() if value is not None},
    }
    queue = put_delivery(name, delivery, api)
    show(queue, api.json, lambda: say(f"Workers of the queue {escape(name)} are woken through {carrier}."))


def invoke_queue(name: str, function: str, *, lease: str | None = None, api: ApiOptions = HERE) -> None:
    """Call a function for each task of a queue from now on: `windlass queues invoke resize https://shop.example/resize`.
    Limits and retries stay as they are.

    Parameters
    ----------
    name
        The queue.
    function
        Where it takes a task, such as https://shop.example/run; or the name or ARN of a function of AWS Lambda.
    lease
        How long it may be silent, from the call or from its last heartbeat; default: `15m`.
    """
    where = "url" if function.startswith(("http://", "https://")) else "function"
    lease_ms = wanted_ms("--lease", lease)
    delivery = {"type": "invoke", where: function, **({} if lease_ms is None else {"lease_ms": lease_ms})}
    queue = put_delivery(name, delivery, api)

    def tell() -> None:
        say(f"{escape(function)} is called for the tasks of the queue {escape(name)}.")
        if queue.get("signing_secret"):
            say(f"Calls are signed with {escape(queue['signing_secret'])}")

    show(queue, api.json, tell)
