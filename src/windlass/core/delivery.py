"""How work reaches the workers of a queue, and what its tasks are allowed when they do not say.

Owns the shape, the defaults and the ranges of a queue's settings. Who carries a delivery out is not known here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal, Self, get_args

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from windlass.core.carrier import ADDRESS_MAX, CarrierName, address_at, check_address, check_carrier
from windlass.core.check import COUNT_MAX, SECONDS_MAX, URL_MAX, check_name, check_names, check_text, check_url
from windlass.core.error import Invalid
from windlass.core.header import check_headers, secret_names
from windlass.core.queue import QueueConfig
from windlass.core.retry import DEFAULT_POLICY, Policy

MS_MAX = int(SECONDS_MAX * 1000)
TOKEN_TTL_MAX_S = 7200

Ms = Annotated[int, Meta(ge=1, le=MS_MAX)]
Amount = Annotated[int, Meta(ge=0, le=2**53)]
Url = Annotated[str, Meta(min_length=1, max_length=URL_MAX, description="http:// or https://, without a user")]
Word = Annotated[str, Meta(min_length=1, max_length=200)]
Variable = Annotated[str, Meta(pattern="^[A-Za-z_][A-Za-z0-9_]{0,199}$")]
Command = Annotated[list[Annotated[str, Meta(min_length=1, max_length=4000)]], Meta(min_length=1, max_length=100)]
Script = Annotated[str, Meta(min_length=1, max_length=100_000)]
_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_LAMBDA = re.compile(r"[A-Za-z0-9-_:$]{1,200}")
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,199}")
_PATH_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9.:_-]{0,199}")

PUSH, INVOKE, LAUNCH = "push", "invoke", "launch"
HEARTBEAT_TIMEOUT_MS = 90_000
LAUNCH_TIMEOUT_MS = 3_600_000
LEASE_ATTEMPTS = 3  # of queues where a lease that was lost counts like a failed attempt
HIDDEN = "(hidden)"


class Outgoing(msgspec.Struct, frozen=True):
    """How the attempts of a queue are sent out: by which effect, how long one may be silent once it was heard of, how
    much longer a sign of life is written down for (those that come within it need not be), and how soon silence has to
    be noticed."""

    effect: str
    timeout_ms: int
    slack_ms: int
    notice_ms: int
    labels: tuple[str, ...] = ()  # that tasks may require


class _Delivery(msgspec.Struct, frozen=True, tag_field="type", forbid_unknown_fields=True, kw_only=True):
    """One way in which work reaches workers, and all that others ask of it: who knows none of the ways by name knows
    the next one too."""

    mark: ClassVar[int]  # of its lease tokens, from 1 to 15; never given to another
    effect: ClassVar[str | None] = None  # that carries an attempt; None where workers ask for theirs
    claimed: ClassVar[bool] = False  # from the line, by workers with leases
    runs_programs: ClassVar[bool] = False  # on servers: whoever sets it up can do there what they can
    loss_is_failure: ClassVar[bool] = False  # a lease that was lost counts like a failed attempt
    max_attempts: ClassVar[int] = DEFAULT_POLICY.max_attempts  # if nobody says so
    max_losses: ClassVar[int] = DEFAULT_POLICY.max_losses

    def checked(self) -> Self:
        """Itself, with its defaults filled in. Raises Invalid naming the first setting that cannot be accepted."""
        return self

    @property
    def needs_server_admin(self) -> bool:
        """Whether only an admin of all namespaces may set it up: it runs programs on servers, or sends secrets."""
        return self.runs_programs

    def without_secrets(self) -> Self:
        """As those may see it who are no admins: variables of programs and headers carry passwords."""
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


class Pull(_Delivery, frozen=True, tag="pull"):
    """Workers claim; the default."""

    mark = 1
    claimed = True


class Resources(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a task of the queue may use; told to its worker."""

    memory_bytes: Amount = 536_870_912
    cpu_millicores: Amount = 1000
    timeout_ms: Ms = 3_600_000


class CloudTasks(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Google Cloud Tasks carries the pushes. It calls the worker as this service account, if one is named."""

    project: Word
    location: Word
    queue: Word
    service_account_email: Word | None = None
    audience: Url | None = None
    dispatch_deadline_s: Annotated[int, Meta(ge=15, le=1800)] = 600

    def check(self) -> None:
        """Its parts become parts of a path, and so must not be able to lead anywhere else."""
        for name in ("project", "location", "queue"):
            if not _PATH_WORD.fullmatch(getattr(self, name)):
                raise Invalid("must be letters, digits, dashes, dots or colons", field=f"delivery.cloud_tasks.{name}")
        if self.audience is not None:
            check_url("delivery.cloud_tasks.audience", self.audience)


class Push(_Delivery, frozen=True, tag="push", kw_only=True):
    """The engine sends each task to a URL; the worker calls back. A heartbeat interval given alone moves the timeout to
    three times itself where the default would be too short. Tasks that require labels are sent if the queue says that
    its workers have them. `headers` go with each push; `${NAME}` in a value is the server's variable
    `PUSH_SECRET_NAME`."""

    url: Url
    heartbeat_interval_ms: Ms = 30_000
    heartbeat_timeout_ms: Ms | None = None
    cancel_grace_period_ms: Annotated[int, Meta(ge=0, le=MS_MAX)] = 30_000
    dispatch_timeout_ms: Ms = 30_000
    token_ttl_seconds: Annotated[int, Meta(ge=1, le=TOKEN_TTL_MAX_S)] = 3600
    labels: Annotated[tuple[Word, ...], Meta(max_length=64)] = ()
    resources: Resources = Resources()
    headers: dict[str, str] = {}
    cloud_tasks: CloudTasks | None = None

    mark = 3
    effect = PUSH

    def checked(self) -> Self:
        check_url("delivery.url", self.url)
        check_names("delivery.labels", self.labels)
        check_headers("delivery.headers", self.headers)
        if HIDDEN in self.headers.values():
            raise Invalid(f"a value is {HIDDEN}, which stands for one that you may not see", field="delivery.headers")
        if self.cloud_tasks is not None:
            self.cloud_tasks.check()
        return self._with_timeout()

    def _with_timeout(self) -> Self:
        """A worker may lose one heartbeat and live: the timeout is at least twice the interval."""
        interval_ms = self.heartbeat_interval_ms
        if self.heartbeat_timeout_ms is None:
            enough = 2 * interval_ms <= HEARTBEAT_TIMEOUT_MS
            return replace(self, heartbeat_timeout_ms=HEARTBEAT_TIMEOUT_MS if enough else min(3 * interval_ms, MS_MAX))
        if self.heartbeat_timeout_ms < 2 * interval_ms:
            raise Invalid("must be at least twice heartbeat_interval_ms", field="delivery.heartbeat_timeout_ms")
        return self

    @property
    def outgoing(self) -> Outgoing:
        """Silence is looked for twice an interval, so that the slack is how long it goes unnoticed anyway."""
        half_ms = self.heartbeat_interval_ms // 2
        return Outgoing(PUSH, self.heartbeat_timeout_ms or HEARTBEAT_TIMEOUT_MS, half_ms, half_ms, self.labels)

    @property
    def needs_server_admin(self) -> bool:
        return bool(secret_names(self.headers))

    def without_secrets(self) -> Self:
        return replace(self, headers=dict.fromkeys(self.headers, HIDDEN))

    @property
    def target_url(self) -> str:
        return self.url

    @property
    def signed(self) -> bool:
        return True

    @property
    def cancel_grace_s(self) -> float:
        return self.cancel_grace_period_ms / 1000


class Wakeup(_Delivery, frozen=True, tag="wakeup", kw_only=True):
    """A message with the task's id goes to a carrier; the worker that gets it claims the lease. `address` is a subject
    of NATS, or the name or URL of a queue of SQS; one is made from the names where none is given. A worker has a
    message for `visibility_ms` unless it asks for longer; one that was delivered more than `max_deliveries` times is
    buried. A task that nobody claims is spoken of again after `resend_ms`, then ever more seldom, but at least every
    `resend_max_ms`. Where its tasks run code that is not `trusted`, that gets no `secrets`, which are names of
    variables of the worker."""

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
        check_carrier("delivery.carrier", self.carrier)
        if self.address is not None:
            check_address("delivery.address", self.carrier, self.address)
        for name in self.secrets:
            if not _VARIABLE.fullmatch(name):
                raise Invalid("must be names of environment variables, such as SHOP_TOKEN", field="delivery.secrets")
        if self.secrets and not self.trusted:
            raise Invalid("code that is not trusted gets none", field="delivery.secrets")
        return self

    def address_of(self, namespace: str, queue: str) -> str:
        """Where the wake-ups of a queue go; empty for PostgreSQL, which knows queues by their names."""
        return address_at(self.carrier, self.address, namespace, queue)


class Invoke(_Delivery, frozen=True, tag="invoke", kw_only=True):
    """A function is called for each task: at a URL, with a signature, or one of AWS Lambda, by its name or ARN. The
    engine holds the lease for it, for `lease_ms` from the call or from its last heartbeat. Its code is trusted: it has
    a worker's certificate."""

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
            raise Invalid("give a url or a function", field="delivery.url")
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
        return Outgoing(INVOKE, self.lease_ms, self.lease_ms // 8, self.lease_ms // 8)

    @property
    def target_url(self) -> str | None:
        return self.url

    @property
    def signed(self) -> bool:
        return self.url is not None  # AWS knows by itself who calls a function of its own


class Machine(_Delivery, frozen=True, tag="machine", kw_only=True, omit_defaults=True):
    """A machine that lives for one task is started by a launcher: a `command` of the server's host (process), or an
    `image` (docker, kubernetes, fly), in which a command is what to run instead of its own. `secrets` are names of
    variables of the server that a machine gets as well. It has `run_timeout_ms` from its start to its callback; how
    long of that it may upload and call back is told to it. What it made is kept for `keep_object_ms`."""

    launcher: Word
    command: Command | None = None
    image: Word | None = None
    region: Word | None = None
    cpus: Annotated[int, Meta(ge=1, le=1024)] = 2
    memory_mb: Annotated[int, Meta(ge=16, le=16_777_216)] = 1024
    env: dict[Variable, Annotated[str, Meta(max_length=10_000)]] = {}
    secrets: Annotated[tuple[Variable, ...], Meta(max_length=100)] = ()
    spawn_timeout_ms: Ms = 30_000
    run_timeout_ms: Ms = 600_000
    upload_timeout_ms: Ms = 120_000
    callback_timeout_ms: Ms = 10_000
    cancel_grace_period_ms: Annotated[int, Meta(ge=0, le=MS_MAX)] = 10_000
    keep_object_ms: Ms = 86_400_000
    callback_auth: Literal["required", "optional"] = "required"

    mark = 5
    effect = LAUNCH
    runs_programs = True
    max_attempts, max_losses = 1, 0  # what a machine makes is not made again unless somebody asks for it

    def checked(self) -> Self:
        check_name("delivery.launcher", self.launcher)
        for word in self.command or ():
            check_text("delivery.command", word, 4000)
        for name, value in self.env.items():
            if "\x00" in value:
                raise Invalid("must not contain a NUL", field=f"delivery.env.{name}")
        return self

    def without_secrets(self) -> Self:
        return replace(self, env=dict.fromkeys(self.env, HIDDEN))

    @property
    def outgoing(self) -> Outgoing:
        return Outgoing(LAUNCH, LAUNCH_TIMEOUT_MS, 0, 1000)

    @property
    def cancel_grace_s(self) -> float:
        return self.cancel_grace_period_ms / 1000


class StdioHandler(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """What a kind means to a stdio worker: a Python function, as `module:function`, or a script."""

    function: Annotated[str, Meta(min_length=3, max_length=500)] | None = None
    script: Script | None = None

    def check(self, field: str) -> None:
        if (self.function is None) == (self.script is None):
            raise Invalid("give a function or a script", field=field)
        if self.function is not None and not _FUNCTION.fullmatch(self.function):
            raise Invalid("must be like module:function", field=f"{field}.function")


class Stdio(_Delivery, frozen=True, tag="stdio", kw_only=True, omit_defaults=True):
    """A pool of child processes that speak JSON lines, on each server that runs them: any command, or our worker for
    Python in the interpreter `python`, with `requirements` in an environment made for them. Payloads are inputs. With
    `kinds_are_scripts`, a kind without a handler is itself the script: for programs whose scripts are names, since
    whoever submits chooses it. Of the server's own variables a program sees the ordinary ones (PATH, HOME, LANG, …)
    and those named in `secrets`."""

    command: Command | None = None
    python: Annotated[str, Meta(min_length=1, max_length=1000)] | None = None
    requirements: Annotated[tuple[Word, ...], Meta(max_length=200)] = ()
    handlers: dict[Word, StdioHandler] = {}
    kinds_are_scripts: bool = False
    init: Script | None = None
    cwd: Annotated[str, Meta(min_length=1, max_length=1000)] | None = None
    env: dict[Word, Annotated[str, Meta(max_length=10_000)]] = {}
    secrets: Annotated[tuple[Variable, ...], Meta(max_length=100)] = ()
    workers: Annotated[int, Meta(ge=1, le=1000)] = 1
    tasks_per_worker: Annotated[int, Meta(ge=1, le=1000)] = 1
    cancel_grace_period_ms: Annotated[int, Meta(ge=0, le=MS_MAX)] = 30_000

    mark = 6
    claimed = True
    runs_programs = True

    def checked(self) -> Self:
        for word in self.command or ():
            check_text("delivery.command", word, 4000)
        if self.command is not None and (self.python is not None or self.requirements):
            raise Invalid(
                "a command brings its own environment: leave out python and requirements", field="delivery.command"
            )
        if self.command is None and self.kinds_are_scripts:
            raise Invalid("whoever submits could run any code: give handlers", field="delivery.kinds_are_scripts")
        if not self.handlers and not self.kinds_are_scripts:
            raise Invalid("say what runs a kind: its function, or a script", field="delivery.handlers")
        if any(word.startswith("-") for word in (*self.requirements, self.python or "")):
            raise Invalid("must be packages, not options", field="delivery.requirements")
        for kind, handler in self.handlers.items():
            handler.check(f"delivery.handlers.{kind}")
        return self

    def without_secrets(self) -> Self:
        return replace(self, env=dict.fromkeys(self.env, HIDDEN))

    @property
    def cancel_grace_s(self) -> float:
        return self.cancel_grace_period_ms / 1000


Delivery = Pull | Push | Wakeup | Invoke | Machine | Stdio
DELIVERIES: tuple[type[_Delivery], ...] = get_args(Delivery)
PULL = Pull()


def type_of(delivery: _Delivery | type[_Delivery]) -> str:
    """The name of its type, as it is stored and shown."""
    return str(delivery.__struct_config__.tag)


OUTGOING_EFFECTS = frozenset(kind.effect for kind in DELIVERIES if kind.effect is not None)
OUTGOING_TYPES = tuple(type_of(kind) for kind in DELIVERIES if kind.effect is not None)
CLAIMED_TYPES = tuple(type_of(kind) for kind in DELIVERIES if kind.claimed)


def checked_delivery(delivery: Delivery) -> Delivery:
    """See `_Delivery.checked`."""
    if not isinstance(delivery, _Delivery):
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
