"""Steps: functions with a name, a retry policy, a timeout and perhaps a queue. They stay callable.

`@app.step(…)` declares one; `ctx.options(…)` overrides options for one call. A plain function is a step with the
default options.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Awaitable, Callable
from types import FunctionType
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, overload

import msgspec

from windlass.core.failure import Failure
from windlass.core.retry import DEFAULT_POLICY, Policy
from windlass.core.validation import check_callable, check_name
from windlass.errors import Invalid
from windlass.sdk.context import Context
from windlass.sdk.handler.handler import Handler
from windlass.sdk.handler.options import StepOptions, check_known, check_retry_on, retry_policy
from windlass.sdk.handler.schema import JsonType
from windlass.sdk.signals import failure_of

P = ParamSpec("P")
R = TypeVar("R")


class StepDecorator(Protocol):
    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> StepFunction[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> StepFunction[P, R]: ...


class StepFunction(Generic[P, R]):
    """Made by `@app.step`. If it has a queue, workers of that queue run it with `handler`."""

    def __init__(self, function: Callable[P, Awaitable[R] | R], options: StepOptions) -> None:
        check_callable("function", function)
        functools.update_wrapper(self, function)
        self.function, self.options = function, check_options(options)
        self.handler: Handler[P, R] | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R] | R:
        """The function itself, as if it had not been decorated."""
        return self.function(*args, **kwargs)


class Plan(msgspec.Struct, frozen=True):
    """How to run a step: what to call, under which name, within which limits."""

    function: Callable[..., Any]
    name: str
    policy: Policy
    queue: str | None
    handler: Handler[..., Any] | None
    retry_on: tuple[type[BaseException], ...] | None
    result: JsonType
    is_async: bool

    def with_context(self, kwargs: dict[str, Any], context: Context) -> dict[str, Any]:
        """The arguments, with the context for a handler that is called as a step and takes one."""
        name = None if self.handler is None else self.handler.schema.context_parameter
        return kwargs if name is None or name in kwargs else {**kwargs, name: context}

    def failure(self, error: BaseException) -> Failure:
        if self.handler is not None and self.retry_on is None:
            return self.handler.failure(error)
        return failure_of(error, None if self.retry_on is None else isinstance(error, self.retry_on))


def check_options(options: StepOptions) -> StepOptions:
    check_known(options, StepOptions)
    for field in ("name", "queue"):
        if field in options:
            check_name(field, options[field])
    check_retry_on(options.get("retry_on"))
    retry_policy(options)
    return options


_POLICIES = ("max_attempts", "timeout", "retry_delay", "retry_delay_max", "retry_factor")


def make_plan(step: Any, overrides: StepOptions) -> Plan:
    """Options of the call override those of the declaration, which override the handler's own."""
    function, declared, handler = step, StepOptions(), None
    if isinstance(step, StepFunction):
        function, declared, handler = step.function, step.options, step.handler
    elif isinstance(step, Handler):
        function, handler = step.function, step
    check_callable("step", function)
    if not overrides and not declared and handler is None and isinstance(function, FunctionType):
        return _plain(function)
    options: StepOptions = {**declared, **overrides}
    queue = options.get("queue")
    if queue is not None and handler is None:
        name = getattr(function, "__name__", "function")
        raise Invalid(f"{name} must be declared with @app.step(queue=…) or @app.task to run in a queue", field="queue")
    own_policy = handler is not None and options.keys().isdisjoint(_POLICIES)
    return Plan(
        function=function,
        name=options["name"] if "name" in options else _name_of(function),
        policy=handler.policy if own_policy and handler is not None else retry_policy(options),
        queue=queue,
        handler=handler,
        retry_on=options.get("retry_on"),
        result=result_type(function),
        is_async=inspect.iscoroutinefunction(function),
    )


@functools.lru_cache(maxsize=4096)
def _plain(function: Any) -> Plan:
    """A function without options: cached, since the same few are called over and over."""
    return Plan(
        function, _name_of(function), DEFAULT_POLICY, None, None, None, result_type(function),
        inspect.iscoroutinefunction(function),
    )  # fmt: skip


def _name_of(function: Any) -> str:
    name = getattr(function, "__name__", None)
    if not isinstance(name, str) or name == "<lambda>":
        raise Invalid("has no name: give it one with ctx.options(name=…).step(…)", field="step")
    check_name("name", name)
    return name


def result_type(function: Any) -> JsonType:
    """The annotated return type of a function; without an annotation, any JSON value."""
    return _result_type(function) if isinstance(function, FunctionType) else _result_type.__wrapped__(function)


@functools.lru_cache(maxsize=4096)
def _result_type(function: Any) -> JsonType:
    try:
        hints = typing.get_type_hints(inspect.unwrap(function))
    except (NameError, TypeError):
        hints = {}
    name = getattr(function, "__qualname__", type(function).__name__)
    return JsonType(name, hints.get("return", Any))
