"""What the methods of a workflow's context return: an awaitable step, a child task, and the failure of a step."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar
from uuid import UUID

from windlass.core.command import Claimed
from windlass.core.failure import Failure
from windlass.core.step import Place, Step
from windlass.errors import InvalidState, WindlassError
from windlass.sdk.context import Context
from windlass.sdk.worker.progress import ProgressSink

R = TypeVar("R")


class StepFailed(WindlassError):
    """A step of the workflow failed for good."""

    code = "step_failed"

    name: str = ""
    failure: Failure | None = None

    @classmethod
    def of(cls, step: Step) -> StepFailed:
        reason = step.error.message if step.error is not None else "no reason was given"
        error = cls(f"step {step.name} failed: {reason}", task_id=step.task_id, step=step.name)
        error.name, error.failure = step.name, step.error
        return error


class StepAwaitable(Generic[R]):
    """A step, sleep, wait or submission of a workflow. `await` it, alone or with others by `ctx.gather`."""

    __slots__ = ("_awaited", "_run", "_unawaited", "place")

    def __init__(self, place: Place, run: Callable[[], Coroutine[Any, Any, R]], unawaited: dict[int, Place]) -> None:
        self.place, self._run, self._awaited, self._unawaited = place, run, False, unawaited
        unawaited[place.position] = place

    def __await__(self) -> Generator[Any, Any, R]:
        if self._awaited:
            raise InvalidState(f"{self.place.name} is awaited for the second time; keep its result instead")
        self._awaited = True
        self._unawaited.pop(self.place.position, None)
        return self._run().__await__()


class Child(Generic[R]):
    """A task that the workflow submitted. `await child.result()` suspends the workflow until it has ended."""

    def __init__(self, task_id: UUID, result: Callable[[], Coroutine[Any, Any, R]]) -> None:
        self.id, self._result = task_id, result

    def __repr__(self) -> str:
        return f"Child({str(self.id)!r})"

    async def result(self) -> R:
        """The return value of its handler. Raises StepFailed if it did not succeed."""
        return await self._result()


class StepContext(Context):
    """What `windlass.current()` returns inside a step."""

    def __init__(self, claimed: Claimed, place: Place, sink: ProgressSink | None) -> None:
        super().__init__(claimed, sink)
        self._place = place

    @property
    def idempotency_key(self) -> str:
        """The same for every try at this step: pass it to services that recognise a repeated request."""
        return f"windlass-{self._task.id}-{self._place.name}-{self._place.occurrence}"
