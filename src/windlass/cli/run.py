"""`windlass runs`: inspects, awaits and cancels groups of tasks."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from windlass.cli.api import HERE, ApiOptions
from windlass.cli.follow import follow_run
from windlass.cli.options import Duration, Limit
from windlass.cli.output import instant, print_json, say, table
from windlass.cli.task import COLUMNS, Failed, Reason, row_of
from windlass.core.states import TERMINAL

RunId = Annotated[str, Parameter(help="Id of the run.")]


def list_runs(*, limit: Limit = 50, api: ApiOptions = HERE) -> None:
    """List runs, newest first."""
    columns = ("id", "created", "tasks")
    api.show_items("/runs", api.space, columns, _row, limit=limit, empty="There are no runs.")


def _row(run: dict[str, Any]) -> list[object]:
    return [run["id"], instant(run["created_at"]), _counts(run)]


def get_run(run_id: RunId, *, limit: Limit = 50, api: ApiOptions = HERE) -> None:
    """Show a run with its tasks."""
    run = api.client().get(f"/runs/{run_id}", {"limit": min(limit, 500)})
    if api.json:
        print_json(run)
        return
    say(f"run {run['id']}: {_counts(run)}")
    table(COLUMNS, map(row_of, run["tasks"]), nothing="It has no tasks.")


def wait_run(run_id: RunId, *, timeout: Duration | None = None, api: ApiOptions = HERE) -> None:
    """Wait for all tasks of a run to end. Exit code 1 unless all succeeded.

    Parameters
    ----------
    timeout
        Maximum time to wait, such as `10m`. Default: no limit.
    """
    run = follow_run(api.client(), run_id, timeout)
    api.show(run, _counts(run))
    if any(state not in TERMINAL for state in run["counts"]):
        raise Failed(f"run {run_id} has not ended: {_counts(run)}")
    if set(run["counts"]) != {"succeeded"}:
        raise Failed(f"not all tasks of run {run_id} succeeded: {_counts(run)}")


def cancel_run(run_id: RunId, *, reason: Reason = "", api: ApiOptions = HERE) -> None:
    """Cancel all tasks of a run that have not ended."""
    run = api.client().post(f"/runs/{run_id}/cancel", {"reason": reason})
    api.show(run, f"Cancellation requested for {run['asked']} tasks.")


def _counts(run: dict[str, Any]) -> str:
    return ", ".join(f"{count} {state}" for state, count in sorted(run["counts"].items())) or "no tasks"
