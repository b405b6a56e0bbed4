"""Deliveries: how work reaches the workers of a queue. And the settings of a queue.

Owns the base class of deliveries, their registry, and the default delivery (`Pull`). The other deliveries are in the
rooms of their contracts, and `serve` registers them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, reduce
from operator import or_
from typing import Annotated, Any, ClassVar, Self

import msgspec
from msgspec import Meta

from windlass.core.queue import QueueConfig
from windlass.core.retry import DEFAULT_POLICY, Policy
from windlass.core.validation import COUNT_MAX, SECONDS_MAX, URL_MAX, check_queue_of_users
from windlass.errors import Invalid, InvalidState

MS_MAX = int(SECONDS_MAX * 1000)
TOKEN_TTL_MAX_S = 7200  # the longest life of a token that a worker shows

Ms = Annotated[int, Meta(ge=1, le=MS_MAX)]
Url = Annotated[str, Meta(min_length=1, max_length=URL_MAX, description="http:// or https://, without a user")]
Word = Annotated[str, Meta(min_length=1, max_length=200)]
Variable = Annotated[str, Meta(pattern="^[A-Za-z_][A-Za-z0-9_]{0,199}$")]
Command = Annotated[list[Annotated[str, Meta(min_length=1, max_length=4000)]], Meta(min_length=1, max_length=100)]

HIDDEN = "(hidden)"


class Outgoing(msgspec.Struct, frozen=True):
    """How the attempts of a queue are sent: by which effect, how long an attempt may be silent after a heartbeat, how
    much longer a heartbeat counts (those within that time need no write), and how soon silence has to be noticed.
    `own_lease`: a task may have another timeout (`Policy.lease_s`)."""

    effect: str
    timeout_ms: int
    slack_ms: int
    notice_ms: int
    labels: tuple[str, ...] = ()  # of its workers, which tasks may require
    own_lease: bool = False


class Delivery(msgspec.Struct, frozen=True, tag_field="type", forbid_unknown_fields=True, kw_only=True):
    """One way in which work reaches workers. The kernel uses only this interface and knows no delivery by name."""

    mark: ClassVar[int]  # in its lease tokens, from 1 to 15; never reused for another delivery
    effect: ClassVar[str | None] = None  # carries an attempt to its worker; None if workers claim or ask for theirs
    claimed: ClassVar[bool] = False  # whether workers with leases claim its tasks
    runs_programs: ClassVar[bool] = False  # on servers: its settings give the rights of the server's user
    loss_is_failure: ClassVar[bool] = False  # whether a lost lease counts as a failed attempt
    max_attempts: ClassVar[int] = DEFAULT_POLICY.max_attempts  # the default
    max_losses: ClassVar[int] = DEFAULT_POLICY.max_losses

    def checked(self) -> Self:
        """The delivery with its defaults filled in. Raises Invalid naming the first setting that cannot be accepted."""
        return self

    @property
    def needs_server_admin(self) -> bool:
        """Whether only an admin of all namespaces may set it up: it runs programs on servers, or sends secrets."""
        return self.runs_programs

    def without_secrets(self) -> Self:
        """The delivery as callers without the admin role may see it: variables and headers carry passwords."""
        return self

    @property
    def outgoing(self) -> Outgoing | None:
        """None for a queue whose attempts begin when a worker claims them."""
        return None

    @property
    def target_url(self) -> str | None:
        """The URL that servers call."""
        return None

    @property
    def signed(self) -> bool:
        """Whether requests are signed with a secret of the queue."""
        return False

    @property
    def cancel_grace_s(self) -> float:
        """How long a worker may take to stop."""
        return DEFAULT_POLICY.cancel_grace_s


class Pull(Delivery, frozen=True, tag="pull"):
    """Workers claim. The default."""

    mark = 1
    claimed = True


PULL = Pull()


def type_of(delivery: Delivery | type[Delivery]) -> str:
    """The name of its type."""
    return str(delivery.__struct_config__.tag)


# --------------------------------------------------------------------------------------------- registry

DELIVERIES: dict[str, type[Delivery]] = {}  # by type
TYPES_BY_MARK: dict[int, str] = {}


def register_delivery(*kinds: type[Delivery]) -> None:
    """Register deliveries in this process, before any is decoded: `serve` does so when it is imported. Registering a
    class twice has no effect."""
    for kind in kinds:
        name = type_of(kind)
        if DELIVERIES.get(name) is kind:
            continue
        if name in DELIVERIES or kind.mark in TYPES_BY_MARK:
            raise ValueError(f"delivery {name} ({kind.mark}): its type or its mark belongs to another delivery")
        if any_delivery.cache_info().currsize:
            raise ValueError(f"delivery {name} is registered too late: deliveries were decoded without it")
        DELIVERIES[name] = kind
        TYPES_BY_MARK[kind.mark] = name


@cache
def any_delivery() -> Any:
    """The union of all registered deliveries, for msgspec."""
    return reduce(or_, DELIVERIES.values())


@cache
def _decoder() -> msgspec.json.Decoder[Delivery]:
    return msgspec.json.Decoder(any_delivery())


def decode_delivery(text: str) -> Delivery:
    """Decode a stored delivery. Raises InvalidState for a type that is not registered in this process."""
    try:
        return _decoder().decode(text)
    except msgspec.ValidationError:
        name = msgspec.json.decode(text).get("type")
        if name in DELIVERIES:
            raise
        known = ", ".join(DELIVERIES)
        raise InvalidState(f"delivery {name!r} is not known to this process, which knows {known}") from None


def outgoing_effects() -> frozenset[str]:
    """The effects that carry attempts to workers."""
    return frozenset(kind.effect for kind in DELIVERIES.values() if kind.effect is not None)


def outgoing_types() -> tuple[str, ...]:
    """Deliveries whose attempts the engine begins and sends."""
    return tuple(name for name, kind in DELIVERIES.items() if kind.effect is not None)


def claimed_types() -> tuple[str, ...]:
    """Deliveries whose workers claim from the line."""
    return tuple(name for name, kind in DELIVERIES.items() if kind.claimed)


register_delivery(Pull)


# --------------------------------------------------------------------------------------------- settings of a queue


def checked_delivery(delivery: Delivery) -> Delivery:
    """See `Delivery.checked`."""
    if not isinstance(delivery, Delivery):
        raise Invalid(f"must be a delivery, not {type(delivery).__name__}", field="delivery")
    return delivery.checked()


def check_claimable(field: str, queues: Sequence[str], deliveries: Mapping[str, Delivery]) -> None:
    """Raise Invalid if tasks of none of these queues can be claimed: the worker would wait for ever. A queue that was
    never configured has delivery `pull`. Our own queues have no workers."""
    for queue in queues:
        check_queue_of_users(field, queue)
    types = {queue: type_of(deliveries.get(queue, PULL)) for queue in queues}
    if "pull" not in types.values():
        named = ", ".join(f"{queue} ({type_})" for queue, type_ in sorted(types.items()))
        raise Invalid(f"no tasks can be claimed from {named}: they are delivered in another way", field=field)


class QueueSettings(msgspec.Struct, frozen=True):
    """The settings of a queue. `policy` applies to tasks that have none of their own."""

    config: QueueConfig = QueueConfig()
    delivery: Delivery = PULL
    policy: Policy = DEFAULT_POLICY
    signing_secret: str | None = None
    previous_secret: str | None = None  # during a rotation, pushes and calls are signed with both


class RetryForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How often and how soon a task of the queue is tried again. `max_attempts` limits failures, `max_losses` lost
    workers; the defaults are those of the queue's delivery. Delays grow from `initial_ms` by `multiplier` up to
    `max_ms`."""

    max_attempts: Annotated[int, Meta(ge=1, le=COUNT_MAX)] | None = None
    max_losses: Annotated[int, Meta(ge=0, le=COUNT_MAX)] | None = None
    initial_ms: Annotated[float, Meta(ge=0, le=MS_MAX)] = DEFAULT_POLICY.retry_delay_s * 1000
    multiplier: Annotated[float, Meta(ge=1, le=1000)] = DEFAULT_POLICY.retry_factor
    max_ms: Annotated[float, Meta(ge=0, le=MS_MAX)] = DEFAULT_POLICY.retry_delay_max_s * 1000


def policy_of(retry: RetryForm | None, delivery: Delivery) -> Policy:
    """The policy of a queue's tasks; `DEFAULT_POLICY` itself if it equals that."""
    form = retry or RetryForm()
    if form.max_losses is not None and delivery.loss_is_failure:
        raise Invalid(
            f"a queue with delivery {type_of(delivery)} counts a lost lease as a failed attempt: set max_attempts",
            field="retry.max_losses",
        )
    policy = Policy(
        max_attempts=delivery.max_attempts if form.max_attempts is None else form.max_attempts,
        max_losses=delivery.max_losses if form.max_losses is None else form.max_losses,
        cancel_grace_s=delivery.cancel_grace_s,
        retry_delay_s=form.initial_ms / 1000,
        retry_factor=form.multiplier,
        retry_delay_max_s=form.max_ms / 1000,
    )
    return DEFAULT_POLICY if policy == DEFAULT_POLICY else policy


def retry_of(policy: Policy, delivery: Delivery) -> RetryForm:
    """The form from which `policy_of` makes this policy."""
    return RetryForm(
        max_attempts=policy.max_attempts,
        max_losses=None if delivery.loss_is_failure else policy.max_losses,
        initial_ms=policy.retry_delay_s * 1000,
        multiplier=policy.retry_factor,
        max_ms=policy.retry_delay_max_s * 1000,
    )
