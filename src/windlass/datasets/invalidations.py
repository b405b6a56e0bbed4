"""Invalidations: a part of a dataset was wrong. Each job that reads it gets one task, which repairs what it made of it.

A task of an invalidation has no window: it moves no cursor. A job that reads windows runs one task at a time, so no
window is read meanwhile. A reader with `trigger: false` gets none, as it gets none when there is new data.
"""

from __future__ import annotations

from uuid import UUID

import msgspec

from windlass.core.access import Principal
from windlass.core.ids import derived_id
from windlass.core.position import Position
from windlass.datasets.catalog import find_dataset, no_partition
from windlass.datasets.router import Router
from windlass.datasets.rules import invalidation as rules
from windlass.datasets.rules.invalidation import INVALIDATE, Invalidation, InvalidPart, Scope
from windlass.datasets.rules.job import LEFT
from windlass.datasets.rules.owed import INVALIDATION, Given, Owed, Partition, Trigger, invalidation_task
from windlass.datasets.rules.schema import DatasetSchema
from windlass.datasets.tables.backfills import BackfillTable
from windlass.datasets.tables.catalog import CatalogTable
from windlass.datasets.tables.invalidations import InvalidationTable, InvalidationView
from windlass.datasets.tables.jobs import JobTable, LiveEdge
from windlass.engine.engine import Engine
from windlass.errors import Conflict, InvalidState
from windlass.store.notify import PendingNotifications
from windlass.store.transaction import Transaction

BATCH = 50
PAGE_DEFAULT = 50


class Invalidations:
    """The invalidations of one database."""

    def __init__(self, engine: Engine) -> None:
        self._store, self._randomness = engine.parts.store, engine.parts.randomness
        self._router = engine.service(Router)

    async def invalidate(
        self, caller: Principal, which: UUID | str, namespace: str | None, part: InvalidPart, *, key: str | None = None
    ) -> InvalidationView:
        """Record that a part of the current version of a dataset is wrong, and make the tasks of its readers. The same
        key is the same invalidation."""
        async with self._store.begin() as tx:
            dataset = await find_dataset(tx, caller, which, namespace)
            version = dataset.current_version
            if version is None:
                raise InvalidState("the dataset has no active version", dataset=str(which))
            schema = None if dataset.schema is None else msgspec.json.decode(dataset.schema, type=DatasetSchema)
            rules.check(part, schema)
            if part.partition_key is not None:
                found = await CatalogTable(tx.session).partition(version, part.partition_key)
                if found is None:
                    raise no_partition(dataset, part.partition_key)
            id_ = self._randomness.new_id() if key is None else derived_id("invalidation", dataset.namespace, key)
            source = msgspec.json.encode({"kind": "key", "name": caller.name}).decode()
            made = Invalidation(
                id_, dataset.namespace, dataset.id, version, part.scope, part.partition_key, part.filter_json,
                part.reason, source, await tx.now(),
            )  # fmt: skip
            table = InvalidationTable(tx.session)
            if await table.insert([made]):
                await self._make(tx, made)
                await tx.wake(PendingNotifications(effects=True))
            view = await table.get(id_)
            assert view is not None, id_
        if view.invalidation.content != made.content:
            raise Conflict("something else was invalidated with this Idempotency-Key")
        return view

    async def page(
        self,
        caller: Principal,
        which: UUID | str,
        namespace: str | None,
        *,
        after: Position | None = None,
        limit: int = PAGE_DEFAULT,
    ) -> list[InvalidationView]:
        """The invalidations of a dataset, newest first."""
        async with self._store.begin() as tx:
            dataset = await find_dataset(tx, caller, which, namespace)
            return await InvalidationTable(tx.session).page(dataset.id, after, limit)

    async def tick(self) -> int:
        """Make the tasks of invalidations that tasks have reported, or whose jobs were paused, and record what was
        processed. Returns the number of changes."""
        changes = 0
        async with self._store.begin() as tx:
            effects = await tx.outbox.lock_effects(INVALIDATE, BATCH)  # they only wake this loop
            await tx.outbox.delete_effects([effect.id for effect in effects])
            for invalidation in await InvalidationTable(tx.session).lock_unrouted(BATCH):
                changes += await self._make(tx, invalidation)
        async with self._store.begin() as tx:
            return changes + await InvalidationTable(tx.session).settle(LEFT)

    async def _make(self, tx: Transaction, invalidation: Invalidation) -> int:
        """Make the tasks of the jobs that read the data and have none yet. Returns their number. A job that is paused
        or held gets its task later."""
        table, version = InvalidationTable(tx.session), invalidation.dataset_version
        edges = [
            edge
            for edge in await JobTable(tx.session).edges_on([invalidation.dataset_uuid])
            if edge.dataset_version == version and edge.trigger
        ]
        partition = await _partition(tx, invalidation)
        owed = [_owed(invalidation, edge, partition) for edge in edges if edge.is_fed]
        made = await self._router.make_tasks(tx, owed)
        await table.insert_tasks(invalidation.id, {job_id: task_id for (job_id, _), task_id in made.new.items()})
        if not made.waiting and all(edge.is_fed for edge in edges):
            await table.mark_routed(invalidation.id)
            return max(1, len(made.new))
        return len(made.new)


async def _partition(tx: Transaction, invalidation: Invalidation) -> Partition | None:
    if invalidation.scope is not Scope.PARTITION or invalidation.key is None:
        return None
    key = invalidation.key
    found = await BackfillTable(tx.session).committed({0: invalidation.dataset_version}, [key])
    return found[key].get(0) or Partition(key)


def _owed(invalidation: Invalidation, edge: LiveEdge, partition: Partition | None) -> Owed:
    """The task of a job. One that reads the dataset by two inputs has one task, in which both are invalid."""
    given = Given(edge.input_index, invalidation.dataset_version, partition=partition, invalidation=invalidation.shown)
    return Owed(
        edge.job_id, edge.deployment_id, invalidation_task(invalidation.id),
        Trigger(INVALIDATION, invalidation_id=invalidation.id), (given,),
    )  # fmt: skip
