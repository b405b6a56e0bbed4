"""Groups and chains: `group` runs calls concurrently, `chain` runs one after the other and passes results on.

Both are runs of ordinary tasks with dependencies, submitted in one transaction, all or none. A payload names the tasks
whose results it needs, and they are read when it runs, so that no result is copied. When a task fails for good, those
that wait for it are skipped (cancelled, if it was cancelled). For branches and loops, write a workflow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast, overload
from uuid import UUID, uuid4

from msgspec.structs import replace

from windlass.core.ids import derived_id
from windlass.core.submission import Submission
from windlass.core.validation import KEY_MAX, check_text
from windlass.errors import Invalid
from windlass.sdk.handler.group_handle import ChainHandle, GroupHandle
from windlass.sdk.handler.handle import TaskHandle
from windlass.sdk.trace import submit_many_with_trace

if TYPE_CHECKING:
    from windlass.sdk.app import App
    from windlass.sdk.handler.handler import Handler

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
R = TypeVar("R")
In = TypeVar("In", contravariant=True)
Out = TypeVar("Out")


class Unary(Protocol[In, Out]):
    """A handler that can be submitted with one argument."""

    async def submit(self, value: In, /) -> TaskHandle[Out]: ...


class Call(Generic[R]):
    """A handler with its arguments, to be submitted together with others. Made by `handler.bind(…)`."""

    def __init__(self, handler: Handler[..., R], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if handler.has_connection:
            raise Invalid("cannot be used inside a group or a chain", field="connection")
        self.handler = handler
        self.submission = handler.submission(args, kwargs)


class Group(Generic[R]):
    """Calls that run concurrently."""

    def __init__(self, calls: Sequence[Call[Any]]) -> None:
        if not calls:
            raise Invalid("must have at least one call", field="calls")
        for call in calls:
            if not isinstance(call, Call):
                raise Invalid(f"must be made by handler.bind(…), not {type(call).__name__}", field="calls")
        self.calls, self.app = tuple(calls), _one_app([call.handler for call in calls])

    async def submit(self, *, key: str | None = None) -> GroupHandle[R]:
        """All or none. The same calls with the same `key` again are the same tasks."""
        run_id = _run_id(self.app, key)
        ids = await submit_many_with_trace(self.app.client, self.submissions(run_id, keyed=key is not None))
        pairs = zip(ids, self.calls, strict=True)
        return GroupHandle(self.app, run_id, [TaskHandle(self.app, i, call.handler.schema) for i, call in pairs])

    def submit_sync(self, *, key: str | None = None) -> GroupHandle[R]:
        return self.app.call_sync(lambda: self.submit(key=key))

    def submissions(self, run_id: UUID, *, keyed: bool) -> list[Submission]:
        """If `keyed`, ids are derived from the run, so that they are known before; otherwise the engine makes them."""
        return [
            replace(call.submission, run_id=run_id, id=derived_id(run_id, place) if keyed else None)
            for place, call in enumerate(self.calls)
        ]


class Chain(Generic[R]):
    """A call, or a group of calls, and handlers that each take the result of the one before."""

    def __init__(self, first: Call[Any] | Group[Any], rest: Sequence[Handler[..., Any]]) -> None:
        self.first = Group([first]) if isinstance(first, Call) else first
        if not isinstance(self.first, Group):
            raise Invalid(f"must begin with handler.bind(…) or a group, not {type(first).__name__}", field="first")
        for handler in rest:
            if not hasattr(handler, "schema") or not hasattr(handler, "submission"):
                raise Invalid(f"must be handlers, not {type(handler).__name__}", field="rest")
            if not handler.takes_results:
                raise Invalid(f"{handler.kind} is a workflow: it can only begin a chain", field="rest")
        self.starts_with_group = isinstance(first, Group)
        self.rest, self.app = tuple(rest), _one_app([*(call.handler for call in self.first.calls), *rest])
        self.parameters = [handler.schema.single_parameter() for handler in rest]

    async def submit(self, *, key: str | None = None) -> ChainHandle[R]:
        """All or none. The same chain with the same `key` again is the same tasks."""
        run_id = _run_id(self.app, key)
        submissions = self.submissions(run_id)
        await submit_many_with_trace(self.app.client, submissions)
        schemas = [*(call.handler.schema for call in self.first.calls), *(handler.schema for handler in self.rest)]
        parts: list[TaskHandle[Any]] = [
            TaskHandle(self.app, cast("UUID", s.id), schema) for s, schema in zip(submissions, schemas, strict=True)
        ]
        return ChainHandle(self.app, run_id, parts, schemas[-1])

    def submit_sync(self, *, key: str | None = None) -> ChainHandle[R]:
        return self.app.call_sync(lambda: self.submit(key=key))

    def submissions(self, run_id: UUID) -> list[Submission]:
        submissions = self.first.submissions(run_id, keyed=True)
        if any(s.idempotency_key is not None for s in submissions):
            raise Invalid("cannot be used inside a chain: use submit(key=…)", field="idempotency_key")
        ids = [cast("UUID", s.id) for s in submissions]
        before: UUID | list[UUID] = ids if self.starts_with_group else ids[0]
        for place, (handler, parameter) in enumerate(zip(self.rest, self.parameters, strict=True), start=len(ids)):
            submission = handler.submission_after(parameter, before)
            before = derived_id(run_id, place)
            submissions.append(replace(submission, run_id=run_id, id=before))
        return submissions


def group(*calls: Call[R]) -> Group[R]:
    """Run calls concurrently: `await group(add.bind(1), add.bind(2)).submit()`."""
    return Group(calls)


@overload
def chain(first: Call[A], second: Unary[A, B], /) -> Chain[B]: ...
@overload
def chain(first: Group[A], second: Unary[list[A], B], /) -> Chain[B]: ...
@overload
def chain(first: Call[A], second: Unary[A, B], third: Unary[B, C], /) -> Chain[C]: ...
@overload
def chain(first: Group[A], second: Unary[list[A], B], third: Unary[B, C], /) -> Chain[C]: ...
@overload
def chain(first: Call[A], second: Unary[A, B], third: Unary[B, C], fourth: Unary[C, D], /) -> Chain[D]: ...
@overload
def chain(first: Group[A], second: Unary[list[A], B], third: Unary[B, C], fourth: Unary[C, D], /) -> Chain[D]: ...
@overload
def chain(
    first: Call[Any] | Group[Any],
    second: Unary[Any, Any],
    third: Unary[Any, Any],
    fourth: Unary[Any, Any],
    fifth: Unary[Any, Any],
    /,
    *rest: Unary[Any, Any],
) -> Chain[Any]: ...


def chain(*parts: Any) -> Chain[Any]:
    """Run one after the other, each with the result of the one before: `await chain(fetch.bind(url), parse).submit()`.
    After a group, the next one gets a list, in the order of the calls."""
    if not parts:
        raise Invalid("must have at least one call", field="parts")
    return Chain(parts[0], parts[1:])


def _one_app(handlers: Sequence[Handler[..., Any]]) -> App:
    apps = {id(handler.app): handler.app for handler in handlers}
    if len(apps) > 1:
        raise Invalid(f"must be handlers of one app, not of {len(apps)}", field="calls")
    [app] = apps.values()
    return app


def _run_id(app: App, key: str | None) -> UUID:
    if key is None:
        return uuid4()
    check_text("key", key, KEY_MAX)
    return derived_id("run", app.namespace, app.name, key)
