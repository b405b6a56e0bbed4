"""Attempts whose payload or result is too long for a row: loaded before they are handed out, stored before they end.

Few attempts need this. All others pay for the check of one byte and of a length.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec.structs import replace

from windlass.core.command import Claimed, Command, Complete, Fail, Report, checked_report
from windlass.core.failure import Category, Failure
from windlass.core.states import State
from windlass.core.task import Task
from windlass.engine.claim.claimer import Claimer
from windlass.engine.commit.committer import Committer
from windlass.engine.payloads.objects import Objects, too_long
from windlass.engine.randomness import Randomness
from windlass.errors import NotFound, TooLarge, WindlassError


class LargePayloads:
    """The large attempts of one engine."""

    def __init__(
        self,
        objects: Objects,
        claimer: Claimer,
        commands: Committer[Command, Task],
        reports: Committer[Report, Task | State],
        randomness: Randomness,
    ) -> None:
        self._objects, self._claimer, self._commands, self._reports = objects, claimer, commands, reports
        self._randomness = randomness

    async def fetch(self, claimed: list[Claimed]) -> list[Claimed]:
        """Load the payloads. An attempt whose payload cannot be loaded has failed, and is tried again if that can help.
        If the caller leaves meanwhile, everything is given back."""
        try:
            ready, without = await self._objects.fill(claimed)
        except asyncio.CancelledError:
            self._claimer.rescue(claimed)
            raise
        if without:
            failed = [Fail(*attempt.fence, unreadable(error)) for attempt, error in without]
            await self._report(failed)
        return ready

    async def report(self, reports: Sequence[Report]) -> list[State | WindlassError]:
        """Carry out reports of which some results are too long: each of those by itself."""
        outcomes: list[State | WindlassError] = []
        for report in reports:
            if not isinstance(report, Complete) or not too_long(report.result):
                outcomes += await self._report([report])
                continue
            try:
                outcomes.append((await self.complete(report)).state)
            except TooLarge as error:  # the worker will send nothing else, so the attempt fails now
                failure = Failure(Category.CONFIGURATION, error.message, "RESULT_TOO_LARGE", retryable=False)
                outcomes += await self._report([Fail(report.task_id, report.attempt, report.lease_id, failure)])
            except WindlassError as error:
                outcomes.append(error)
        return outcomes

    async def _report(self, reports: Sequence[Report]) -> list[State | WindlassError]:
        checked = [checked_report(report, self._randomness.jitter()) for report in reports]
        outcomes = await self._reports.call_all(checked)
        return [outcome.state if isinstance(outcome, Task) else outcome for outcome in outcomes]

    async def complete(self, report: Complete) -> Task:
        assert report.result is not None, report.task_id
        checked_report(replace(report, result=None), 0.0)
        async with self._objects.kept("result", report.result, report.task_id, f"result-{report.attempt}") as text:
            return await self._commands.call(replace(report, result=text))


def unreadable(error: Exception) -> Failure:
    """The failure of an attempt whose payload cannot be read. It is retryable unless the object is gone: the store may
    come back, and another worker may be set up better."""
    gone = isinstance(error, NotFound)
    category = Category.CONFIGURATION if gone else Category.INFRASTRUCTURE
    return Failure(category, f"its payload cannot be read: {error}", "PAYLOAD_UNREADABLE", retryable=not gone)
