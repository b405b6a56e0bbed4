"""Machines: what was launched, what has become of it, and that nothing is left behind.

A sweep holds the machines that a launcher sees against the attempts that run: what ended without a word is judged, what
is overdue or cancelled is stopped, what belongs to nobody is removed. Afterwards there is a machine for each attempt
that runs and no other. What is decided is decided by `core.machine`, under the lock of the task.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from windlass.core import machine as rules
from windlass.core.check import clean_text
from windlass.core.command import Command
from windlass.core.delivery import Machine
from windlass.core.error import LeaseLost, NotFound, Unavailable, WindlassError
from windlass.core.machine import Left, Phase, Sighting
from windlass.core.sent import runs
from windlass.core.task import Task
from windlass.core.transition import Effect
from windlass.engine.blob import Blobs
from windlass.engine.chance import Chance
from windlass.engine.launcher import Launcher, LauncherAway
from windlass.store.machine_table import MachineRow as MachineRow
from windlass.store.store import Store

log = logging.getLogger("windlass.machine")

OBJECTS_BATCH, AT_ONCE = 100, 16
LEAVES_ALONE_S = 10.0  # a machine that has reported has this long to tidy up and go
DEFAULT_GRACE_S = 10.0
LOOK_S, HOLD_S = 0.5, 1.0
OUTPUT_MAX, REASON_MAX = 16 * 1024, 500

Call = Callable[[Command], Awaitable[Task]]


class Machines:
    """The machines of one engine's launchers."""

    def __init__(self, store: Store, chance: Chance, call: Call) -> None:
        self._store, self._chance, self._call = store, chance, call
        self.launchers: dict[str, Launcher] = {}
        self.blobs: Callable[[], Awaitable[Blobs]] = _no_blobs
        self.wake: Callable[[], None] = lambda: None
        self.wake_objects: Callable[[], None] = lambda: None
        self.discreet: Callable[[Task, str], Awaitable[str]] = _as_it_is
        self._installation: str | None = None
        self._awaited: dict[UUID, list[asyncio.Event]] = {}
        self._used: Counter[UUID] = Counter()
        self._in_hand: dict[tuple[str, str], asyncio.Task[bool]] = {}

    async def installation(self) -> str:
        """Who we are to a launcher that works for several."""
        if self._installation is None:
            async with self._store.single() as tx:
                self._installation = (await tx.machines.installation()).hex
        return self._installation

    # ----------------------------------------------------------------------------------------- launching

    async def ask(self, task: Task, launcher: Launcher, machine: Machine) -> None:
        """Before an attempt is launched: whatever happens from now on, it is known that there may be a machine, and
        objects. Machines of earlier attempts are stopped first."""
        prefix = rules.object_prefix(rules.export_name(task.id, task.kind))
        async with self._store.begin() as tx:
            earlier = await tx.machines.task_machines(task.id)
            await tx.machines.ask_machine(task, launcher.name, launcher.place)
            await tx.machines.keep_objects(task.id, prefix, machine.keep_object_ms / 1000)
        for row in earlier:
            at_hand = row.launcher == launcher.name and row.place == launcher.place
            if row.attempt < task.attempt and row.ended_at is None and at_hand:
                await self._remove(launcher, row, None, DEFAULT_GRACE_S)

    async def launched(self, effect: Effect, seen: Sighting, machine: Machine, launcher: Launcher) -> None:
        """It is there. One whose attempt is over meanwhile is found by the next sweep."""
        async with self._store.single() as tx:
            await tx.machines.machine_there(
                effect.task_id, effect.attempt, seen.id, seen.instance_id, machine.run_timeout_ms / 1000
            )
        detail = {"launcher": launcher.name, "machine": seen.id, "instance": seen.instance_id, "name": seen.name}
        told = {name: value for name, value in detail.items() if value is not None}
        with contextlib.suppress(LeaseLost, NotFound):
            await self._call(rules.Launched(effect.task_id, effect.attempt, seen.id, told))
        self._tell(effect.task_id)
        self.wake()

    async def not_launched(self, effect: Effect, reason: str, message: str) -> None:
        with contextlib.suppress(NotFound):
            said = clean_text("message", message)
            await self._call(rules.NotLaunched(effect.task_id, effect.attempt, reason, said, self._chance.jitter()))
        self._tell(effect.task_id)
        self.wake()

    async def report(self, said: rules.CallBack) -> Task:
        """What a machine says. Raises Conflict or LeaseLost for what contradicts what was accepted."""
        made = msgspec.structs.replace(said, jitter=self._chance.jitter())
        task = await self._call(made)
        self._tell(task.id)
        self.wake()
        return task

    async def of_task(self, task_id: UUID) -> list[MachineRow]:
        """The newest first."""
        async with self._store.single() as tx:
            return await tx.machines.task_machines(task_id)

    @contextmanager
    def awaiting(self, task_id: UUID) -> Iterator[Callable[[float], Awaitable[None]]]:
        """Wait for something to become of a launch: told at once of what happens here, of all else by looking again."""
        event = asyncio.Event()
        self._awaited.setdefault(task_id, []).append(event)

        async def wait(seconds: float) -> None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(seconds, LOOK_S)):
                    await event.wait()
            event.clear()

        try:
            yield wait
        finally:
            self._awaited[task_id].remove(event)
            if not self._awaited[task_id]:
                del self._awaited[task_id]

    def _tell(self, task_id: UUID) -> None:
        for event in self._awaited.get(task_id, ()):
            event.set()

    # ----------------------------------------------------------------------------------------- sweeping

    async def tick(self, hold_s: float = HOLD_S) -> int:
        """One sweep of all launchers; returns how many machines were dealt with. One that is away holds up no other,
        nor does a machine that takes its time to end: after `hold_s` it is left to itself, and seen to the end."""
        done = 0
        for launcher in list(self.launchers.values()):
            try:
                done += await self._sweep(launcher, hold_s)
            except LauncherAway as error:
                log.warning("the launcher %s is away: %s", launcher.name, error)
        return done

    async def _sweep(self, launcher: Launcher, hold_s: float) -> int:
        """The machines are listed before the rows are read: what is listed has its row by then."""
        seen = {one.name: one for one in await launcher.machines(await self.installation())}
        async with self._store.single() as tx:
            rows = await tx.machines.open_machines(launcher.name, launcher.place)
        room, begun = asyncio.Semaphore(AT_ONCE), []
        for row, task, now in rows:
            name = rules.machine_name(row.task_id, row.attempt)
            one = self._one(launcher, row, task, seen.pop(name, None), now)
            begun += self._begin((launcher.name, name), room, one)
        for stray in seen.values():
            begun += self._begin((launcher.name, stray.name), room, self._stray(launcher, stray))
        if not begun:
            return 0
        done, _ = await asyncio.wait(begun, timeout=hold_s)
        return sum(one.result() for one in done)

    def _begin(
        self, name: tuple[str, str], room: asyncio.Semaphore, dealing: Coroutine[Any, Any, bool]
    ) -> list[asyncio.Task[bool]]:
        """Deal with a machine, unless an earlier sweep still does."""
        if name in self._in_hand:
            dealing.close()
            return []
        self._in_hand[name] = begun = asyncio.create_task(self._guarded(name, room, dealing))
        begun.add_done_callback(lambda _: self._in_hand.pop(name))
        return [begun]

    async def _guarded(
        self, name: tuple[str, str], room: asyncio.Semaphore, dealing: Coroutine[Any, Any, bool]
    ) -> bool:
        """One that cannot be dealt with now holds up no other."""
        try:
            async with room:
                return await dealing
        except (WindlassError, LauncherAway) as error:
            log.warning("the machine %s is looked at again: %s", name[1], error)
        except Exception:
            log.exception("the machine %s could not be dealt with", name[1])
        finally:
            dealing.close()  # if it was never begun
        return False

    async def let_go(self) -> None:
        """Of what is in hand; the next sweep begins with it again, whoever does it."""
        begun = list(self._in_hand.values())
        for one in begun:
            one.cancel()
        await asyncio.gather(*begun, return_exceptions=True)

    async def _stray(self, launcher: Launcher, seen: Sighting) -> bool:
        """A machine that nobody asked for, as far as is known here."""
        log.warning("the machine %s belongs to no task and is removed", seen.name)
        await launcher.stop(seen.name, seen.id, 0.0)
        return True

    async def _one(
        self, launcher: Launcher, row: MachineRow, task: Task | None, seen: Sighting | None, now: datetime
    ) -> bool:
        """Deal with one machine; False if all is well with it."""
        if task is None or not runs(task, row.attempt):
            if seen is not None and task is not None and seen.phase is not Phase.EXITED and _tidies_up(task, row, now):
                return False
            await self._remove(launcher, row, seen, DEFAULT_GRACE_S if task is not None and task.cancel else 0.0)
            return True
        if row.launched_at is None:
            return False  # it is on its way; the outbox answers for it
        if seen is None:
            seen = await launcher.look(rules.machine_name(row.task_id, row.attempt), row.machine_id)
        ended = seen is None or seen.phase is Phase.EXITED
        overdue = row.deadline_at is not None and row.deadline_at <= now
        if not ended and task.cancel is None and not overdue:
            return False
        if not ended and task.cancel is not None:
            await self._remove(launcher, row, seen, task.policy.cancel_grace_s, keep_open=True)
            seen = None
        said = await self._judgement(row, task, seen, overdue=overdue)
        if said is None:
            return False
        await self._call(said)
        self._tell(row.task_id)
        await self._remove(launcher, row, seen, 0.0)
        return True

    async def _judgement(
        self, row: MachineRow, task: Task, seen: Sighting | None, *, overdue: bool
    ) -> rules.Ended | None:
        """What is said of a machine that ended, or has to. None as long as the store of its object is away, unless it
        has run out of time."""
        result, problem = None, ""
        if seen is not None and seen.phase is Phase.EXITED and seen.exit_code == 0:
            try:
                result = await self._left(task)
            except Unavailable as error:
                if not overdue:
                    raise
                problem = f"its object could not be looked for: {error.message}"
        run_s = None
        if overdue and row.launched_at is not None and row.deadline_at is not None:
            run_s = (row.deadline_at - row.launched_at).total_seconds()
        kept = None if seen is None else storable(seen)
        if kept is not None and kept.output:
            kept = msgspec.structs.replace(kept, output=await self.discreet(task, kept.output))
        return rules.Ended(row.task_id, row.attempt, kept, result, run_s, problem, self._chance.jitter())

    async def _left(self, task: Task) -> bytes | None:
        """The result that a machine left without telling: its object, if there is exactly one."""
        prefix = rules.object_prefix(rules.export_name(task.id, task.kind))
        blobs = await self.blobs()
        found = [Left(one.key, one.size) async for one in blobs.list(prefix.rstrip("/"))]
        if len(found) != 1:
            return None
        return result_of(found[0], **{rules.OBSERVED: True})

    async def _remove(
        self, launcher: Launcher, row: MachineRow, seen: Sighting | None, grace_s: float, *, keep_open: bool = False
    ) -> None:
        await launcher.stop(rules.machine_name(row.task_id, row.attempt), row.machine_id, grace_s)
        if keep_open:
            return
        code, reason = (None, None) if seen is None else (seen.exit_code, storable(seen).reason or None)
        async with self._store.single() as tx:
            await tx.machines.close_machine(row.task_id, row.attempt, code, reason)
        self.wake_objects()

    # ----------------------------------------------------------------------------------------- objects

    async def downloaded(self, task_id: UUID) -> None:
        """Somebody has got all of what a task made."""
        async with self._store.single() as tx:
            await tx.machines.mark_downloaded(task_id)
        self.wake_objects()

    async def left_late(self, task: Task) -> None:
        """An object was written after its attempt was over; what had been written until then may be gone by now."""
        prefix = rules.object_prefix(rules.export_name(task.id, task.kind))
        async with self._store.single() as tx:
            await tx.machines.keep_objects(task.id, prefix, 0.0)
        self.wake_objects()

    @contextmanager
    def using(self, task_id: UUID) -> Iterator[None]:
        """While somebody reads or writes an object here, those of its task stay."""
        self._used[task_id] += 1
        try:
            yield
        finally:
            self._used[task_id] -= 1
            if not self._used[task_id]:
                del self._used[task_id]
                self.wake_objects()

    async def object_tick(self) -> int:
        """Delete what need not be kept. What was deleted and not written down as such is deleted again. Raises
        Unavailable if the store is away, which is no reason to ask it for each of many."""
        async with self._store.single() as tx:
            due = await tx.machines.due_objects(OBJECTS_BATCH)
        if not due:
            return 0
        gone, blobs = [], await self.blobs()
        try:
            for task_id, prefix in due:
                if task_id not in self._used:
                    await blobs.clear(prefix.rstrip("/"))
                    gone.append(task_id)
        finally:
            if gone:
                async with self._store.begin() as tx:
                    await tx.machines.forget_objects(gone)
                    await tx.machines.forget_machines()
        return len(gone) if len(due) == OBJECTS_BATCH else 0


def result_of(left: Left, **more: object) -> bytes:
    """What the result of a task is whose machine left an object."""
    told = {"output_r2_key": left.key, "output_file_name": left.file_name, "output_file_size": left.size}
    return msgspec.json.encode({**told, **more})


def storable(seen: Sighting) -> Sighting:
    """What a machine wrote, and what its vendor says of it, may be anything."""
    output, reason = clean_text("output", seen.output, OUTPUT_MAX), clean_text("reason", seen.reason, REASON_MAX)
    return msgspec.structs.replace(seen, output=output, reason=reason)


async def _as_it_is(_: Task, text: str) -> str:
    return text


async def _no_blobs() -> Blobs:
    raise Unavailable("this server has no blob store")


def _tidies_up(task: Task, row: MachineRow, now: datetime) -> bool:
    if not rules.finished_by_itself(task, row.attempt) or task.finished_at is None:
        return False
    return now < task.finished_at + timedelta(seconds=LEAVES_ALONE_S)
