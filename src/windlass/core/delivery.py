"""How work reaches the workers of a queue, and what its tasks are allowed when they do not say.

Owns the shape, the defaults and the ranges of a queue's settings. Who carries a delivery out is not known here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from windlass.core.check import COUNT_MAX, SECONDS_MAX, check_name, check_names, check_text
from windlass.core.error import Invalid
from windlass.core.queue import QueueConfig
from windlass.core.retry import DEFAULT_POLICY, Policy

MS_MAX = int(SECONDS_MAX * 1000)
URL_MAX = 2000
TOKEN_TTL_MAX_S = 7200

Ms = Annotated[int, Meta(ge=1, le=MS_MAX)]
Amount = Annotated[int, Meta(ge=0, le=2**53)]
Url = Annotated[str, Meta(min_length=1, max_length=URL_MAX, description="http:// or https://, without a user")]
Word = Annotated[str, Meta(min_length=1, max_length=200)]
Variable = Annotated[str, Meta(pattern="^[A-Za-z_][A-Za-z0-9_]{0,199}$")]
Command = Annotated[list[Annotated[str, Meta(min_length=1, max_length=4000)]], Meta(min_length=1, max_length=100)]
Script = Annotated[str, Meta(min_length=1, max_length=100_000)]
_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_URL = re.compile(r"https?://[^\s/?#@]+([/?#]\S*)?", re.IGNORECASE)
_SUBJECT = re.compile(r"[^\s.*>]+(\.[^\s.*>]+)*")
_SQS_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}")
_LAMBDA = re.compile(r"[A-Za-z0-9-_:$]{1,200}")
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,199}")
CARRIERS = ("postgres", "nats", "sqs")
_PATH_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9.:_-]{0,199}")


class _Delivery(msgspec.Struct, frozen=True, tag_field="type", forbid_unknown_fields=True, kw_only=True):
    pass


class Pull(_Delivery, frozen=True, tag="pull"):
    """Workers claim; the default."""


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


class Push(_Delivery, frozen=True, tag="push", kw_only=True):
    """The engine sends each task to a URL; the worker calls back. A heartbeat interval given alone moves the timeout to
    three times itself where the default would be too short. Tasks that require labels are sent if the queue says that
    its workers have them."""

    url: Url
    heartbeat_interval_ms: Ms = 30_000
    heartbeat_timeout_ms: Ms | None = None
    cancel_grace_period_ms: Annotated[int, Meta(ge=0, le=MS_MAX)] = 30_000
    dispatch_timeout_ms: Ms = 30_000
    token_ttl_seconds: Annotated[int, Meta(ge=1, le=TOKEN_TTL_MAX_S)] = 3600
    labels: Annotated[tuple[Word, ...], Meta(max_length=64)] = ()
    resources: Resources = Resources()
    cloud_tasks: CloudTasks | None = None


class Wakeup(_Delivery, frozen=True, tag="wakeup", kw_only=True):
    """A message with the task's id goes to a carrier; the worker that gets it claims the lease. `address` is a subject
    of NATS, or the name or URL of a queue of SQS; one is made from the names where none is given. A worker has a
    message for `visibility_ms` unless it asks for longer; one that was delivered more than `max_deliveries` times is
    buried. A task that nobody claims is spoken of again after `resend_ms`, then ever more seldom. Where its tasks run
    code that is not `trusted`, that gets no `secrets`, which are names of variables of the worker."""

    carrier: Literal["postgres", "nats", "sqs"] = "postgres"
    address: Annotated[str, Meta(min_length=1, max_length=500)] | None = None
    lease_ms: Ms = 60_000
    visibility_ms: Annotated[int, Meta(ge=1000, le=43_200_000)] = 60_000
    max_deliveries: Annotated[int, Meta(ge=1, le=1000)] = 10
    resend_ms: Annotated[int, Meta(ge=1000, le=MS_MAX)] = 60_000
    trusted: bool = True
    secrets: Annotated[tuple[Word, ...], Meta(max_length=100)] = ()


class Invoke(_Delivery, frozen=True, tag="invoke", kw_only=True):
    """A function is called for each task: at a URL, or one of AWS Lambda, by its name or ARN. The engine holds the
    lease for it, for `lease_ms` from the call or from its last heartbeat. Its code is trusted: it has a worker's
    certificate."""

    url: Url | None = None
    function: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    lease_ms: Ms = 900_000
    trusted: bool = True


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


class StdioHandler(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """What a kind means to a stdio worker: a Python function, as `module:function`, or a script."""

    function: Annotated[str, Meta(min_length=3, max_length=500)] | None = None
    script: Script | None = None


class Stdio(_Delivery, frozen=True, tag="stdio", kw_only=True, omit_defaults=True):
    """A pool of child processes that speak JSON lines, on each server that runs them: any command, or our worker for
    Python in the interpreter `python`, with `requirements` in an environment made for them. Payloads are inputs. With
    `kinds_are_scripts`, a kind without a handler is itself the script: for programs whose scripts are names, since
    whoever submits chooses it."""

    command: Command | None = None
    python: Annotated[str, Meta(min_length=1, max_length=1000)] | None = None
    requirements: Annotated[tuple[Word, ...], Meta(max_length=200)] = ()
    handlers: dict[Word, StdioHandler] = {}
    kinds_are_scripts: bool = False
    init: Script | None = None
    cwd: Annotated[str, Meta(min_length=1, max_length=1000)] | None = None
    env: dict[Word, Annotated[str, Meta(max_length=10_000)]] = {}
    workers: Annotated[int, Meta(ge=1, le=1000)] = 1
    tasks_per_worker: Annotated[int, Meta(ge=1, le=1000)] = 1
    cancel_grace_period_ms: Annotated[int, Meta(ge=0, le=MS_MAX)] = 30_000


Delivery = Pull | Push | Wakeup | Invoke | Machine | Stdio
PULL = Pull()
HEARTBEAT_TIMEOUT_MS = 90_000
LAUNCH_TIMEOUT_MS = 3_600_000


class Outgoing(msgspec.Struct, frozen=True):
    """How the attempts of a queue are sent out: by which effect, how long one may be silent once it was heard of, how
    much longer a sign of life is written down for (those that come within it need not be), and how soon silence has to
    be noticed."""

    effect: str
    timeout_ms: int
    slack_ms: int
    notice_ms: int
    labels: tuple[str, ...] = ()  # that tasks may require


PUSH, INVOKE, LAUNCH = "push", "invoke", "launch"
OUTGOING_EFFECTS = frozenset({PUSH, INVOKE, LAUNCH})


def outgoing_of(delivery: Delivery) -> Outgoing | None:
    """None for a queue whose attempts begin when a worker asks for them."""
    match delivery:
        case Push():  # silence is looked for twice an interval, so that the slack is how long it goes unnoticed anyway
            half_ms = delivery.heartbeat_interval_ms // 2
            timeout_ms = delivery.heartbeat_timeout_ms or HEARTBEAT_TIMEOUT_MS
            return Outgoing(PUSH, timeout_ms, half_ms, half_ms, delivery.labels)
        case Invoke():
            return Outgoing(INVOKE, delivery.lease_ms, delivery.lease_ms // 8, delivery.lease_ms // 8)
        case Machine():
            return Outgoing(LAUNCH, LAUNCH_TIMEOUT_MS, 0, 1000)
        case _:
            return None


def type_of(delivery: Delivery) -> str:
    """The name of its type, as it is stored and shown."""
    return str(delivery.__struct_config__.tag)


def check_claimable(field: str, queues: Sequence[str], deliveries: Mapping[str, Delivery]) -> None:
    """A worker that claims would wait for ever where nothing is there to be claimed. Raises Invalid if that is so of
    all the queues that it names; one that nobody configured is like any other."""
    elsewhere = {queue: type_of(deliveries[queue]) for queue in queues if queue in deliveries}
    if all(elsewhere.get(queue, "pull") != "pull" for queue in queues):
        named = ", ".join(f"{queue} ({how})" for queue, how in sorted(elsewhere.items()))
        raise Invalid(f"no tasks can be claimed from {named}: they are delivered in another way", field=field)


class PushOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a server sends tasks out: where workers call back (None: where it listens), whether they may be on this
    machine, and who we are to Google Cloud Tasks (None: the machine's own account)."""

    callback_url: str | None = None
    loopback: bool = False
    google_token: str | None = None
    google_url: str | None = None


class QueueSettings(msgspec.Struct, frozen=True):
    """All that is set for a queue. `policy` is what its tasks get that ask for none of their own."""

    config: QueueConfig = QueueConfig()
    delivery: Delivery = PULL
    policy: Policy = DEFAULT_POLICY
    signing_secret: str | None = None
    previous_secret: str | None = None  # of a rotation that is not over: pushes are signed with both


def checked_delivery(delivery: Delivery) -> Delivery:
    """The delivery with its defaults filled in. Raises Invalid naming the first setting that cannot be accepted."""
    match delivery:
        case Push():
            check_url("delivery.url", delivery.url)
            check_names("delivery.labels", delivery.labels)
            if delivery.cloud_tasks is not None:
                _check_cloud_tasks(delivery.cloud_tasks)
            return _with_timeout(delivery)
        case Wakeup():
            _check_wakeup(delivery)
        case Invoke():
            _check_invoke(delivery)
        case Machine():
            _check_machine(delivery)
        case Stdio():
            _check_stdio(delivery)
        case Pull():
            pass
        case _:
            raise Invalid(f"must be a delivery, not {type(delivery).__name__}", field="delivery")
    return delivery


def _check_machine(machine: Machine) -> None:
    check_name("delivery.launcher", machine.launcher)
    for word in machine.command or ():
        check_text("delivery.command", word, 4000)
    for name, value in machine.env.items():
        if "\x00" in value:
            raise Invalid("must not contain a NUL", field=f"delivery.env.{name}")


def _check_stdio(stdio: Stdio) -> None:
    for word in stdio.command or ():
        check_text("delivery.command", word, 4000)
    if stdio.command is not None and (stdio.python is not None or stdio.requirements):
        raise Invalid(
            "a command brings its own environment: leave out python and requirements", field="delivery.command"
        )
    if stdio.command is None and stdio.kinds_are_scripts:
        raise Invalid("whoever submits could run any code: give handlers", field="delivery.kinds_are_scripts")
    if not stdio.handlers and not stdio.kinds_are_scripts:
        raise Invalid("say what runs a kind: its function, or a script", field="delivery.handlers")
    if any(word.startswith("-") for word in (*stdio.requirements, stdio.python or "")):
        raise Invalid("must be packages, not options", field="delivery.requirements")
    for kind, handler in stdio.handlers.items():
        field = f"delivery.handlers.{kind}"
        if (handler.function is None) == (handler.script is None):
            raise Invalid("give a function or a script", field=field)
        if handler.function is not None and not _FUNCTION.fullmatch(handler.function):
            raise Invalid("must be like module:function", field=f"{field}.function")


def _check_wakeup(wakeup: Wakeup) -> None:
    if wakeup.carrier not in CARRIERS:
        raise Invalid(f"must be {', '.join(CARRIERS)}", field="delivery.carrier")
    if wakeup.address is not None:
        check_text("delivery.address", wakeup.address, 500)
        if wakeup.carrier == "postgres":
            raise Invalid("PostgreSQL carries wake-ups by the name of the queue", field="delivery.address")
        if wakeup.carrier == "nats" and not _SUBJECT.fullmatch(wakeup.address):
            raise Invalid("must be a subject without wildcards", field="delivery.address")
        if wakeup.carrier == "sqs" and not (_URL.fullmatch(wakeup.address) or _SQS_NAME.fullmatch(wakeup.address)):
            raise Invalid("must be the name or the URL of a queue", field="delivery.address")
    for name in wakeup.secrets:
        if not _VARIABLE.fullmatch(name):
            raise Invalid("must be names of environment variables, such as SHOP_TOKEN", field="delivery.secrets")
    if wakeup.secrets and not wakeup.trusted:
        raise Invalid("code that is not trusted gets none", field="delivery.secrets")


def _check_invoke(invoke: Invoke) -> None:
    if (invoke.url is None) == (invoke.function is None):
        raise Invalid("give a url or a function", field="delivery.url")
    if invoke.url is not None:
        check_url("delivery.url", invoke.url)
    if invoke.function is not None and not _LAMBDA.fullmatch(invoke.function):
        raise Invalid("must be the name or the ARN of a function", field="delivery.function")
    if not invoke.trusted:
        raise Invalid(
            "a function holds the certificate of a worker, which cannot be kept from its code: use wakeup for code "
            "that is not trusted", field="delivery.trusted",
        )  # fmt: skip


def _check_cloud_tasks(via: CloudTasks) -> None:
    """These become parts of a path, and so must not be able to lead anywhere else."""
    for name in ("project", "location", "queue"):
        if not _PATH_WORD.fullmatch(getattr(via, name)):
            raise Invalid("must be letters, digits, dashes, dots or colons", field=f"delivery.cloud_tasks.{name}")
    if via.audience is not None:
        check_url("delivery.cloud_tasks.audience", via.audience)


def _with_timeout(push: Push) -> Push:
    """A worker may lose one heartbeat and live: the timeout is at least twice the interval."""
    interval_ms = push.heartbeat_interval_ms
    if push.heartbeat_timeout_ms is None:
        enough = 2 * interval_ms <= HEARTBEAT_TIMEOUT_MS
        return replace(push, heartbeat_timeout_ms=HEARTBEAT_TIMEOUT_MS if enough else min(3 * interval_ms, MS_MAX))
    if push.heartbeat_timeout_ms < 2 * interval_ms:
        raise Invalid("must be at least twice heartbeat_interval_ms", field="delivery.heartbeat_timeout_ms")
    return push


def check_url(field: str, url: str) -> None:
    check_text(field, url, URL_MAX)
    if not _URL.fullmatch(url):
        raise Invalid("must be an http or https URL without a user", field=field)


class RetryForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How often and how soon a task of the queue is tried again. `max_attempts` counts failures, `max_losses` workers
    that vanished; what is not given is what the contract of the queue's workers says. Delays grow from `initial_ms` by
    `multiplier` up to `max_ms`."""

    max_attempts: Annotated[int, Meta(ge=1, le=COUNT_MAX)] | None = None
    max_losses: Annotated[int, Meta(ge=0, le=COUNT_MAX)] | None = None
    initial_ms: Annotated[float, Meta(ge=0, le=MS_MAX)] = DEFAULT_POLICY.retry_delay_s * 1000
    multiplier: Annotated[float, Meta(ge=1, le=1000)] = DEFAULT_POLICY.retry_factor
    max_ms: Annotated[float, Meta(ge=0, le=MS_MAX)] = DEFAULT_POLICY.retry_delay_max_s * 1000


LEASE_ATTEMPTS = 3  # of queues where a lease that was lost counts like a failed attempt


def _budgets(delivery: Delivery) -> tuple[int, int]:
    """How many failures and losses a task is allowed if nobody says so."""
    if isinstance(delivery, Machine):
        return 1, 0  # what a machine makes is not made again unless somebody asks for it
    return LEASE_ATTEMPTS if isinstance(
        delivery, Wakeup | Invoke
    ) else DEFAULT_POLICY.max_attempts, DEFAULT_POLICY.max_losses


def policy_of(retry: RetryForm | None, delivery: Delivery) -> Policy:
    """What the tasks of a queue are allowed; the very default if nothing was asked for."""
    grace_s = DEFAULT_POLICY.cancel_grace_s
    if isinstance(delivery, Push | Stdio | Machine):
        grace_s = delivery.cancel_grace_period_ms / 1000
    form, (attempts, losses) = retry or RetryForm(), _budgets(delivery)
    policy = Policy(
        max_attempts=attempts if form.max_attempts is None else form.max_attempts,
        max_losses=losses if form.max_losses is None else form.max_losses,
        cancel_grace_s=grace_s,
        retry_delay_s=form.initial_ms / 1000,
        retry_factor=form.multiplier,
        retry_delay_max_s=form.max_ms / 1000,
    )
    return DEFAULT_POLICY if policy == DEFAULT_POLICY else policy


def retry_of(policy: Policy) -> RetryForm:
    """The form that makes this policy."""
    return RetryForm(
        max_attempts=policy.max_attempts,
        max_losses=policy.max_losses,
        initial_ms=policy.retry_delay_s * 1000,
        multiplier=policy.retry_factor,
        max_ms=policy.retry_delay_max_s * 1000,
    )
