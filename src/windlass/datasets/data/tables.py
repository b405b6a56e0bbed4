"""Makes, shows and drops the tables of PostgreSQL datasets.

A deploy makes its tables in its request; if the data database is away, the tick makes them later, and the deployment is
not ready before. A view shows the current version of a dataset to other tools. It is moved after each cutover: the
version is read from the state under the lock of the view, so that it does not matter which of two effects comes last.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from uuid import UUID

from windlass.core.states import Effect
from windlass.datasets.data.database import DataDatabase
from windlass.datasets.rules import table_sql
from windlass.datasets.rules.dag import WriteMode
from windlass.datasets.tables.sink import SinkTable, VersionWithoutTable
from windlass.engine.engine import Engine
from windlass.errors import Conflict, Unavailable
from windlass.store.errors import LockHeld

log = logging.getLogger("windlass.datasets")

VIEW = "dataset_view"  # the effect that makes views show the versions that are current
BATCH = 50
READER_WAIT_MS = 200  # for the end of a query on a view. Queries that begin meanwhile wait behind this one


def views_effect(id_: UUID, namespace: str, dag: str, deployment_id: UUID) -> Effect:
    """The effect of a cutover on the views of a DAG."""
    return Effect(id_, VIEW, namespace, deployment_id, 0, {"dag": dag})


class DataTables:
    """The tables of datasets, for one engine."""

    def __init__(self, engine: Engine) -> None:
        self._store, self._data = engine.parts.store, engine.service(DataDatabase)

    async def make(self, deployment_id: UUID | None = None) -> int:
        """Make the tables that a deployment needs, or all that are missing. Returns their number. Raises Unavailable if
        the data database is away."""
        async with self._store.single() as tx:
            missing = await SinkTable(tx.session).versions_without_table(deployment_id)
        if not missing:
            return 0
        async with self._data.begin() as session:
            for version in sorted(missing):
                await session.fetch("lock_data", version.id)
                for statement in _statements(version):
                    await session.execute(statement)
                await session.fetch("put_data_version", version.id, version.dataset_uuid)
        async with self._store.single() as tx:
            await SinkTable(tx.session).mark_tables(
                {version.id: table_sql.location_of(version.id) for version in missing}
            )
        return len(missing)

    async def make_soon(self, deployment_id: UUID) -> None:
        """Make the tables of a deployment, or leave it to the tick."""
        try:
            await self.make(deployment_id)
        except Unavailable as error:
            log.warning("the tables of deployment %s are made later: %s", deployment_id, error)

    async def tick(self) -> int:
        """Make tables that are missing, move views, drop purged tables. Returns the number of changes. Raises
        Unavailable if the data database is away: all of it stays to be done."""
        return await self.make() + await self._move_views() + await self.drop_purged()

    async def _move_views(self) -> int:
        async with self._store.begin() as tx:
            effects = await tx.outbox.lock_effects(VIEW, BATCH)
            done = [one.id for one in effects if await self._show_current(one.namespace, str(one.body["dag"]))]
            if done:
                await tx.outbox.delete_effects(done)
        return len(done)

    async def _show_current(self, namespace: str, dag: str) -> bool:
        """Move the views of a DAG. Returns False if one has to be moved later, since somebody reads it."""
        moved = True
        for dataset_uuid in sorted(await self._current(namespace, dag)):
            try:
                await self._move_view(namespace, dag, dataset_uuid)
            except LockHeld:
                moved = False
            except Conflict as error:  # a person has built on the view
                log.warning("the view of dataset %s stays on its version: %s", dataset_uuid, error)
        return moved

    async def _move_view(self, namespace: str, dag: str, dataset_uuid: UUID) -> None:
        async with self._data.begin() as session:
            await session.fetch("lock_data", dataset_uuid)
            version = (await self._current(namespace, dag)).get(dataset_uuid)
            shown = await session.fetch("get_data_view", dataset_uuid)
            if version is None or (shown and shown[0][0] == version):
                return
            await session.limit_lock_wait(READER_WAIT_MS)
            for statement in table_sql.replace_view(dataset_uuid, version):
                await session.execute(statement)
            await session.fetch("put_data_view", dataset_uuid, version)

    async def _current(self, namespace: str, dag: str) -> dict[UUID, UUID]:
        async with self._store.single() as tx:
            return await SinkTable(tx.session).views_of_dag(namespace, dag)

    async def drop_purged(self) -> int:
        """Drop the tables of purged versions. Returns their number. Raises Unavailable if the data database is away."""
        async with self._store.single() as tx:
            purged = await SinkTable(tx.session).purged_tables(BATCH)
        dropped = 0
        for version in purged:
            try:
                await self._drop(version)
            except Conflict as error:
                log.warning("the table of the purged version %s stays: %s", version, error)
                continue
            async with self._store.single() as tx:
                await SinkTable(tx.session).forget_table(version)
            dropped += 1
        return dropped

    async def _drop(self, version: UUID) -> None:
        async with self._data.begin() as session:
            await session.fetch("lock_data", version)
            for row in await session.fetch("delete_data_view", version):
                await session.execute(table_sql.drop_view(row[0]))
            await session.execute(table_sql.drop_table(version))


def _statements(version: VersionWithoutTable) -> Sequence[str]:
    return table_sql.create_table(
        version.id, version.schema, version.namespace, buffered=version.write_mode == WriteMode.BUFFERED
    )
