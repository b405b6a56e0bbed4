"""What people do about work that did not go well: try it again, one or many, and look after dead effects."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec

from windlass.core import command
from windlass.core.check import check_count, check_name, check_type
from windlass.core.command import Command
from windlass.core.error import Invalid, InvalidState, NotFound
from windlass.core.position import Position, check_position
from windlass.core.reference import is_reference
from windlass.core.replay import REPLAYABLE, replay
from windlass.core.submission import Submission
from windlass.core.task import Task
from windlass.core.transition import State
from windlass.engine.chance import Chance
from windlass.engine.committer import Committer
from windlass.engine.objects import Objects
from windlass.engine.submit import Submitter
from windlass.engine.view import TaskViews
from windlass.store.store import Store
from windlass.store.view import ALWAYS, Created, EffectView, TaskView
from windlass.store.wake import Wakes

__all__ = ["REPLAY_MAX", "EffectView", "Repair", "Replayed"]

REPLAY_MAX = 1000
EFFECTS_MAX = 1000
PART = 50  # payloads of so many are held in memory at a time


class Replayed(msgspec.Struct, frozen=True):
    """How many tasks matched (of those that were looked at), what they are done again as, and where to go on."""

    matched: int
    task_ids: list[UUID]
    next: Position | None


class Repair:
    """Retries and replays of one engine."""

    def __init__(
        self, store: Store, chance: Chance, submitter: Submitter, commands: Committer[Command, Task], objects: Objects
    ) -> None:
        self._store, self._chance, self._submitter, self._commands = store, chance, submitter, commands
        self._objects = objects
        self._views = TaskViews(store)

    async def retry(self, task_id: UUID) -> UUID:
        """Try it now. Returns the id of the task that will run: the same, or for one that has ended a new one."""
        check_type("task_id", task_id, UUID)
        view = await self._views.get(task_id)
        if view.task.terminal:
            return await self._submitter.submit(await self._replay(view))
        return (await self._commands.call(command.Hurry(task_id))).id

    async def replay(
        self,
        *,
        namespace: str = "default",
        states: Sequence[State] = (State.FAILED,),
        queue: str | None = None,
        kind: str | None = None,
        run_id: UUID | None = None,
        created: Created = ALWAYS,
        after: Position | None = None,
        limit: int = REPLAY_MAX,
        dry_run: bool = False,
    ) -> Replayed:
        """Do again what did not succeed, newest first, at most `limit` of them. Asked again, it does nothing twice."""
        check_count("limit", limit, least=1, most=REPLAY_MAX)
        if not states or not set(states) <= REPLAYABLE:
            raise Invalid("only what did not succeed is replayed: failed, cancelled, skipped", field="states")
        page = await self._views.page(
            namespace=namespace, states=states, queue=queue, kind=kind, run_id=run_id, created=created, after=after,
            limit=limit,
        )  # fmt: skip
        made: list[UUID] = []
        for part in () if dry_run else _parts([row.task.id for row in page.tasks]):
            views = await self._views.get_many(part)
            small = [view for view in views if not is_reference(view.payload)]
            made += await self._submitter.submit_all([await self._replay(view) for view in small])
            for view in views:  # one by one, since each is held in memory
                if is_reference(view.payload):
                    made.append(await self._submitter.submit(await self._replay(view)))
        return Replayed(len(page.tasks), made, page.next)

    # ----------------------------------------------------------------------------------------- the outbox

    async def effects(
        self, namespace: str = "default", *, dead: bool | None = None, after: Position | None = None, limit: int = 50
    ) -> list[EffectView]:
        """Effects that wait, were given up (`dead`), or both, newest first."""
        check_name("namespace", namespace)
        check_position("after", after)
        check_count("limit", limit, least=1, most=EFFECTS_MAX + 1)
        async with self._store.views() as views:
            return await views.list_effects(namespace, dead, after, limit)

    async def effect(self, effect_id: UUID) -> EffectView:
        check_type("effect_id", effect_id, UUID)
        async with self._store.views() as views:
            found = await views.get_effect(effect_id)
        if found is None:
            raise NotFound(f"there is no effect {effect_id}", effect_id=effect_id)
        return found

    async def revive(self, effect: EffectView) -> EffectView:
        """A dead effect is tried again, as if it were new."""
        async with self._store.begin() as tx:
            if not await tx.outbox.revive_effect(effect.id):
                raise _not_dead(effect)
            await tx.wake(Wakes(effects=True))
        return await self.effect(effect.id)

    async def discard(self, effect: EffectView) -> EffectView:
        """A dead effect is thrown away; returns it as it was."""
        async with self._store.begin() as tx:
            if not await tx.outbox.discard_effect(effect.id):
                raise _not_dead(effect)
        return effect

    async def _replay(self, view: TaskView) -> Submission:
        """With a payload of its own, if that is an object."""
        payload = await self._objects.load(view.payload)
        return replay(view.task, payload, view.requires, view.wire, self._chance.new_id())


def _not_dead(effect: EffectView) -> InvalidState:
    return InvalidState("only what was given up is retried or discarded by hand", effect_id=effect.id)


def _parts(ids: list[UUID]) -> list[list[UUID]]:
    return [ids[start : start + PART] for start in range(0, len(ids), PART)]
