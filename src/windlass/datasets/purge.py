"""Purges versions of datasets that no deployment needs any more: their objects in the lake, their table, their rows.

A person orders it; from then on the version is purged, and nothing is committed to it. A loop deletes the data, in
steps that may be repeated, so that any server goes on with what one that died has begun. After that, a deploy of the
same file builds the version again, from the beginning.
"""

from __future__ import annotations

import logging
from uuid import UUID

from windlass.core.access import Principal
from windlass.datasets.catalog import find_dataset
from windlass.datasets.data.tables import DataTables
from windlass.datasets.lake import Lake, delete_some
from windlass.datasets.rules.manifest import folder_name
from windlass.datasets.rules.purge import KEEPS, needed_by
from windlass.datasets.sources import locked_dag
from windlass.datasets.tables.catalog import VersionView
from windlass.datasets.tables.events import DatasetTable
from windlass.datasets.tables.jobs import JobTable
from windlass.datasets.tables.lake import LakeTable
from windlass.datasets.tables.purge import PurgedVersion, PurgeTable
from windlass.engine.commit.lock_waits import LONG_MS
from windlass.engine.engine import Engine
from windlass.errors import InvalidState, NotFound, Unavailable
from windlass.store.notify import PendingNotifications

log = logging.getLogger("windlass.datasets")

VERSIONS, ROWS, OBJECTS = 20, 5000, 500


class Purge:
    """The purges of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._store, self._lake, self._tables = engine.parts.store, engine.service(Lake), engine.service(DataTables)

    async def order(self, caller: Principal, which: UUID | str, namespace: str | None, version: UUID) -> VersionView:
        """Purge a version. Its data is deleted soon. Raises InvalidState if a deployment needs it. Purging a version
        twice is purging it once."""
        async with self._store.begin() as tx:
            dataset = await find_dataset(tx, caller, which, namespace)
            await locked_dag(tx, dataset.namespace, dataset.dag)  # no deploy or cutover points to it meanwhile
            table = PurgeTable(tx.session)
            created_at = await table.created_at(dataset.id, version)
            if created_at is None:
                raise NotFound(f"the dataset has no version {version}", dataset_version=version)
            if (kept := needed_by(await table.pointing(version))) is not None:
                why = f"is {kept.state}" if kept.state in KEEPS else "is the previous one, for a rollback"
                raise InvalidState(
                    f"version {kept.number} of DAG {dataset.dag} needs this data: it {why}", dataset_version=version
                )
            if (reader := await table.carrying(version)) is not None:
                raise InvalidState(
                    f"job {reader} has read this version, and is not carried over to the current one yet: resume its "
                    "DAG, and let its tasks end", dataset_version=version,
                )  # fmt: skip
            await tx.limit_waits(LONG_MS)
            await DatasetTable(tx.session).lock_versions([version])  # a commit is over, or will see the purge
            await table.mark(version)
            await tx.wake(PendingNotifications(effects=True))
        return VersionView(version, "purged", created_at, None, None)

    async def tick(self) -> int:
        """Delete the data of purged versions. Returns the number of versions that are done."""
        async with self._store.single() as tx:
            purged = await PurgeTable(tx.session).open(VERSIONS)
        done = 0
        for version in purged:
            try:
                done += await self._delete(version)
            except Unavailable as error:
                log.warning("the purge of version %s goes on later: %s", version.id, error)
        return done

    async def _delete(self, version: PurgedVersion) -> bool:
        """Delete all data of a version. Returns False if this server cannot, or another one does."""
        if not await self._delete_objects(version):
            return False
        while (rows := await self._delete_rows(version)) != 0:
            if rows is None:
                return False
        if version.has_table:
            await self._tables.drop_purged()
        async with self._store.single() as tx:
            return await PurgeTable(tx.session).end(version.id)

    async def _delete_objects(self, version: PurgedVersion) -> bool:
        """Delete the objects of a version. Its row is locked for each step: who builds it again waits, so that no
        object of the new build is deleted."""
        async with self._store.single() as tx:
            if await LakeTable(tx.session).lake() is None:
                return True
        if not self._lake.configured:
            return False
        blobs, more = await self._lake.blobs(), True
        folder = f"{folder_name(version.namespace)}/{version.dataset_uuid}/{version.id}"
        while more:
            async with self._store.begin() as tx:
                if not await PurgeTable(tx.session).lock(version.id):
                    return False
                page = await blobs.page(f"{folder}/", OBJECTS + 1)
                found = [one for one in page if one.key.startswith(f"{folder}/")]
                more = not await delete_some(blobs, folder, found, OBJECTS)
        return True

    async def _delete_rows(self, version: PurgedVersion) -> int | None:
        """Delete some rows of a version, and of the jobs that wrote or read it. Returns their number; None if another
        server does it."""
        async with self._store.begin() as tx:
            await tx.limit_waits(LONG_MS)
            table, jobs = PurgeTable(tx.session), JobTable(tx.session)
            writers, readers = await table.jobs(version.id)
            await jobs.lock_jobs(writers | readers)  # before the version, as those do that make tasks
            if not await table.lock(version.id):
                return None
            writers -= (await jobs.live_jobs(writers)).keys()
            forgotten = await table.forget_reads(version.id, writers, readers, ROWS)
            return forgotten + await table.delete_rows(version.id, ROWS)
