"""Schedules that an app declares: which handler, when, with which arguments; checked where they are declared.

A worker says when it starts what its app declares, and again every minute: the engine makes and changes schedules by
the first, and knows by the second which are still declared by code that runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from zoneinfo import ZoneInfo

import msgspec

from windlass.core.check import check_mapping, check_name
from windlass.core.cron import Cron, parse_cron
from windlass.core.error import Invalid, NotFound, Unavailable, WindlassError
from windlass.core.retry import DEFAULT_POLICY, Policy
from windlass.core.schedule import Overlap, ScheduleSpec, check_spec
from windlass.sdk.complaint import Complaint
from windlass.sdk.handler import Handler

log = logging.getLogger("windlass.worker")

AGAIN_S, AFTER_ERROR_S = 60.0, 1.0


class Schedule(msgspec.Struct, frozen=True):
    """A task that is to be submitted again and again."""

    name: str
    cron: Cron
    timezone: str
    kind: str
    payload: bytes
    spec: ScheduleSpec


def made_schedule(
    handler: Handler[..., Any],
    cron: str,
    name: str | None,
    timezone: str,
    arguments: Mapping[str, Any] | None,
    overlap: str,
    max_catchup: int,
) -> Schedule:
    """Everything that can be wrong with it is said where it is declared."""
    name = handler.kind if name is None else name
    check_name("name", name)
    check_name("timezone", timezone)
    try:
        ZoneInfo(timezone)
    except (OSError, ValueError, KeyError):
        raise Invalid(f"there is no time zone {timezone!r}", field="timezone") from None
    if overlap not in Overlap.__members__.values():
        raise Invalid(f"must be one of {', '.join(Overlap)}", field="overlap")
    given = {} if arguments is None else check_mapping("arguments", arguments)
    for word in given:
        check_name("arguments", word)
    task = handler.submission((), given)
    spec = ScheduleSpec(
        name=name, cron=cron, timezone=timezone, kind=task.kind, queue=task.queue, payload=task.payload,
        priority=task.priority, concurrency_key=task.concurrency_key,
        policy=None if task.policy is DEFAULT_POLICY else task.policy,
        overlap=Overlap(overlap), max_catchup=max_catchup,
    )  # fmt: skip
    check_spec(spec)
    return Schedule(name, parse_cron(cron), timezone, handler.kind, task.payload, spec)


class Calendar(Protocol):
    """Where schedules are declared: an engine in this process, or a server far away."""

    async def declare_schedules(
        self, app: str, specs: Sequence[ScheduleSpec], *, namespace: str = "default", anew: bool = True
    ) -> int: ...

    async def declare_kinds(
        self, app: str, policies: Mapping[str, Policy | None], *, namespace: str = "default"
    ) -> None: ...


class Declaration:
    """What a worker of an app says while it runs: which schedules there are, and what its kinds are allowed."""

    def __init__(
        self,
        calendar: Calendar,
        app: str,
        namespace: str,
        specs: Sequence[ScheduleSpec],
        kinds: Mapping[str, Policy | None] | None = None,
    ) -> None:
        self._kinds = kinds
        self._calendar, self._app, self._namespace, self._specs = calendar, app, namespace, list(specs)
        self._left = 0
        self._complain = Complaint(log)

    async def begin(self) -> None:
        """Until it was heard. Raises Conflict if a name is taken by what others made."""
        while True:
            if await self._say(anew=True):
                return
            await asyncio.sleep(AFTER_ERROR_S)

    async def keep(self) -> None:
        """For as long as there is something to say: what is declared, or what once was and is there still."""
        while self._specs or self._left:
            await asyncio.sleep(AGAIN_S)
            try:
                await self._say(anew=False)
            except WindlassError as error:
                log.warning("cannot tell which schedules %s declares: %s", self._app, error)

    async def _say(self, *, anew: bool) -> bool:
        try:
            if anew and self._kinds is not None:
                await self._calendar.declare_kinds(self._app, self._kinds, namespace=self._namespace)
            self._left = await self._calendar.declare_schedules(
                self._app, self._specs, namespace=self._namespace, anew=anew
            )
        except Unavailable as error:
            self._complain("cannot tell what %s declares, trying again: %s", self._app, error)
            return False
        except NotFound:
            log.warning("the server knows nothing of what apps declare: schedules of %s do not fire", self._app)
            self._specs, self._left = [], 0
        return True
