"""Group commit. A call puts its commands in line and awaits their outcomes; all in line share one transaction.

There is no timer: the next batch gathers while one is under way, so that a single call has no delay and many calls
share one fsync. Commands keep their order. A batch that fails as a whole is split until the failing call is alone. A
batch is run again when the store was not available, since every write may be repeated.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeAlias, TypeVar

from windlass.errors import Draining, Unavailable, WindlassError

C = TypeVar("C")
R = TypeVar("R")

Later: TypeAlias = R | WindlassError | asyncio.Future[R | WindlassError]

Pause = Callable[[float], Awaitable[None]]

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0


class Committer(Generic[C, R]):
    """`commit` carries out a batch and returns one outcome per command: a result, or the error for that caller. An
    outcome that will be known later is a future: only its caller waits for it, the next batch does not."""

    def __init__(
        self,
        commit: Callable[[list[C]], Awaitable[Sequence[Later[R]]]],
        *,
        batch_max: int = 500,
        retry_for_s: float = 30.0,
        pause: Pause = asyncio.sleep,
    ) -> None:
        self._commit, self._batch_max, self._retry_for_s, self._pause = commit, batch_max, retry_for_s, pause
        self._line: deque[tuple[list[C], asyncio.Future[list[Later[R]]]]] = deque()
        self._runner: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False

    async def call(self, command: C) -> R:
        """Carry out one command; raise its error."""
        [later] = await self._outcomes([command])
        outcome = await asyncio.shield(later) if isinstance(later, asyncio.Future) else later
        if isinstance(outcome, WindlassError):
            raise outcome
        return outcome

    async def call_all(self, commands: Sequence[C]) -> list[R | WindlassError]:
        """Carry out commands in one transaction; outcomes in their order, errors as values."""
        outcomes = await self._outcomes(list(commands)) if commands else []
        return [await asyncio.shield(o) if isinstance(o, asyncio.Future) else o for o in outcomes]

    def _outcomes(self, commands: list[C]) -> Awaitable[list[Later[R]]]:
        if self._closed:
            raise Draining
        if self._idle.is_set():
            return self._lead(commands)
        done: asyncio.Future[list[Later[R]]] = asyncio.get_running_loop().create_future()
        self._line.append((commands, done))
        return done

    async def _lead(self, commands: list[C]) -> list[Later[R]]:
        """Carry out commands at once, since nothing is in line. A runner carries out calls that come meanwhile."""
        self._idle.clear()
        try:
            [outcome] = await self._carry_out([commands])
        finally:
            if self._line:
                self._runner = asyncio.create_task(self._run())
            else:
                self._idle.set()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def settled(self) -> None:
        """Wait until everything in line now has been carried out."""
        if not self._idle.is_set():
            done: asyncio.Future[list[Later[R]]] = asyncio.get_running_loop().create_future()
            self._line.append(([], done))
            await done

    async def close(self) -> None:
        """Finish what is in line and accept nothing more."""
        self._closed = True
        await self._idle.wait()

    async def _run(self) -> None:
        try:
            while self._line:
                batch = self._gather()
                outcomes = await self._carry_out([commands for commands, _ in batch])
                for (_, done), outcome in zip(batch, outcomes, strict=True):
                    if done.cancelled():
                        continue  # the caller is gone; its commands were carried out all the same
                    if isinstance(outcome, Exception):
                        done.set_exception(outcome)
                    else:
                        done.set_result(outcome)
        finally:
            self._runner = None
            self._idle.set()

    def _gather(self) -> list[tuple[list[C], asyncio.Future[list[Later[R]]]]]:
        """Take everything in line, up to the limit. The commands of one caller stay together."""
        batch = [self._line.popleft()]
        size = len(batch[0][0])
        while self._line and size + len(self._line[0][0]) <= self._batch_max:
            batch.append(self._line.popleft())
            size += len(batch[-1][0])
        return batch

    async def _carry_out(self, groups: list[list[C]]) -> list[list[Later[R]] | Exception]:
        try:
            flat = await self._persist([command for group in groups for command in group])
        except Exception as error:
            if len(groups) == 1 or isinstance(error, Unavailable):
                return [error] * len(groups)
            middle = len(groups) // 2
            return [*await self._carry_out(groups[:middle]), *await self._carry_out(groups[middle:])]
        if len(flat) == len(groups):  # the usual case: one command per call
            return [[outcome] for outcome in flat]
        outcomes: list[list[Later[R]] | Exception] = []
        start = 0
        for group in groups:
            outcomes.append(list(flat[start : start + len(group)]))
            start += len(group)
        return outcomes

    async def _persist(self, commands: list[C]) -> Sequence[Later[R]]:
        """Commit the batch; retry for `retry_for_s` while the store is not available."""
        waited_s, pause_s = 0.0, FIRST_PAUSE_S
        while commands:
            try:
                return await self._commit(commands)
            except Unavailable:
                if waited_s >= self._retry_for_s:
                    raise
            await self._pause(pause_s)
            waited_s += pause_s
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
        return []
