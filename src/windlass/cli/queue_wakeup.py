"""`windlass queues wakeup|invoke`: wakes workers by messages; calls a function for each task."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter
from rich.markup import escape

from windlass.cli.api import HERE, ApiOptions
from windlass.cli.output import say, show
from windlass.cli.queue_delivery import milliseconds, put_delivery
from windlass.contracts.lease.wakeups.addresses import CarrierName


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
    """Wake the workers of a queue by messages. Each carries the id of a task, which the worker claims. Limits and
    retries stay as they are.

    Parameters
    ----------
    name
        Name of the queue.
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
    given = {
        "address": address,
        "lease_ms": milliseconds("--lease", lease),
        "visibility_ms": milliseconds("--visibility", visibility),
        "max_deliveries": max_deliveries,
        "resend_ms": milliseconds("--resend", resend),
        "resend_max_ms": milliseconds("--resend-max", resend_max),
        "trusted": False if untrusted else None,
        "secrets": list(secret) or None,
    }
    delivery = {
        "type": "wakeup",
        "carrier": carrier,
        **{key: value for key, value in given.items() if value is not None},
    }
    queue = put_delivery(name, delivery, api)
    show(queue, api.json, lambda: say(f"Workers of the queue {escape(name)} are woken by {carrier}."))


def invoke_queue(name: str, function: str, *, lease: str | None = None, api: ApiOptions = HERE) -> None:
    """Call a function for each task of a queue: `windlass queues invoke resize https://shop.example/resize`. Limits and
    retries stay as they are.

    Parameters
    ----------
    name
        Name of the queue.
    function
        URL of the function, such as https://shop.example/run, or name or ARN of an AWS Lambda function.
    lease
        Time after the call or the last heartbeat until the task is given up as lost. Default: `15m`.
    """
    field = "url" if function.startswith(("http://", "https://")) else "function"
    lease_ms = milliseconds("--lease", lease)
    delivery = {"type": "invoke", field: function, **({} if lease_ms is None else {"lease_ms": lease_ms})}
    queue = put_delivery(name, delivery, api)

    def print_text() -> None:
        say(f"{escape(function)} is called for the tasks of the queue {escape(name)}.")
        if queue.get("signing_secret"):
            say(f"Calls are signed with {escape(queue['signing_secret'])}")

    show(queue, api.json, print_text)
