"""What a worker runs: a handler for each kind, or one for all kinds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, cast

import msgspec

from windlass.core.command import Claimed
from windlass.core.failure import Failure
from windlass.core.validation import check_names
from windlass.errors import Invalid
from windlass.sdk.handler.schema import to_json
from windlass.sdk.signals import failure_of, invalid_is_bad_data

Handler = Callable[[Any], Awaitable[Any]]


class Runnable(Protocol):
    """Runs an attempt to its result, as JSON text, and turns its exceptions into failures."""

    async def run(self, claimed: Claimed) -> bytes: ...

    def failure(self, error: BaseException) -> Failure: ...


class PlainHandler:
    """An async function that takes a payload and returns a result, both as JSON values."""

    def __init__(self, function: Handler) -> None:
        self._function = function

    async def run(self, claimed: Claimed) -> bytes:
        result = await self._function(msgspec.json.decode(claimed.payload))
        with invalid_is_bad_data:
            return to_json("result", result)

    def failure(self, error: BaseException) -> Failure:
        return failure_of(error)


class AnyKind(dict[str, Runnable]):
    """One handler for all kinds."""

    def __init__(self, runnable: Runnable) -> None:
        super().__init__()
        self._runnable = runnable

    def __missing__(self, kind: str) -> Runnable:
        return self._runnable


def resolve_handlers(
    handlers: Mapping[str, Handler | Runnable] | Runnable, kinds: Sequence[str] | None
) -> dict[str, Runnable]:
    """The handler of each of these kinds, by default of all kinds that have one."""
    known = _by_kind(handlers)
    if kinds is None:
        return known
    check_names("kinds", kinds)
    unknown = [kind for kind in kinds if kind not in known]
    if unknown or not kinds:
        raise Invalid(f"there is no handler for {unknown[0]}" if unknown else "must name a handler", field="kinds")
    return {kind: known[kind] for kind in kinds}


def _by_kind(handlers: Mapping[str, Handler | Runnable] | Runnable) -> dict[str, Runnable]:
    if not isinstance(handlers, Mapping) and hasattr(handlers, "run") and hasattr(handlers, "failure"):
        return AnyKind(handlers)
    if not isinstance(handlers, Mapping) or not handlers:
        raise Invalid("must map at least one kind to a handler", field="handlers")
    check_names("handlers", list(handlers))
    found: dict[str, Runnable] = {}
    for kind, handler in handlers.items():
        if hasattr(handler, "run") and hasattr(handler, "failure"):
            found[kind] = cast("Runnable", handler)
        elif callable(handler):
            found[kind] = PlainHandler(handler)
        else:
            raise Invalid(f"{kind} must be an async function or a handler of an app", field="handlers")
    return found
