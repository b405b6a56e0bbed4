"""`windlass backfill`: makes partitions of a job again."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from windlass.cli.api import HERE, ApiOptions
from windlass.cli.follow import follow_backfill
from windlass.cli.options import Duration, Limit, without_none
from windlass.cli.output import Exit, console, errors, instant, pairs, print_json, table
from windlass.cli.task import Reason

COLUMNS = ("id", "state", "dag", "job", "partitions", "tasks", "done", "failed", "created", "by")
JOB_COLUMNS = ("job", "partitions", "tasks", "waiting", "succeeded", "failed", "cancelled")
ENDED = frozenset({"succeeded", "failed", "cancelled"})
_NUMBER = re.compile(r"-?[0-9]+", re.ASCII)

BackfillId = Annotated[str, Parameter(help="Id of the backfill.")]
Bound = Annotated[str | None, Parameter(allow_leading_hyphen=True)]


def start_backfill(
    dag: Annotated[str, Parameter(help="Name of the DAG.")],
    job: Annotated[str, Parameter(help="Name of the job, which works by partitions.")],
    *,
    key: Annotated[
        tuple[str, ...], Parameter(show_default=False, allow_leading_hyphen=True, help="A partition; repeatable.")
    ] = (),
    start: Bound = None,
    end: Bound = None,
    status: Annotated[
        tuple[Literal["missing", "failed", "stale"], ...],
        Parameter(name=("--status", "-s"), show_default=False, help="Partitions with this status; repeatable."),
    ] = (),
    downstream: Annotated[bool, Parameter(show_default=False)] = False,
    dry_run: Annotated[bool, Parameter(show_default=False)] = False,
    wait: Annotated[bool, Parameter(name=("--wait", "-w"), show_default=False)] = False,
    wait_timeout: Duration | None = None,
    api: ApiOptions = HERE,
) -> int:
    """Make partitions of a job again: some by their keys, all between two bounds, or those with a status.

    Parameters
    ----------
    start
        First number, day or hour. All partitions between --start and --end are made, both inclusive.
    end
        Last number, day or hour.
    downstream
        Follow the jobs below, too: the backfill ends when they have made again what becomes stale.
    dry_run
        Count the partitions, and do nothing.
    wait
        Wait until the backfill has ended. Exit code 1 unless it succeeds.
    wait_timeout
        Maximum time to wait, such as `30m`. Default: no limit.
    """
    chosen = without_none(keys=list(key) or None, start=_bound(start), end=_bound(end), status=list(status) or None)
    order = {"dag": dag, "job": job, "select": chosen, "downstream": downstream, "dry_run": dry_run}
    client = api.client()
    made = client.post("/backfills", order, query=api.space)
    if wait and not dry_run:
        made = follow_backfill(client, made, ENDED, wait_timeout)
    _show(made, api)
    return Exit.FAILED if wait and not dry_run and made["state"] != "succeeded" else Exit.OK


def _bound(text: str | None) -> int | str | None:
    """A number, or a day or an hour as it is."""
    return int(text) if text is not None and _NUMBER.fullmatch(text) else text


def list_backfills(
    *,
    dag: Annotated[str | None, Parameter(help="Only those of this DAG.")] = None,
    limit: Limit = 50,
    api: ApiOptions = HERE,
) -> None:
    """List backfills, newest first."""
    api.show_items("/backfills", {**api.space, "dag": dag}, COLUMNS, _row, limit=limit, empty="There are no backfills.")


def _row(backfill: dict[str, Any]) -> list[object]:
    total = {name: sum(job[name] for job in backfill["jobs"]) for name in JOB_COLUMNS[1:]}
    done = total["succeeded"] + total["failed"] + total["cancelled"]
    return [
        backfill["id"], backfill["state"], backfill["dag"], backfill["job"], _count(total["partitions"], backfill),
        total["tasks"], done, total["failed"], instant(backfill["created_at"]), backfill["created_by"],
    ]  # fmt: skip


def _count(partitions: int, backfill: dict[str, Any]) -> str:
    return f"{partitions}+" if backfill["truncated"] else str(partitions)


def get_backfill(backfill_id: BackfillId, *, api: ApiOptions = HERE) -> None:
    """Show a backfill with its progress."""
    _show(api.client().get(f"/backfills/{backfill_id}"), api)


def cancel_backfill(backfill_id: BackfillId, *, reason: Reason = "", api: ApiOptions = HERE) -> None:
    """Cancel a backfill: no more tasks are made, those that wait end, and those that run are asked to stop."""
    _show(api.client().post(f"/backfills/{backfill_id}/cancel", {"reason": reason}), api)


def _show(backfill: dict[str, Any], api: ApiOptions) -> None:
    if api.json:
        print_json(backfill)
        return
    pairs([
        ("id", backfill["id"]), ("state", backfill["state"]), ("job", f"{backfill['dag']}/{backfill['job']}"),
        ("reason", backfill["reason"]), ("created", instant(backfill["created_at"])), ("by", backfill["created_by"]),
        ("ended", instant(backfill["ended_at"])),
    ])  # fmt: skip
    table(
        JOB_COLUMNS, [[job[name] or "" if name != "partitions" else job[name] for name in JOB_COLUMNS]
                      for job in backfill["jobs"]], nothing="It has no jobs.",
    )  # fmt: skip
    if backfill["truncated"] and backfill["state"] not in ENDED:
        console.print("There are more partitions than were counted.", style="dim")
    waiting = sum(job["waiting"] for job in backfill["jobs"])
    if waiting:
        errors.print(f"{waiting} tasks wait for an input that is not there.", style="dim")
