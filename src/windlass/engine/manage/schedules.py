"""Operations on schedules: create, change, pause, trigger, preview, declare in code.

`core.schedule` decides what each of them means; `engine.loops.schedule_loop` fires what is due.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from windlass.core import schedule as rules
from windlass.core.cron import parse_cron
from windlass.core.cron_times import first_fires
from windlass.core.ids import derived_id
from windlass.core.payload_reference import same_json
from windlass.core.position import Position
from windlass.core.schedule import Overlap, Schedule, ScheduleSpec
from windlass.core.validation import check_instant, check_name
from windlass.engine.commit.lock_waits import LONG_MS
from windlass.engine.loops.schedule_loop import cancel_replaced, with_policy
from windlass.engine.manage.timezones import zone_of
from windlass.engine.randomness import Randomness
from windlass.engine.submit.submitter import add_each
from windlass.errors import Conflict, Invalid, InvalidState, NotFound
from windlass.store.notify import PendingNotifications
from windlass.store.store import Store
from windlass.store.transaction import Transaction

log = logging.getLogger("windlass.schedule")

PREVIEW_MAX = 1000
GONE = timedelta(minutes=5)  # a schedule that no worker has declared for so long is deleted


class Schedules:
    """The schedules of one database."""

    def __init__(self, store: Store, randomness: Randomness) -> None:
        self._store, self._randomness = store, randomness

    # ----------------------------------------------------------------------------------------- what people do

    async def create(
        self, spec: ScheduleSpec, *, namespace: str = "default", schedule_id: UUID | None = None, key: str | None = None
    ) -> Schedule:
        """Create a schedule. Repeating a `key`, or a name with the same content, returns the existing schedule."""
        check_name("namespace", namespace)
        zone, id_ = zone_of(spec.timezone), schedule_id or self._randomness.new_id()
        async with self._store.begin() as tx:
            made = rules.create(spec, id_, namespace, zone, await tx.now())
            if await tx.schedules.insert(made, key):
                await tx.wake(PendingNotifications(schedules=True))
                return made
            if key is not None and (known := await tx.schedules.find_request(namespace, key)) is not None:
                return known
            known = await tx.schedules.find(None, namespace, spec.name or "")
        if known is None or known.app is not None or not _same(known.spec, spec):
            raise Conflict(f"there is a schedule {spec.name or id_} already", name=spec.name)
        return known

    async def get(self, which: UUID | str, *, namespace: str = "default") -> Schedule:
        """By its id, or by its name in a namespace."""
        if not isinstance(which, UUID):
            check_name("name", which)  # any text in the path of a URL
        async with self._store.begin() as tx:
            return await _found(tx, which, namespace)

    async def page(
        self, namespace: str = "default", *, queue: str | None = None, after: Position | None = None, limit: int = 100
    ) -> list[Schedule]:
        """Newest first; `after` is where the page before ended."""
        async with self._store.begin() as tx:
            return await tx.schedules.page(namespace, queue, after, limit)

    async def update(
        self, schedule_id: UUID, changes: Mapping[str, Any], *, next_fire_at: datetime | None = None
    ) -> Schedule:
        """Change the given fields only. `next_fire_at` sets the next fire, whatever the cron says; fires of the cron
        before it are left out."""
        if next_fire_at is not None:
            check_instant("next_fire_at", next_fire_at)

        def changed(known: Schedule, now: datetime) -> Schedule:
            if changes.keys() - {"paused"} or next_fire_at is not None:
                rules.check_free(known, now, GONE)
            zone = zone_of(changes.get("timezone", known.timezone))
            after = rules.change(known, changes, zone, now)
            return after if next_fire_at is None else rules.fire_next_at(after, next_fire_at, now)

        return await self._change(schedule_id, changed)

    async def pause(self, schedule_id: UUID) -> Schedule:
        """No fires until it is resumed."""
        return await self._change(schedule_id, rules.pause)

    async def resume(self, schedule_id: UUID) -> Schedule:
        """Fire again. The newest `max_catchup` of the missed fires are caught up."""
        return await self._change(schedule_id, lambda known, now: rules.resume(known, zone_of(known.timezone), now))

    async def delete(self, schedule_id: UUID) -> Schedule:
        """Delete a schedule. Tasks that it has submitted stay."""
        async with self._store.begin() as tx:
            known = await _locked(tx, schedule_id)
            rules.check_free(known, await tx.now(), GONE)
            await tx.schedules.delete([known.id])
        return known

    async def trigger(self, schedule_id: UUID, *, key: str | None = None) -> UUID:
        """Submit its task now, besides its fires. Returns the task's id. Repeating a `key` returns the same task."""
        task_id = self._randomness.new_id()
        mark = f"schedule:{schedule_id}:manual:{task_id if key is None else derived_id('trigger', schedule_id, key)}"
        async with self._store.begin() as tx:
            known = await _locked(tx, schedule_id)
            taken = await tx.tasks.find_idempotency_keys([(known.namespace, mark)])
            if taken:
                return taken[known.namespace, mark][0]
            unended = (await tx.schedules.open_tasks([schedule_id])).get(schedule_id, [])
            now = await tx.now()
            [fire] = rules.plan_fires(known, [now], unended, [task_id])
            if fire.task_id is None:
                raise InvalidState(f"its task {unended[0].id} has not ended", task_id=unended[0].id)
            task = with_policy(known, await tx.kinds.policies([(known.namespace, known.kind)]))
            await add_each(tx, [rules.submission(task, task_id, mark, fire.after)])
            await cancel_replaced(tx, unended if known.overlap is Overlap.CANCEL else [], now)
        return task_id

    async def task_page(
        self, schedule_id: UUID, *, after: Position | None = None, limit: int = 50
    ) -> Sequence[Position]:
        """The ids of the tasks that it has submitted, each with the time of its submission, newest first."""
        async with self._store.begin() as tx:
            return await tx.schedules.task_page(schedule_id, after, limit)

    async def preview(self, schedule_id: UUID, count: int = 10, *, after: datetime | None = None) -> list[datetime]:
        """Its next fires, also while it is paused."""
        async with self._store.begin() as tx:
            known = await _found(tx, schedule_id, "")
            start = await tx.now() if after is None else after
        fires = await self.preview_cron(known.cron, known.timezone, count, after=max(start, known.settled_at))
        extra = known.extra_fire_at
        return fires if extra is None or (after is not None and extra <= after) else [extra, *fires][:count]

    async def preview_cron(
        self, cron: str, timezone: str = "UTC", count: int = 10, *, after: datetime | None = None
    ) -> list[datetime]:
        """When an expression would fire."""
        parsed, zone = parse_cron(cron), zone_of(timezone)
        if after is None:
            async with self._store.single() as tx:
                after = await tx.now()
        check_instant("after", after)
        return first_fires(parsed, zone, after, count)

    @staticmethod
    def local(fires: Sequence[datetime], timezone: str) -> list[datetime]:
        """The same instants in local time of the zone."""
        zone = zone_of(timezone)
        return [fire.astimezone(zone) for fire in fires]

    async def _change(self, schedule_id: UUID, decide: Callable[[Schedule, datetime], Schedule]) -> Schedule:
        async with self._store.begin() as tx:
            known = await _locked(tx, schedule_id)
            after = decide(known, await tx.now())
            if after is not known:
                if after.name != known.name and await tx.schedules.find(None, known.namespace, after.name or ""):
                    raise Conflict(f"there is a schedule {after.name} already", name=after.name)
                await tx.schedules.update(after)
                await tx.wake(PendingNotifications(schedules=True))
        return after

    # ----------------------------------------------------------------------------------------- what code declares

    async def declare(
        self, app: str, specs: Sequence[ScheduleSpec], *, namespace: str = "default", anew: bool = True
    ) -> int:
        """Declare the schedules of an app's code. With `anew` (when a worker starts) they are created or changed; later
        calls only keep them declared. A schedule that no worker has declared for a while is deleted. Returns the number
        of remaining schedules of the app that this worker does not declare."""
        check_name("app", app)
        check_name("namespace", namespace)
        wanted = {spec.name: spec for spec in specs if spec.name is not None}
        if len(wanted) < len(specs):
            raise Invalid("each must have a name of its own", field="schedules")
        async with self._store.begin() as tx:
            known = {s.name: s for s in await tx.schedules.lock_declared(namespace, app, list(wanted))}
            now = await tx.now()
            for name in sorted(wanted) if anew else ():  # in one order, so that two workers that start cannot deadlock
                await self._declared(tx, known.get(name), wanted[name], app, namespace, now)
            await tx.schedules.touch_declared([s.id for s in known.values() if s.app == app and s.name in wanted])
            others = [s for s in known.values() if s.app == app and s.name not in wanted]
            gone = [s for s in others if s.declared_at is None or s.declared_at <= now - GONE]
            if gone:
                log.info("removing schedules that the app %s no longer declares: %s", app, [s.name for s in gone])
                await tx.schedules.delete([s.id for s in gone])
        return len(others) - len(gone)

    async def _declared(
        self, tx: Transaction, known: Schedule | None, spec: ScheduleSpec, app: str, namespace: str, now: datetime
    ) -> None:
        zone = zone_of(spec.timezone)
        if known is None:
            await tx.schedules.insert(rules.create(spec, self._randomness.new_id(), namespace, zone, now, app=app))
        elif known.app != app:
            raise Conflict(f"there is a schedule {spec.name} already, which the app {app} did not declare")
        else:
            declared = {field: getattr(spec, field) for field in rules.SPEC_FIELDS if field != "paused"}
            changes = {field: value for field, value in declared.items() if value != getattr(known, field)}
            if not changes:
                return
            await tx.schedules.update(rules.change(known, changes, zone, now))
        await tx.wake(PendingNotifications(schedules=True))


async def _found(tx: Transaction, which: UUID | str, namespace: str) -> Schedule:
    by_id = which if isinstance(which, UUID) else None
    known = await tx.schedules.find(by_id, namespace, "" if isinstance(which, UUID) else which)
    if known is None:
        raise NotFound(f"there is no schedule {which}", schedule=str(which))
    return known


async def _locked(tx: Transaction, schedule_id: UUID) -> Schedule:
    await tx.limit_waits(LONG_MS)
    known = await tx.schedules.lock(schedule_id)
    if known is None:
        raise NotFound(f"there is no schedule {schedule_id}", schedule=str(schedule_id))
    return known


def _same(known: ScheduleSpec, spec: ScheduleSpec) -> bool:
    """Whether both are the same except for `paused`, which may have changed since."""
    fields = set(rules.SPEC_FIELDS) - {"paused", "payload"}
    return all(getattr(known, f) == getattr(spec, f) for f in fields) and same_json(known.payload, spec.payload)
