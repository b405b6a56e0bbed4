"""Records launches, sweeps machines, and deletes the objects that they leave.

A sweep compares the machines of a launcher with the running attempts. It judges machines that ended without a callback,
stops those that are overdue or cancelled, and removes those that belong to no attempt. Afterwards every running attempt
has one machine, and there are no others. `contracts.machine.rules` decides, under the lock of the task.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from uuid import UUID

import msgspec

from windlass.contracts.machine import rules
from windlass.contracts.machine.delivery import Machine
from windlass.contracts.machine.launchers.port import Launcher, LauncherUnavailable
from windlass.contracts.machine.rules import MachineStatus, ObjectResult, Phase
from windlass.contracts.machine.table import MachineRow, MachineTable
from windlass.core.outgoing import runs
from windlass.core.states import Effect
from windlass.core.task import Task
from windlass.core.validation import clean_text
from windlass.engine.engine import Engine
from windlass.errors import LeaseLost, NotFound, Unavailable, WindlassError

log = logging.getLogger("windlass.machine")

OBJECTS_BATCH, AT_ONCE = 100, 16
DEFAULT_GRACE_S = 10.0
POLL_S, HOLD_S = 0.5, 1.0
OUTPUT_MAX, REASON_MAX = 16 * 1024, 500


class Machines:
    """The machines of one engine's launchers."""

    def __init__(self, engine: Engine) -> None:
        parts = engine.parts
        self._store, self._randomness, self._call = parts.store, parts.randomness, parts.commands.call
        self.launchers: dict[str, Launcher] = {}
        self.blobs = parts.objects.blobs
        self.wake: Callable[[], None] = lambda: None
        self.wake_objects: Callable[[], None] = lambda: None
        self.mask: Callable[[Task, str], Awaitable[str]] = _as_it_is
        self._installation: str | None = None
        self._awaited: set[tuple[UUID, asyncio.Event]] = set()
        self._used: Counter[UUID] = Counter()
        self._handling: dict[tuple[str, str], asyncio.Task[bool]] = {}

    async def installation(self) -> str:
        """The id of this installation. It distinguishes our machines from those of others at the same launcher."""
        if self._installation is None:
            async with self._store.single() as tx:
                self._installation = (await MachineTable(tx.session).installation()).hex
        return self._installation

    # ----------------------------------------------------------------------------------------- launching

    async def request(self, task: Task, launcher: Launcher, machine: Machine) -> None:
        """Record, before the launch, that a machine and objects may exist, so that a crash leaves neither behind. Stops
        the machines of earlier attempts."""
        async with self._store.begin() as tx:
            machines = MachineTable(tx.session)
            earlier = await machines.task_machines(task.id)
            await machines.request_machine(task, launcher.name, launcher.place)
            await machines.keep_objects(task.id, rules.object_prefix(task), machine.keep_object_ms / 1000)
        for row in earlier:
            at_hand = row.launcher == launcher.name and row.place == launcher.place
            if row.attempt < task.attempt and row.ended_at is None and at_hand:
                await self._remove(launcher, row, None, DEFAULT_GRACE_S)

    async def launched(self, effect: Effect, status: MachineStatus, machine: Machine, launcher: Launcher) -> None:
        """Record that the machine was started. If its attempt has ended meanwhile, the next sweep removes it."""
        async with self._store.single() as tx:
            await MachineTable(tx.session).machine_launched(
                effect.task_id, effect.attempt, status.id, status.instance_id, machine.run_timeout_ms / 1000
            )
        detail = {"launcher": launcher.name, "machine": status.id, "instance": status.instance_id, "name": status.name}
        detail = {name: value for name, value in detail.items() if value is not None}
        with contextlib.suppress(LeaseLost, NotFound):
            await self._call(rules.Launched(effect.task_id, effect.attempt, status.id, detail))
        self._notify(effect.task_id)
        self.wake()

    async def not_launched(self, effect: Effect, reason: str, message: str) -> None:
        with contextlib.suppress(NotFound):
            text = clean_text("message", message)
            await self._call(rules.NotLaunched(effect.task_id, effect.attempt, reason, text, self._randomness.jitter()))
        self._notify(effect.task_id)
        self.wake()

    async def report(self, report: rules.MachineReport) -> Task:
        """Record a machine's report. Raises Conflict or LeaseLost if it contradicts an accepted one."""
        task = await self._call(msgspec.structs.replace(report, jitter=self._randomness.jitter()))
        self._notify(task.id)
        self.wake()
        return task

    async def of_task(self, task_id: UUID) -> list[MachineRow]:
        """The machines of a task, newest first."""
        async with self._store.single() as tx:
            return await MachineTable(tx.session).task_machines(task_id)

    @contextmanager
    def awaiting(self, task_id: UUID) -> Iterator[Callable[[float], Awaitable[None]]]:
        """Wait for the outcome of a launch. A launch by this server ends the wait; polling finds one by another."""
        event = asyncio.Event()
        self._awaited.add((task_id, event))

        async def wait(seconds: float) -> None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(seconds, POLL_S)):
                    await event.wait()
            event.clear()

        try:
            yield wait
        finally:
            self._awaited.remove((task_id, event))

    def _notify(self, task_id: UUID) -> None:
        for awaited, event in self._awaited:
            if awaited == task_id:
                event.set()

    # ----------------------------------------------------------------------------------------- sweeping

    async def tick(self, hold_s: float = HOLD_S) -> int:
        """Sweep all launchers once. Returns the number of machines handled. A launcher that does not answer delays no
        other. Neither does a machine that is slow to end: after `hold_s` it is handled in the background."""
        done = 0
        for launcher in list(self.launchers.values()):
            try:
                done += await self._sweep(launcher, hold_s)
            except LauncherUnavailable as error:
                log.warning("launcher %s does not answer: %s", launcher.name, error)
        return done

    async def _sweep(self, launcher: Launcher, hold_s: float) -> int:
        """Lists the machines before it reads the rows, since a machine in the list then always has its row."""
        statuses = {status.name: status for status in await launcher.machines(await self.installation())}
        async with self._store.single() as tx:
            rows = await MachineTable(tx.session).open_machines(launcher.name, launcher.place)
        room, begun = asyncio.Semaphore(AT_ONCE), []
        for row, task, now in rows:
            name = rules.machine_name(row.task_id, row.attempt)
            handle = partial(self._handle, launcher, row, task, statuses.pop(name, None), now)
            begun += self._begin(launcher, name, room, handle)
        for stray in statuses.values():
            begun += self._begin(launcher, stray.name, room, partial(self._remove_stray, launcher, stray))
        if not begun:
            return 0
        done, _ = await asyncio.wait(begun, timeout=hold_s)
        return sum(one.result() for one in done)

    def _begin(
        self, launcher: Launcher, name: str, room: asyncio.Semaphore, handle: Callable[[], Awaitable[bool]]
    ) -> list[asyncio.Task[bool]]:
        """Handle a machine, unless an earlier sweep still does. An error is logged, and does not affect the others."""
        key = launcher.name, name
        if key in self._handling:
            return []

        async def guarded() -> bool:
            try:
                async with room:
                    return await handle()
            except (WindlassError, LauncherUnavailable) as error:
                log.warning("machine %s could not be handled, the next sweep tries again: %s", name, error)
            except Exception:
                log.exception("machine %s could not be handled", name)
            return False

        self._handling[key] = begun = asyncio.create_task(guarded())
        begun.add_done_callback(lambda _: self._handling.pop(key))
        return [begun]

    async def stop_handling(self) -> None:
        """Stop handling machines. The next sweep, of this or another server, starts over with them."""
        begun = list(self._handling.values())
        for handling in begun:
            handling.cancel()
        await asyncio.gather(*begun, return_exceptions=True)

    async def _remove_stray(self, launcher: Launcher, status: MachineStatus) -> bool:
        """Remove a machine that has no row."""
        log.warning("machine %s belongs to no task and is removed", status.name)
        await launcher.stop(status.name, status.id, 0.0)
        return True

    async def _handle(
        self, launcher: Launcher, row: MachineRow, task: Task | None, status: MachineStatus | None, now: datetime
    ) -> bool:
        """Handle one machine. Returns False if there was nothing to do."""
        if task is None or not runs(task, row.attempt):
            alive = status is not None and status.phase is not Phase.EXITED
            if alive and task is not None and rules.cleans_up(task, row.attempt, now):
                return False
            await self._remove(launcher, row, status, DEFAULT_GRACE_S if task is not None and task.cancel else 0.0)
            return True
        if row.launched_at is None:
            return False  # the outbox is still launching it
        name = rules.machine_name(row.task_id, row.attempt)
        if status is None:
            status = await launcher.status(name, row.machine_id)
        ended = status is None or status.phase is Phase.EXITED
        overdue = row.deadline_at is not None and row.deadline_at <= now
        if not ended and task.cancel is None and not overdue:
            return False
        if not ended and task.cancel is not None:
            await launcher.stop(name, row.machine_id, task.policy.cancel_grace_s)
            status = None
        await self._call(await self._ended(row, task, status, overdue=overdue))
        self._notify(row.task_id)
        await self._remove(launcher, row, status, 0.0)
        return True

    async def _ended(self, row: MachineRow, task: Task, status: MachineStatus | None, *, overdue: bool) -> rules.Ended:
        """The command for a machine that ended or is overdue. Raises Unavailable while the store of its object does not
        answer, unless the machine is overdue."""
        result, problem = None, ""
        if status is not None and status.phase is Phase.EXITED and status.exit_code == 0:
            try:
                result = await self._object_result(task)
            except Unavailable as error:
                if not overdue:
                    raise
                problem = f"the store could not be checked for the object: {error.message}"
        run_s = None
        if overdue and row.launched_at is not None and row.deadline_at is not None:
            run_s = (row.deadline_at - row.launched_at).total_seconds()
        kept = None if status is None else storable(status)
        if kept is not None and kept.output:
            kept = msgspec.structs.replace(kept, output=await self.mask(task, kept.output))
        return rules.Ended(row.task_id, row.attempt, kept, result, run_s, problem, self._randomness.jitter())

    async def _object_result(self, task: Task) -> bytes | None:
        """The result of a machine that did not call back: its object, if there is exactly one."""
        blobs = await self.blobs()
        found = [blob async for blob in blobs.list(rules.object_prefix(task).rstrip("/"))]
        return None if len(found) != 1 else ObjectResult.of(found[0].key, found[0].size, observed=True).encode()

    async def _remove(self, launcher: Launcher, row: MachineRow, status: MachineStatus | None, grace_s: float) -> None:
        await launcher.stop(rules.machine_name(row.task_id, row.attempt), row.machine_id, grace_s)
        code, reason = (None, None) if status is None else (status.exit_code, storable(status).reason or None)
        async with self._store.single() as tx:
            await MachineTable(tx.session).close_machine(row.task_id, row.attempt, code, reason)
        self.wake_objects()

    # ----------------------------------------------------------------------------------------- objects

    async def downloaded(self, task_id: UUID) -> None:
        """A client has downloaded the whole object of a task."""
        async with self._store.single() as tx:
            await MachineTable(tx.session).mark_downloaded(task_id)
        self.wake_objects()

    async def discard_late_object(self, task: Task) -> None:
        """Schedule the deletion of an object that was written after its attempt had ended. The objects of the task may
        already have been deleted, so their row is written again."""
        async with self._store.single() as tx:
            await MachineTable(tx.session).keep_objects(task.id, rules.object_prefix(task), 0.0)
        self.wake_objects()

    @contextmanager
    def using(self, task_id: UUID) -> Iterator[None]:
        """Keep the objects of a task while one of them is read or written here."""
        self._used[task_id] += 1
        try:
            yield
        finally:
            self._used[task_id] -= 1
            if not self._used[task_id]:
                del self._used[task_id]
                self.wake_objects()

    async def object_tick(self) -> int:
        """Delete objects that are no longer kept. After a crash some are deleted a second time. Raises Unavailable at
        the first object if the store does not answer, since it would not answer for the others either."""
        async with self._store.single() as tx:
            due = await MachineTable(tx.session).due_objects(OBJECTS_BATCH)
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
                    await MachineTable(tx.session).forget_objects(gone)
                    await MachineTable(tx.session).forget_machines()
        return len(gone) if len(due) == OBJECTS_BATCH else 0


def storable(status: MachineStatus) -> MachineStatus:
    """Clean the output of a machine and the reason that its vendor gives: both may be any text."""
    output, reason = clean_text("output", status.output, OUTPUT_MAX), clean_text("reason", status.reason, REASON_MAX)
    return msgspec.structs.replace(status, output=output, reason=reason)


async def _as_it_is(_: Task, text: str) -> str:
    return text
