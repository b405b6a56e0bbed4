"""Deletes what attempts have written to the lake and not committed.

It walks through the store page by page, one server at a time, and asks the database about each staging folder. Which
folders may be deleted is decided by `rules.staging`. The task of a folder is locked while it is deleted: a person who
retries the task, or a job that makes it again, waits, so that no attempt can commit what is about to go.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import groupby
from typing import NamedTuple

from windlass.datasets.lake import Lake, delete_some
from windlass.datasets.rules.staging import Staging, Verdict, judge, staging_of
from windlass.datasets.tables.lake import LakeTable
from windlass.engine.engine import Engine
from windlass.engine.payloads.blob_port import Blobs, Found
from windlass.errors import Unavailable
from windlass.store.transaction import Transaction

log = logging.getLogger("windlass.lake")

KEEP_S = 24 * 3600.0
WALK_EVERY_S, WALK_SHARE = 3600.0, 0.25  # a walk begins so often, or four times within the time that folders are kept
TURN_S = 300.0  # after which another server goes on with the walk of one that died, or that the store did not answer
PAGE = 2000
DELETE_MAX, DELETE_S = 500, 20.0  # objects of one transaction, and its time


class _Folder(NamedTuple):
    """A staging folder, as far as a page shows it."""

    staging: Staging
    newest_at: datetime
    size: int


class CleanUp:
    """Cleans up the lake of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._store, self._lake = engine.parts.store, engine.service(Lake)
        self.keep_s = KEEP_S

    @property
    def every_s(self) -> float:
        """How often a walk begins."""
        return min(WALK_EVERY_S, max(1.0, WALK_SHARE * self.keep_s))

    async def tick(self) -> int:
        """Look at the next page of the store, if it is our turn. Returns 0 at the end of a walk. Raises Unavailable if
        the store does not answer: the walk goes on later, from the same place."""
        if not self._lake.configured:
            return 0
        async with self._store.begin() as tx:
            table = LakeTable(tx.session)
            turn = await table.begin_clean_up(TURN_S)
            first = turn is None and await table.is_missing()
        if first:  # attempts may have written to it, and none has committed yet
            await self._lake.blobs()
            return 1
        if turn is None:
            return 0
        began, walked = turn
        blobs = await self._lake.blobs()
        page = await blobs.page(began, PAGE)
        place, left = await self._clean(blobs, page)
        whole = len(page) < PAGE
        async with self._store.single() as tx:
            await LakeTable(tx.session).end_clean_up(
                began, "" if whole else place or page[-1].key, walked + left, whole=whole,
                pause_s=self.every_s if whole else 0.0,
            )  # fmt: skip
        return 0 if whole else 1

    async def _clean(self, blobs: Blobs, page: Sequence[Found]) -> tuple[str | None, int]:
        """Delete what may be deleted on a page. Returns where to go on if it is not after the page, and the bytes that
        are not committed and stay."""
        folders = _folders(page)
        async with self._store.begin() as tx:
            recorded = await LakeTable(tx.session).recorded([one.staging for one in folders])
            now = await tx.now()
        left, place = 0, None
        for one, known in zip(folders, recorded, strict=True):
            verdict = judge(one.staging, known, one.newest_at, now, timedelta(seconds=self.keep_s))
            if verdict is Verdict.DELETE:
                verdict = await self._delete(blobs, one)
            if verdict in (Verdict.OPEN, Verdict.YOUNG):
                left += one.size
            if one is folders[-1] and verdict is Verdict.COMMITTED and len(page) == PAGE:
                place = one.staging.after  # the rest of its files is committed as well
        return place, left

    async def _delete(self, blobs: Blobs, folder: _Folder) -> Verdict:
        """Delete a staging folder, unless somebody works on its task: then the next walk comes back to it."""
        verdict, more = Verdict.OPEN, True
        while more:
            async with self._store.begin() as tx:
                if not await LakeTable(tx.session).lock(folder.staging):
                    return verdict
                try:
                    async with asyncio.timeout(DELETE_S):
                        verdict, more = await self._delete_locked(tx, blobs, folder)
                except TimeoutError:
                    raise Unavailable(f"{blobs.url} has not answered within {DELETE_S:.0f} seconds") from None
        return verdict

    async def _delete_locked(self, tx: Transaction, blobs: Blobs, folder: _Folder) -> tuple[Verdict, bool]:
        """Judge a folder once more, as a whole, and delete some of its objects. Returns whether there are more."""
        staging, keep = folder.staging, timedelta(seconds=self.keep_s)
        [known] = await LakeTable(tx.session).recorded([staging])
        found = [one async for one in blobs.list(staging.key)]
        newest_at = max((one.modified_at for one in found), default=folder.newest_at)
        verdict = judge(staging, known, newest_at, await tx.now(), keep)
        if verdict is not Verdict.DELETE:
            return verdict, False
        more = not await delete_some(blobs, staging.key, found, DELETE_MAX)
        log.info("deleted %d objects of %s: its attempt is over", min(len(found), DELETE_MAX), staging.key)
        return verdict, more


def _folders(page: Sequence[Found]) -> list[_Folder]:
    """The staging folders of a page. Objects outside of any belong to somebody else."""
    known = [(staging, found) for found in page if (staging := staging_of(found.key)) is not None]
    folders = []
    for staging, group in groupby(known, key=lambda one: one[0]):
        objects = [found for _, found in group]
        folders.append(_Folder(staging, max(one.modified_at for one in objects), sum(one.size for one in objects)))
    return folders
