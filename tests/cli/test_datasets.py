"""Datasets through the commands, against a real server."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest
from tests.cli.conftest import Dev
from tests.kit.work import until

pytestmark = pytest.mark.slow

FLOW = """\
name: NAME
jobs:
  - name: ticks
    activation: source
    runtime: dispatcher
    operator: manual_source
    source: {kind: manual}
    outputs: 1
    update_strategy: replace
  - name: tables
    activation: reactive
    runtime: ecs_platform
    operator: o
    execution_strategy: PerPartition
    inputs: [{from: {job: ticks}, where: "height > 7"}]
    outputs: 1
    update_strategy: replace
publish:
  NAME: {from: {job: ticks}, storage: postgres, write_mode: direct, read_roles: [analysts]}
"""


@pytest.fixture
def dataset(dev: Dev) -> str:
    """A dataset of its own."""
    name = f"d{uuid4().hex}"[:16]
    file = Path(dev.folder) / f"{name}.yaml"
    file.write_text(FLOW.replace("NAME", name))
    assert dev.json("dags", "deploy", file.name, "--wait", "--yes")["state"] == "active"
    return name


async def emit(dev: Dev, dataset: str, key: str, *span: str) -> None:
    """Commit a partition, and wait until it is routed."""
    done = dev("dags", "emit", dataset, "ticks", f"--partition={key}", *span)
    assert done.returncode == 0, done.stderr
    await until(lambda: any(one["task_id"] == done.stdout.strip() and one["routing"] for one in events(dev, dataset)))


def events(dev: Dev, dataset: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = dev.json("datasets", "events", dataset)
    return found


async def test_a_dataset_is_listed_shown_and_reverted(dev: Dev, dataset: str) -> None:
    assert "There are no such partitions." in dev("datasets", "partitions", dataset).stdout
    assert "No partition with numbers" in dev("datasets", "coverage", dataset).stdout
    for _ in range(2):
        await emit(dev, dataset, "0-9", "--start", "0", "--end", "9")
    await emit(dev, dataset, "10-19", "--start", "10", "--end", "19")

    (row,) = [line for line in dev("datasets", "list").stdout.splitlines() if line.startswith(dataset)]
    assert "none" in row
    shown = dev("datasets", "get", dataset).stdout
    assert "analysts" in shown
    assert "current" in shown
    assert dev.json("datasets", "get", dataset)["job"] == "ticks"
    listed = dev("datasets", "partitions", dataset).stdout.splitlines()
    assert [line.split()[:3] for line in listed[1:]] == [["0-9", "committed", "2"], ["10-19", "committed", "1"]]
    assert [one["partition_key"] for one in dev.json("datasets", "partitions", dataset, "--limit", "1")] == ["0-9"]
    assert dev.json("datasets", "partitions", dataset, "-s", "failed", "-s", "stale") == []
    assert dev("datasets", "coverage", dataset).stdout.splitlines()[1].split() == ["committed", "0", "19", "20"]
    reverted = dev("datasets", "revert", dataset, "0-9", "1")
    assert reverted.stdout == "0-9 has the content of revision 1, as revision 3.\n"
    one = dev("datasets", "partitions", dataset, "0-9").stdout
    assert [line.split()[0] for line in one.splitlines()[-3:]] == ["3", "2", "1"]
    assert dev("datasets", "revert", dataset, "0-9", "9").returncode == 1


async def test_keys_of_partitions_may_resemble_paths_and_flags(dev: Dev, dataset: str) -> None:
    for key in ("a/b %2F ü?", "--key", "-1--1"):
        await emit(dev, dataset, key)

        assert dev.json("datasets", "partitions", dataset, f"--key={key}")["partition_key"] == key
    assert dev.json("datasets", "partitions", dataset, "-1--1")["partition_key"] == "-1--1"
    assert dev.json("datasets", "revert", dataset, "a/b %2F ü?", "1")["revision"] == 1


def test_lineage_is_shown_in_the_order_of_the_data(dev: Dev, dataset: str) -> None:
    lines = dev("lineage", dataset).stdout.splitlines()

    assert [line.split()[:2] for line in lines[1:]] == [
        [f"{dataset}/ticks", dataset],
        [dataset, f"{dataset}/tables"],
        [f"{dataset}/tables", "tables/0"],
    ]
    assert "height > 7" in lines[2]
    assert len(dev.json("lineage", dataset, "--direction", "up", "--depth", "1")["edges"]) == 1


def test_a_key_with_a_group_sees_what_others_do_not(dev: Dev, dataset: str) -> None:
    for group, code in (("writers", 1), ("analysts", 0)):
        key = dev("keys", "create", "ada", "--role", "viewer", "--group", group).stdout.strip()
        assert dev("datasets", "get", dataset, WINDLASS_API_KEY=key).returncode == code
    assert "analysts" in dev("keys", "list").stdout


async def test_an_old_version_is_purged_only_with_yes(dev: Dev, dataset: str) -> None:
    version = dev.json("datasets", "get", dataset)["current_version"]
    unasked = dev("datasets", "purge", dataset, version)
    assert (unasked.returncode, unasked.stdout) == (1, "")
    assert "--yes purges without asking" in unasked.stderr
    refused = dev("datasets", "purge", dataset, version, "--yes")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "needs this data: it is active" in refused.stderr
    dev("dags", "retire", dataset)

    purged = dev("datasets", "purge", dataset, version, "--yes")

    assert purged.stdout == f"Version {version} is purged. Its data is deleted now.\n"
    assert dev.json("datasets", "purge", dataset, version, "-y")["state"] == "purged"
    shown = dev.json("datasets", "get", dataset)
    assert [one["state"] for one in shown["versions"]] == ["purged"]
