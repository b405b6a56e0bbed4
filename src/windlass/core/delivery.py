"""How work reaches the workers of a queue, and what its tasks are allowed when they do not say.

Owns the base class of deliveries and their registry, the default delivery (`Pull`), and the settings of a queue. The
other deliveries are in the rooms of their contracts, and `serve` registers them. Knows no contract.
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
from windlass.core.validation import COUNT_MAX, SECONDS_MAX, URL_MAX
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
    """How the attempts of a queue are sent: by which effect, how long one may be silent after a heartbeat, by how much
    longer a heartbeat is recorded (those within that time need no write), and how soon silence has to be noticed."""

    effect: str
    timeout_ms: int
    slack_ms: int
    notice_ms: int
    labels: tuple[str, ...] = ()  # that tasks may require


class Delivery(msgspec.Struct, frozen=True, tag_field="type", forbid_unknown_fields=True, kw_only=True):
    """One way in which work reaches workers. The kernel uses only this interface, so that it knows no delivery by
    name."""

    mark: ClassVar[int]  # of its lease tokens, from 1 to 15; never given to another
    effect: ClassVar[str | None] = None  # that carries an attempt; None where workers ask for theirs
    claimed: ClassVar[bool] = False  # from the line, by workers with leases
    runs_programs: ClassVar[bool] = (
        False  # on servers: a person who may set it up can do there what the server's user can
    )
    loss_is_failure: ClassVar[bool] = False  # a lease that was lost counts like a failed attempt
    max_attempts: ClassVar[int] = DEFAULT_POLICY.max_attempts  # by default
    max_losses: ClassVar[int] = DEFAULT_POLICY.max_losses

    def checked(self) -> Self:
        """Itself, with its defaults filled in. Raises Invalid naming the first setting that cannot be accepted."""
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
        """None for a queue whose attempts begin when a worker asks for them."""
        return None

    @property
    def target_url(self) -> str | None:
        """What servers are made to call."""
        return None

    @property
    def signed(self) -> bool:
        """Whether what is sent carries a signature, made with a secret of the queue."""
        return False

    @property
    def cancel_grace_s(self) -> float:
        """How long a worker may take to stop."""
        return DEFAULT_POLICY.cancel_grace_s


class Pull(Delivery, frozen=True, tag="pull"):
    """Workers claim; the default."""

    mark = 1
    claimed = True


PULL = Pull()


def type_of(delivery: Delivery | type[Delivery]) -> str:
    """The name of its type, as it is stored and shown."""
    return str(delivery.__struct_config__.tag)


# --------------------------------------------------------------------------------------------- registry

DELIVERIES: dict[str, type[Delivery]] = {}  # by type
TYPES_BY_MARK: dict[int, str] = {}


def register_delivery(*kinds: type[Delivery]) -> None:
    """Make deliveries known to this process. Call it before anything is decoded: `serve` does so when it is imported.
    Registering a class twice has no effect."""
    for kind in kinds:
        name = type_of(kind)
        if DELIVERIES.get(name) is kind:
            continue
        if name in DELIVERIES or kind.mark in TYPES_BY_MARK:
            raise ValueError(f"delivery {name} ({kind.mark}): its type or its mark belongs to another delivery")
        if any_delivery.cache_info().currsize:
            raise ValueError(f"delivery {name} comes too late: deliveries were decoded without it")
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
    """A delivery as it is stored. Raises InvalidState for a type that is not registered in this process."""
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
    """A worker that claims would wait for ever where nothing is there to be claimed. Raises Invalid if that is so of
    all the queues that it names; one that nobody configured is like any other."""
    elsewhere = {queue: type_of(deliveries[queue]) for queue in queues if queue in deliveries}
    if all(elsewhere.get(queue, "pull") != "pull" for queue in queues):
        named = ", ".join(f"{queue} ({how})" for queue, how in sorted(elsewhere.items()))
        raise Invalid(f"no tasks can be claimed from {named}: they are delivered in another way", field=field)


class QueueSettings(msgspec.Struct, frozen=True):
    """All that is set for a queue. `policy` is what its tasks get that ask for none of their own."""

    config: QueueConfig = QueueConfig()
    delivery: Delivery = PULL
    policy: Policy = DEFAULT_POLICY
    signing_secret: str | None = None
    previous_secret: str | None = None  # of a rotation that is not over: pushes and calls are signed with both


class RetryForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How often and how soon a task of the queue is tried again. `max_attempts` counts failures, `max_losses` workers
    that vanished; what is not given is what the contract of the queue's workers says. Delays grow from `initial_ms` by
    `multiplier` up to `max_ms`."""

    max_attempts: Annotated[int, Meta(ge=1, le=COUNT_MAX)] | None = None
    max_losses: Annotated[int, Meta(ge=0, le=COUNT_MAX)] | None = None
    initial_ms: Annotated[float, Meta(ge=0, le=MS_MAX)] = DEFAULT_POLICY.retry_delay_s * 1000
    multiplier: Annotated[float, Meta(ge=1, le=1000)] = DEFAULT_POLICY.retry_factor
    max_ms: Annotated[float, Meta(ge=0, le=MS_MAX)] = DEFAULT_POLICY.retry_delay_max_s * 1000


def policy_of(retry: RetryForm | None, delivery: Delivery) -> Policy:
    """What the tasks of a queue are allowed; the very default if nothing was asked for."""
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
    """The form that makes this policy."""
    return RetryForm(
        max_attempts=policy.max_attempts,
        max_losses=None if delivery.loss_is_failure else policy.max_losses,
        initial_ms=policy.retry_delay_s * 1000,
        multiplier=policy.retry_factor,
        max_ms=policy.retry_delay_max_s * 1000,
    )
