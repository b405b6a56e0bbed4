"""Checks the deployments of DAGs, for `windlass doctor`."""

from __future__ import annotations

from datetime import timedelta

from windlass.datasets.tables.health import HealthTable, StuckBuild
from windlass.engine.read.doctor import Finding, Level
from windlass.store.store import Store

PROGRESS = timedelta(minutes=10)


async def examine_builds(store: Store) -> list[Finding]:
    """One finding for each version that failed to build, or that builds without progress."""
    async with store.begin() as tx:
        builds = await HealthTable(tx.session).stuck_builds(PROGRESS)
    return [_finding(build) for build in builds]


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
