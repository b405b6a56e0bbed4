"""Attempts whose payload or result is too long for a row: fetched before they are handed out, kept before they end.

Few attempts are like that; what all the others pay for it is one look at a byte and at a length.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from msgspec.structs import replace

from windlass.core.command import Claimed, Command, Complete, Fail, Report, checked_report
from windlass.core.error import NotFound, TooLarge, WindlassError
from windlass.core.failure import Category, Failure
from windlass.core.task import Task
from windlass.core.transition import State
from windlass.engine.claim import Claimer, lease_of
from windlass.engine.committer import Committer
from windlass.engine.objects import Objects, too_long

Reporting = Callable[[Sequence[Report]], Awaitable[list[State | WindlassError]]]


class Large:
    """The large attempts of one engine. `report` is for all the others."""

    def __init__(
        self, objects: Objects, claimer: Claimer, commands: Committer[Command, Task], report: Reporting
    ) -> None:
        self._objects, self._claimer, self._commands, self._report = objects, claimer, commands, report

    async def fetch(self, claimed: list[Claimed]) -> list[Claimed]:
        """With their payloads. An attempt whose payload cannot be had has failed, and is tried again if that can help;
        who goes while it is fetched gives everything back."""
        try:
            ready, without = await self._objects.fill(claimed)
        except asyncio.CancelledError:
            self._claimer.rescue(claimed)
            raise
        if without:
            await self._report(
                [Fail(c.task.id, c.task.attempt, lease_of(c.task), unreadable(why)) for c, why in without]
            )
        return ready

    async def report(self, reports: Sequence[Report]) -> list[State | WindlassError]:
        """Some results are too long: each of these is reported by itself."""
        outcomes: list[State | WindlassError] = []
        for report in reports:
            if not isinstance(report, Complete) or not too_long(report.result):
                outcomes += await self._report([report])
                continue
            try:
                outcomes.append((await self.complete(report)).state)
            except TooLarge as error:  # its worker has nothing else to say, and would be waited for in vain
                failure = Failure(Category.CONFIGURATION, error.message, "RESULT_TOO_LARGE", retryable=False)
                outcomes += await self._report([Fail(report.task_id, report.attempt, report.lease_id, failure)])
            except WindlassError as error:
                outcomes.append(error)
        return outcomes

    async def complete(self, report: Complete) -> Task:
        assert report.result is not None, report.task_id
        checked_report(replace(report, result=None), 0.0)
        async with self._objects.kept("result", report.result, report.task_id, f"result-{report.attempt}") as text:
            return await self._commands.call(replace(report, result=text))


def unreadable(error: Exception) -> Failure:
    """A store that is away will be back, and another worker may be set up better; what is not there any more will not
    be."""
    gone = isinstance(error, NotFound)
    category = Category.CONFIGURATION if gone else Category.INFRASTRUCTURE
    return Failure(category, f"its payload cannot be read: {error}", "PAYLOAD_UNREADABLE", retryable=not gone)
