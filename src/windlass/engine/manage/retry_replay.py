"""Retry and replay of tasks that did not succeed, one or many; and operations on dead effects."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec

from windlass.core import command
from windlass.core.command import Command
from windlass.core.payload_reference import is_reference
from windlass.core.position import Position
from windlass.core.replay import REPLAYABLE, replay
from windlass.core.states import State
from windlass.core.submission import Submission
from windlass.core.task import Task
from windlass.core.validation import check_count
from windlass.engine.commit.committer import Committer
from windlass.engine.payloads.objects import Objects
from windlass.engine.randomness import Randomness
from windlass.engine.read.tasks import TaskViews
from windlass.engine.submit.submitter import Submitter
from windlass.errors import Invalid, InvalidState, NotFound
from windlass.store.notify import PendingNotifications
from windlass.store.store import Store
from windlass.store.tables.view import ALWAYS, Created, EffectView, TaskView

__all__ = ["REPLAY_MAX", "EffectView", "Replayed", "RetryReplay"]

REPLAY_MAX = 1000
PART = 50  # tasks whose payloads are held in memory at a time


class Replayed(msgspec.Struct, frozen=True):
    """The number of tasks that matched (of those that were read), the ids of the new tasks, and the next page."""

    matched: int
    task_ids: list[UUID]
    next: Position | None


class RetryReplay:
    """Retries and replays of one engine."""

    def __init__(
        self,
        store: Store,
        randomness: Randomness,
        submitter: Submitter,
        commands: Committer[Command, Task],
        objects: Objects,
    ) -> None:
        self._store, self._randomness, self._submitter, self._commands = store, randomness, submitter, commands
        self._objects = objects
        self._views = TaskViews(store)

    async def retry(self, task_id: UUID) -> UUID:
        """Run a task now. Returns the id of the task that will run: the same one, or a new one if it has ended."""
        view = await self._views.get(task_id)
        if view.task.terminal:
            return (await self._submitter.submit(await self._replay(view)))[0]
        return (await self._commands.call(command.MakeAvailable(task_id))).id

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
        """Replay tasks that did not succeed, newest first, at most `limit`. A task is replayed only once."""
        check_count("limit", limit, least=1, most=REPLAY_MAX)
        if not states or not set(states) <= REPLAYABLE:
            raise Invalid("only failed, cancelled and skipped tasks are replayed", field="states")
        page = await self._views.page(
            namespace=namespace, states=states, queue=queue, kind=kind, run_id=run_id, created=created, after=after,
            limit=limit,
        )  # fmt: skip
        made: list[UUID] = []
        ids = [] if dry_run else [row.task.id for row in page.tasks]
        for start in range(0, len(ids), PART):
            views = await self._views.get_many(ids[start : start + PART])
            small = [view for view in views if not is_reference(view.payload)]
            made += await self._submitter.submit_all([await self._replay(view) for view in small])
            for view in views:  # one by one, since each is held in memory
                if is_reference(view.payload):
                    made.append((await self._submitter.submit(await self._replay(view)))[0])
        return Replayed(len(page.tasks), made, page.next)

    # ----------------------------------------------------------------------------------------- the outbox

    async def effects(
        self, namespace: str = "default", *, dead: bool | None = None, after: Position | None = None, limit: int = 50
    ) -> list[EffectView]:
        """Effects that wait, were given up (`dead`), or both, newest first."""
        async with self._store.views() as views:
            return await views.list_effects(namespace, dead, after, limit)

    async def effect(self, effect_id: UUID) -> EffectView:
        async with self._store.views() as views:
            found = await views.get_effect(effect_id)
        if found is None:
            raise NotFound(f"there is no effect {effect_id}", effect_id=effect_id)
        return found

    async def revive(self, effect: EffectView) -> EffectView:
        """Try a dead effect again, as if it were new."""
        async with self._store.begin() as tx:
            if not await tx.outbox.revive_effect(effect.id):
                raise _not_dead(effect)
            await tx.wake(PendingNotifications(effects=True))
        return await self.effect(effect.id)

    async def discard(self, effect: EffectView) -> EffectView:
        """Delete a dead effect. Returns it as it was."""
        async with self._store.begin() as tx:
            if not await tx.outbox.discard_effect(effect.id):
                raise _not_dead(effect)
        return effect

    async def _replay(self, view: TaskView) -> Submission:
        """The submission that replays a task. A payload in the blob store is copied."""
        payload = await self._objects.load(view.payload)
        return replay(view.task, payload, view.requires, view.wire, self._randomness.new_id())


def _not_dead(effect: EffectView) -> InvalidState:
    return InvalidState("only a dead effect can be revived or discarded", effect_id=effect.id)
