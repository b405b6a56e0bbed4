"""The options of `@app.task`, and the handler with its retry policy that they make."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Protocol, TypedDict, TypeVar, overload

from windlass.core.retry import DEFAULT_POLICY, Policy
from windlass.core.submission import PRIORITY_MAX, PRIORITY_MIN, check_policy
from windlass.core.validation import check_callable, check_count, check_name
from windlass.errors import Invalid
from windlass.sdk.context import Context
from windlass.sdk.duration import Duration, seconds
from windlass.sdk.handler.handler import AsyncContextHandler, AsyncHandler, Handler, SyncContextHandler, SyncHandler
from windlass.sdk.processes.pool import check_importable

if TYPE_CHECKING:
    from windlass.sdk.app import App

P = ParamSpec("P")
R = TypeVar("R")


class TaskOptions(TypedDict, total=False):
    """All have defaults. Durations are text ("90s", "10m", "2d"), timedeltas, or seconds."""

    kind: str  # the name under which tasks are submitted; default: app.function
    queue: str
    priority: int
    max_attempts: int
    max_losses: int
    timeout: Duration | None
    retry_delay: Duration
    retry_delay_max: Duration
    retry_factor: float
    cancel_grace: Duration
    concurrency_key: Callable[..., object] | None  # called with the arguments of a submission
    retry_on: tuple[type[BaseException], ...] | None  # only these are retried
    run_in: Literal["thread", "process"] | None  # default: async functions in the event loop, others in a thread


class Decorator(Protocol):
    @overload
    def __call__(  # type: ignore[overload-overlap]  # the first that fits is meant
        self, function: Callable[Concatenate[Context, P], Awaitable[R]], /
    ) -> AsyncContextHandler[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> SyncContextHandler[P, R]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[P, Awaitable[R]], /
    ) -> AsyncHandler[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> SyncHandler[P, R]: ...


def make_handler(
    app: App, function: Callable[..., Any], options: TaskOptions, handler_class: type[Handler[..., Any]] = Handler
) -> Handler[..., Any]:
    unknown = set(options) - TaskOptions.__annotations__.keys()
    if unknown:
        raise Invalid(f"there is no option {min(unknown)}", field="options")
    kind = options.get("kind", f"{app.name}.{getattr(function, '__name__', type(function).__name__)}")
    queue, priority = options.get("queue", app.queue), options.get("priority", 0)
    check_name("kind", kind)
    check_name("queue", queue)
    check_count("priority", priority, least=PRIORITY_MIN, most=PRIORITY_MAX)
    key, retry_on = options.get("concurrency_key"), options.get("retry_on")
    if key is not None:
        check_callable("concurrency_key", key)
    check_retry_on(retry_on)
    return handler_class(
        app, function, kind=kind, queue=queue, priority=priority, policy=_policy(options),
        concurrency_key=key, retry_on=retry_on, in_process=_in_process(function, options.get("run_in")),
    )  # fmt: skip


def _in_process(function: Callable[..., Any], run_in: object) -> bool:
    if run_in not in (None, "thread", "process"):
        raise Invalid(f"must be thread or process, not {run_in!r:.100}", field="run_in")
    if run_in == "thread" and iscoroutinefunction(function):
        raise Invalid("an async function runs in the event loop, or in a process", field="run_in")
    if run_in == "process":
        check_importable(function)
    return run_in == "process"


def check_retry_on(kinds: object) -> None:
    if kinds is None:
        return
    if not isinstance(kinds, tuple) or not all(isinstance(k, type) and issubclass(k, BaseException) for k in kinds):
        raise Invalid("must be a tuple of exception classes", field="retry_on")


def _policy(options: TaskOptions) -> Policy:
    timeout = options.get("timeout")
    default = DEFAULT_POLICY
    policy = Policy(
        max_attempts=options.get("max_attempts", default.max_attempts),
        max_losses=options.get("max_losses", default.max_losses),
        timeout_s=None if timeout is None else seconds("timeout", timeout, least=0.001),
        cancel_grace_s=seconds("cancel_grace", options.get("cancel_grace", default.cancel_grace_s)),
        retry_delay_s=seconds("retry_delay", options.get("retry_delay", default.retry_delay_s)),
        retry_factor=options.get("retry_factor", default.retry_factor),
        retry_delay_max_s=seconds("retry_delay_max", options.get("retry_delay_max", default.retry_delay_max_s)),
    )
    check_policy(policy)
    return default if policy == default else policy  # the same object, which submissions recognise at no cost
