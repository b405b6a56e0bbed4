"""Schedules that an app declares: which handler, when, with which arguments.

A worker sends the declarations of its app when it starts, and repeats them every minute. The first one creates and
changes schedules; the repeats show the engine which schedules running code still declares.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from zoneinfo import ZoneInfo

import msgspec

from windlass.core.cron import Cron
from windlass.core.retry import DEFAULT_POLICY, Policy
from windlass.core.schedule import Overlap, ScheduleSpec, check_spec
from windlass.core.validation import check_mapping, check_name
from windlass.errors import Invalid, NotFound, Unavailable, WindlassError
from windlass.sdk.handler.handler import Handler
from windlass.sdk.worker.asyncio_tools import AFTER_ERROR_S
from windlass.sdk.worker.log_throttle import LogThrottle

log = logging.getLogger("windlass.worker")

AGAIN_S = 60.0


class Schedule(msgspec.Struct, frozen=True):
    """A task that is submitted at the times of a cron expression."""

    name: str
    cron: Cron
    timezone: str
    kind: str
    payload: bytes
    spec: ScheduleSpec


def make_schedule(
    handler: Handler[..., Any],
    cron: str,
    name: str | None,
    timezone: str,
    arguments: Mapping[str, Any] | None,
    overlap: str,
    max_catchup: int,
) -> Schedule:
    """A checked schedule, so that errors are raised where it is declared."""
    name = handler.kind if name is None else name
    check_name("timezone", timezone)
    try:
        ZoneInfo(timezone)
    except (OSError, ValueError, KeyError):
        raise Invalid(f"there is no time zone {timezone!r}", field="timezone") from None
    if overlap not in Overlap.__members__.values():
        raise Invalid(f"must be one of {', '.join(Overlap)}", field="overlap")
    task = handler.submission((), {} if arguments is None else check_mapping("arguments", arguments))
    spec = ScheduleSpec(
        name=name, cron=cron, timezone=timezone, kind=task.kind, queue=task.queue, payload=task.payload,
        priority=task.priority, concurrency_key=task.concurrency_key,
        policy=None if task.policy is DEFAULT_POLICY else task.policy,
        overlap=Overlap(overlap), max_catchup=max_catchup,
    )  # fmt: skip
    return Schedule(name, check_spec(spec), timezone, handler.kind, task.payload, spec)


class DeclarationTarget(Protocol):
    """Where schedules are declared: an engine in this process, or a remote server."""

    async def declare_schedules(
        self, app: str, specs: Sequence[ScheduleSpec], *, namespace: str = "default", anew: bool = True
    ) -> int: ...

    async def declare_kinds(
        self, app: str, policies: Mapping[str, Policy | None], *, namespace: str = "default"
    ) -> None: ...


class Declaration:
    """Declares the schedules of an app and the retry policies of its kinds while a worker runs."""

    def __init__(
        self,
        target: DeclarationTarget,
        app: str,
        namespace: str,
        specs: Sequence[ScheduleSpec],
        kinds: Mapping[str, Policy | None] | None = None,
    ) -> None:
        self._target, self._app, self._namespace, self._specs, self._kinds = target, app, namespace, list(specs), kinds
        self._remaining = 0
        self._warn = LogThrottle(log)

    async def begin(self) -> None:
        """Repeat until the engine has answered. Raises Conflict if a name belongs to a schedule made elsewhere."""
        while True:
            if await self._declare(anew=True):
                return
            await asyncio.sleep(AFTER_ERROR_S)

    async def keep(self) -> None:
        """Repeat while there is a schedule: one that is declared, or one that was and still exists."""
        while self._specs or self._remaining:
            await asyncio.sleep(AGAIN_S)
            try:
                await self._declare(anew=False)
            except WindlassError as error:
                log.warning("cannot declare the schedules of %s: %s", self._app, error)

    async def _declare(self, *, anew: bool) -> bool:
        try:
            if anew and self._kinds is not None:
                await self._target.declare_kinds(self._app, self._kinds, namespace=self._namespace)
            self._remaining = await self._target.declare_schedules(
                self._app, self._specs, namespace=self._namespace, anew=anew
            )
        except Unavailable as error:
            self._warn("cannot declare the schedules of %s, trying again: %s", self._app, error)
            return False
        except NotFound:
            log.warning("the server does not support declared schedules: those of %s do not fire", self._app)
            self._specs, self._remaining = [], 0
        return True
