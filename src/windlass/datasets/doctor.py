"""Checks the deployments of DAGs, the lake, the data database and the sinks, for `windlass doctor`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from windlass.datasets.data.database import check_data
from windlass.datasets.lake import LAKE_MARKER, OWN_PLACE, SET_LAKE, try_writing
from windlass.datasets.tables.health import HealthTable, StuckBuild
from windlass.datasets.tables.lake import LakeTable
from windlass.engine.payloads.blob_port import Blobs
from windlass.engine.payloads.objects import read_marker
from windlass.engine.read.doctor import Finding, Level
from windlass.errors import Rejected, Unavailable
from windlass.store.store import Store

PROGRESS = timedelta(minutes=10)
SINK_DUE = timedelta(minutes=1)


async def examine_builds(store: Store) -> list[Finding]:
    """One finding for each version that failed to build, or that builds without progress."""
    async with store.begin() as tx:
        builds = await HealthTable(tx.session).stuck_builds(PROGRESS)
    return [_finding(build) for build in builds]


async def examine_data(store: Store, data_dsn: str, *, pooled: bool) -> list[Finding]:
    """Findings on the data database, and on batches that no sink receives."""
    found = []
    try:
        await check_data(data_dsn, pooled=pooled)
    except Unavailable as error:
        advice = "sinks wait and deploys of PostgreSQL datasets stay building until it answers; all else goes on"
        found.append(Finding("data_database", Level.WRONG, f"the data database does not answer: {error}", advice))
    except Rejected as error:
        found.append(Finding("data_database", Level.WRONG, str(error), "`windlass migrate` applies what is missing"))
    else:
        found.append(Finding("data_database", Level.OK, "its schema is the one of this version"))
    async with store.begin() as tx:
        waiting = await HealthTable(tx.session).unreceived_batches(SINK_DUE)
    if waiting:
        found.append(
            Finding(
                "sinks", Level.WRONG, f"{waiting} batches of buffered datasets wait, and no sink receives them",
                "start `windlass sink`, or servers with --sink; if one runs, read its log",
            )
        )  # fmt: skip
    return found


def _finding(build: StuckBuild) -> Finding:
    name = f"version {build.number} of the DAG {build.dag} (namespace {build.namespace})"
    if build.state == "failed":
        return Finding(
            "builds", Level.NOTE, f"{name} failed to build; the active version is not affected",
            f"windlass dags versions {build.dag} names the task; repair its cause and windlass tasks retry it",
        )  # fmt: skip
    minutes = int(PROGRESS.total_seconds() / 60)
    return Finding(
        "builds", Level.WRONG, f"{name} builds, and none of its tasks has ended for {minutes} minutes",
        f"check that servers and wrappers run; windlass dags versions {build.dag} shows what is left",
    )  # fmt: skip


async def examine_lake(store: Store, open_blobs: Callable[[], Blobs] | None, given: str) -> Finding:
    """Whether the lake of this process is that of this database, and can be written to. Writes one object and deletes
    it."""
    async with store.begin() as tx:
        recorded, wanted = await LakeTable(tx.session).lake(), await LakeTable(tx.session).is_missing()
    if open_blobs is None:
        if recorded is not None:
            message = f"files of this database are kept in {recorded[1]}, and no lake is set here"
            return Finding("lake", Level.WRONG, message, SET_LAKE)
        if wanted:
            message = "DAGs of this database have datasets with storage s3, and no lake is set here"
            return Finding("lake", Level.WRONG, message, SET_LAKE)
        return Finding("lake", Level.OK, "none is set: outputs with storage s3 are refused")
    try:
        blobs = open_blobs()
        marker = await read_marker(blobs, LAKE_MARKER)
        if recorded is None and marker is None:
            return Finding("lake", Level.OK, f"no files are kept yet; they would be in {given}")
        if recorded is None:
            return Finding("lake", Level.WRONG, f"{given} is the lake of another database", OWN_PLACE)
        if marker != recorded[0]:
            message = f"the lake of this database is {recorded[1]}, and {given} is another"
            return Finding("lake", Level.WRONG, message, SET_LAKE)
        await try_writing(blobs)
    except (Rejected, Unavailable) as error:
        advice = "set WINDLASS_LAKE as the servers have it, and see that it can be reached and written to from here"
        return Finding("lake", Level.WRONG, error.message, advice)
    return Finding("lake", Level.OK, f"files are kept in {given}")
