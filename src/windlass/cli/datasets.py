"""`windlass datasets` and `windlass lineage`: what there is of datasets, and where it comes from."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from cyclopts import Parameter
from rich.prompt import Confirm

from windlass.cli.api import HERE, ApiOptions
from windlass.cli.options import Limit
from windlass.cli.output import Exit, Unusable, console, errors, instant, pairs, print_json, table

COLUMNS = ("name", "dag", "job", "storage", "cursor", "versions", "fresh", "id")
VERSION_COLUMNS = ("version", "state", "rows", "bytes", "created")
PARTITION_COLUMNS = ("partition", "status", "revision", "rows", "bytes", "committed", "task")
REVISION_COLUMNS = ("revision", "rows", "bytes", "committed", "attempt", "task", "location")
EVENT_COLUMNS = ("time", "what", "revision", "routing", "tasks", "by task")

DatasetName = Annotated[str, Parameter(help="Name or uuid of the dataset.")]
Version = Annotated[str | None, Parameter(help="Version of the dataset. Default: the current one.")]


def list_datasets(*, limit: Limit = 1000, api: ApiOptions = HERE) -> None:
    """List the datasets that the key may read, by name, then those without a name."""
    api.show_items("/datasets", api.space, COLUMNS, _row, limit=limit, empty="There are no datasets.")


def _row(dataset: dict[str, Any]) -> list[object]:
    return [
        dataset["name"] or f"({dataset['job']}/{dataset['output_index']})", dataset["dag"], dataset["job"],
        dataset["storage"], dataset["cursor"], len(dataset["versions"]), _fresh(dataset), dataset["dataset_uuid"],
    ]  # fmt: skip


def _fresh(dataset: dict[str, Any]) -> str:
    return {None: "", True: "fresh", False: "late"}[dataset["fresh"]]


def get_dataset(dataset: DatasetName, *, api: ApiOptions = HERE) -> None:
    """Show a dataset with its versions."""
    d = api.client().get(("datasets", dataset), api.space)
    if api.json:
        print_json(d)
        return
    pairs([
        ("name", d["name"]), ("id", d["dataset_uuid"]), ("description", d["description"]), ("dag", d["dag"]),
        ("output", f"{d['job']}/{d['output_index']}" if d["job"] else None), ("storage", d["storage"]),
        ("write mode", d["write_mode"]), ("location", d["location"]), ("cursor", d["cursor"]),
        ("fresh", _fresh(d)), ("read roles", ", ".join(d["read_roles"])), ("retired", "yes" if d["retired"] else None),
    ])  # fmt: skip
    rows = [
        (one["dataset_version"], one["state"], one["rows"], one["bytes"], instant(one["created_at"]))
        for one in d["versions"]
    ]
    table(VERSION_COLUMNS, rows, nothing="It has no versions.")


def list_partitions(
    dataset: DatasetName,
    key: Annotated[
        str | None, Parameter(allow_leading_hyphen=True, help="Only this partition, with its revisions.")
    ] = None,
    *,
    status: Annotated[
        tuple[Literal["missing", "running", "committed", "stale", "failed"], ...],
        Parameter(name=("--status", "-s"), show_default=False, help="Only partitions with this status; repeatable."),
    ] = (),
    version: Version = None,
    limit: Limit = 100,
    api: ApiOptions = HERE,
) -> None:
    """List the partitions of a dataset by their first number, then by key; or show one of them."""
    query = {**api.space, "version": version}
    if key is not None:
        _show_partition(api.client().get(("datasets", dataset, "partitions", key), query), api)
        return
    api.show_items(
        ("datasets", dataset, "partitions"), {**query, "status": status}, PARTITION_COLUMNS, _partition_row,
        limit=limit, empty="There are no such partitions.",
    )  # fmt: skip


def _partition_row(p: dict[str, Any]) -> list[object]:
    return [
        p["partition_key"], p["status"], p["revision"], p["rows"], p["bytes"], instant(p["committed_at"]), p["task_id"]
    ]  # fmt: skip


def _show_partition(partition: dict[str, Any], api: ApiOptions) -> None:
    if api.json:
        print_json(partition)
        return
    pairs([("partition", partition["partition_key"]), ("status", partition["status"])])
    rows = [
        (r["revision"], r["rows"], r["bytes"], instant(r["committed_at"]), r["attempt"], r["task_id"], r["location"])
        for r in partition["revisions"]
    ]
    table(REVISION_COLUMNS, rows, nothing="It is not committed yet.")


def show_coverage(dataset: DatasetName, *, version: Version = None, api: ApiOptions = HERE) -> None:
    """Show which numbers of a dataset are committed, missing and failed, as ranges with both ends."""
    found = api.client().get(("datasets", dataset, "coverage"), {**api.space, "version": version})
    rows = [
        (status, first, last, last - first + 1)
        for status in ("committed", "missing", "failed")
        for first, last in found[status]
    ]
    api.show_table(found, ("status", "first", "last", "numbers"), rows, "No partition with numbers is committed.")
    if found["truncated"] and not api.json:
        console.print("There are more ranges than these.", style="dim")


def revert_partition(
    dataset: DatasetName,
    key: Annotated[str, Parameter(allow_leading_hyphen=True, help="Key of the partition.")],
    revision: Annotated[int, Parameter(help="Number of the revision.")],
    *,
    version: Version = None,
    api: ApiOptions = HERE,
) -> None:
    """Give a partition the content of an old revision again, as a new revision. What was made from it is made again."""
    path = ("datasets", dataset, "partitions", key, "revert")
    made = api.client().post(path, {"revision": revision}, query={**api.space, "version": version})
    api.show(made, f"{key} has the content of revision {revision}, as revision {made['revision']}.")


def purge_version(
    dataset: DatasetName,
    version: Annotated[str, Parameter(help="Version of the dataset, from `windlass datasets get`.")],
    *,
    yes: Annotated[
        bool, Parameter(name=("--yes", "-y"), show_default=False, help="Do not ask. Without a terminal it is needed.")
    ] = False,
    api: ApiOptions = HERE,
) -> int:
    """Delete the data of a version that no deployment needs any more: objects, table and partitions. It cannot be
    undone; a deploy of the same file builds the version again."""
    if not yes and not (sys.stdin.isatty() and _agreed(version)):
        errors.print("Nothing is purged: --yes purges without asking.")
        return Exit.FAILED
    purged = api.client().post(("datasets", dataset, "versions", version, "purge"), query=api.space)
    api.show(purged, f"Version {version} is {purged['state']}. Its data is deleted now.")
    return Exit.OK


def _agreed(version: str) -> bool:
    return Confirm.ask(f"Delete all data of version {version}?", console=errors, default=False)


def invalidate(
    dataset: DatasetName,
    *,
    reason: Annotated[
        Literal["reorg", "correction", "manual", "schema_change"], Parameter(help="Why the data is wrong.")
    ] = "manual",
    partition: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    gte: Annotated[tuple[str, ...], Parameter(show_default=False, allow_leading_hyphen=True)] = (),
    lte: Annotated[tuple[str, ...], Parameter(show_default=False, allow_leading_hyphen=True)] = (),
    api: ApiOptions = HERE,
) -> None:
    """Report that a part of a dataset was wrong: a partition, or rows between bounds. Each job that reads it gets a
    task, which repairs what the job made of it.

    Parameters
    ----------
    partition
        Key of the partition that is wrong.
    gte
        `COLUMN=VALUE`: rows whose column is at least this are wrong; repeatable.
    lte
        `COLUMN=VALUE`: rows whose column is at most this are wrong; repeatable.
    """
    order: dict[str, Any] = {"scope": "row_range" if partition is None else "partition", "reason": reason}
    if partition is not None:
        order["partition_key"] = partition
    rows: dict[str, dict[str, object]] = {}
    for name, bounds in (("gte", gte), ("lte", lte)):
        for bound in bounds:
            column, equals, value = bound.partition("=")
            if not equals:
                raise Unusable(f"--{name} needs COLUMN=VALUE, not {bound!r}")
            rows.setdefault(column, {})[name] = _scalar(value)
    if rows:
        order["row_filter"] = rows
    made = api.client().post(("datasets", dataset, "invalidations"), order, query=api.space)
    api.show(made, f"{made['id']}: {len(made['tasks'])} jobs have a task.")


def _scalar(text: str) -> object:
    """A number, if it is one; otherwise text."""
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
    return value if isinstance(value, int | float) and not isinstance(value, bool) else text


def list_events(dataset: DatasetName, *, limit: Limit = 50, api: ApiOptions = HERE) -> None:
    """List the events of a dataset, newest first, with what became of each."""
    api.show_items(
        ("datasets", dataset, "events"), api.space, EVENT_COLUMNS, _event_row, limit=limit,
        empty="The dataset has no events.",
    )  # fmt: skip


def _event_row(event: dict[str, Any]) -> list[object]:
    what = event["partition_key"] if event["partition_key"] is not None else event["cursor"]
    return [
        instant(event["at"]), what, event["revision"], event["routing"] or "waits", len(event["tasks"]) or "",
        event["task_id"],
    ]  # fmt: skip


def show_lineage(
    dataset: DatasetName,
    *,
    direction: Annotated[
        Literal["up", "down", "both"],
        Parameter(help="What it is made from (up), what is made from it (down), or both."),
    ] = "both",
    depth: Annotated[int, Parameter(help="Maximum number of jobs on the way.")] = 10,
    api: ApiOptions = HERE,
) -> None:
    """Show what a dataset is made from, and what is made from it, in active DAGs."""
    query = {**api.space, "dataset": dataset, "direction": direction, "depth": depth}
    found = api.client().get("/lineage", query)
    names = {node["id"]: _label(node) for node in found["nodes"]}
    rows = [(names[edge["from"]], names[edge["to"]], edge.get("where")) for edge in found["edges"]]
    api.show_table(found, ("from", "to", "where"), _sorted(rows), "No active DAG reads or writes it.")


def _label(node: dict[str, Any]) -> str:
    return f"{node['dag']}/{node['name']}" if node["kind"] == "job" else str(node["name"])


def _sorted(rows: list[tuple[str, str, str | None]]) -> Sequence[tuple[str, str, str | None]]:
    """In the order of the data: what a row begins with, another one has ended with, as far as that is possible."""
    left, placed = list(rows), list[tuple[str, str, str | None]]()
    while left:
        ends = {end for _, end, _ in left}
        ready = [row for row in left if row[0] not in ends] or left
        placed += ready
        left = [row for row in left if row not in ready]
    return placed
