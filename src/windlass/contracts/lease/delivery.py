"""Deliveries of the lease contract: `wakeup` sends a message and a worker claims the task by its id; `invoke` calls a
function that holds the lease."""

from __future__ import annotations

import re
from typing import Annotated, Self

from msgspec import Meta

from windlass.contracts.lease.wakeups.addresses import ADDRESS_MAX, CARRIERS, CarrierName
from windlass.core.delivery import MS_MAX, Delivery, Ms, Outgoing, Url, Word
from windlass.core.validation import check_text, check_url
from windlass.errors import Invalid

INVOKE = "invoke"
LEASE_ATTEMPTS = 3  # of queues where a lease that was lost counts like a failed attempt
_LAMBDA = re.compile(r"[A-Za-z0-9-_:$]{1,200}")
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,199}")


class Wakeup(Delivery, frozen=True, tag="wakeup", kw_only=True):
    """A carrier brings a message with the task's id to a worker, which claims the lease. `address` is a NATS subject,
    or the name or URL of an SQS queue; the default is derived from namespace and queue. A worker has a message for
    `visibility_ms` unless it extends that; a message that was delivered more than `max_deliveries` times becomes a dead
    letter. A task that no worker claims is announced again after `resend_ms`, then less and less often, but at least
    every `resend_max_ms`. `secrets` are names of environment variables of the worker; code that is not `trusted` gets
    none."""

    carrier: CarrierName = "postgres"
    address: Annotated[str, Meta(min_length=1, max_length=ADDRESS_MAX)] | None = None
    lease_ms: Ms = 60_000
    visibility_ms: Annotated[int, Meta(ge=1000, le=43_200_000)] = 60_000
    max_deliveries: Annotated[int, Meta(ge=1, le=1000)] = 10
    resend_ms: Annotated[int, Meta(ge=1000, le=MS_MAX)] = 60_000
    resend_max_ms: Annotated[int, Meta(ge=1000, le=MS_MAX)] = 600_000
    trusted: bool = True
    secrets: Annotated[tuple[Word, ...], Meta(max_length=100)] = ()

    mark = 2
    loss_is_failure = True
    max_attempts = LEASE_ATTEMPTS

    def checked(self) -> Self:
        if self.carrier not in CARRIERS:
            raise Invalid(f"must be {', '.join(CARRIERS)}", field="delivery.carrier")
        if self.address is not None:
            check_text("delivery.address", self.address, ADDRESS_MAX)
            if not CARRIERS[self.carrier].fits(self.address):
                raise Invalid(CARRIERS[self.carrier].error, field="delivery.address")
        for name in self.secrets:
            if not _VARIABLE.fullmatch(name):
                raise Invalid("must be names of environment variables, such as SHOP_TOKEN", field="delivery.secrets")
        if self.secrets and not self.trusted:
            raise Invalid("must be empty: untrusted code gets no secrets", field="delivery.secrets")
        return self

    def address_of(self, namespace: str, queue: str) -> str:
        """The address of a queue at its carrier; empty for PostgreSQL, which uses the name of the queue."""
        return CARRIERS[self.carrier].default_address(namespace, queue) if self.address is None else self.address


class Invoke(Delivery, frozen=True, tag="invoke", kw_only=True):
    """The engine calls a function for each task: a URL with a signed request, or AWS Lambda by name or ARN. The lease
    lasts `lease_ms` from the call or the last heartbeat. The code of the function is trusted: it has a worker's
    certificate."""

    url: Url | None = None
    function: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    lease_ms: Ms = 900_000
    trusted: bool = True

    mark = 4
    effect = INVOKE
    loss_is_failure = True
    max_attempts = LEASE_ATTEMPTS

    def checked(self) -> Self:
        if (self.url is None) == (self.function is None):
            raise Invalid("must have a url or a function, and not both", field="delivery.url")
        if self.url is not None:
            check_url("delivery.url", self.url)
        if self.function is not None and not _LAMBDA.fullmatch(self.function):
            raise Invalid("must be the name or the ARN of a function", field="delivery.function")
        if not self.trusted:
            raise Invalid(
                "a function holds the certificate of a worker, which cannot be kept from its code: use wakeup for code "
                "that is not trusted", field="delivery.trusted",
            )  # fmt: skip
        return self

    @property
    def outgoing(self) -> Outgoing:
        return Outgoing(INVOKE, self.lease_ms, self.lease_ms // 8, self.lease_ms // 8, own_lease=True)

    @property
    def target_url(self) -> str | None:
        return self.url

    @property
    def signed(self) -> bool:
        return self.url is not None  # AWS authenticates the callers of its functions
