"""`windlass dags`: checks, plans and deploys DAG files; activates and rolls back their versions."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.prompt import Confirm, Prompt

from windlass.api.client import ApiClient
from windlass.cli.api import HERE, ApiOptions
from windlass.cli.dag_plan import changed_values, count, is_plan, problem_lines, short, show_plan
from windlass.cli.follow import follow_version
from windlass.cli.options import Duration, Limit, Payload, without_none
from windlass.cli.output import Exit, Unusable, console, errors, instant, pairs, print_json, table
from windlass.cli.task import Failed
from windlass.errors import DagInvalid, PlanChanged

COLUMNS = ("name", "state", "jobs", "datasets", "active version")
VERSION_COLUMNS = ("number", "state", "built", "created", "by", "activated", "id", "reason")
JOB_COLUMNS = ("job", "queued", "running", "failed", "state", "queue", "operator", "runtime")
ENDED = frozenset({"active", "failed", "abandoned", "superseded", "rolled_back"})

File = Annotated[str, Parameter(help="DAG file in YAML, or `-` for standard input.")]
DagName = Annotated[str, Parameter(help="Name of the DAG.")]
Version = Annotated[str, Parameter(help="Number or id of the version.")]
Rebuild = Annotated[
    tuple[str, ...],
    Parameter(show_default=False, help="Job whose data is built again, though it has not changed; repeatable."),
]


# --------------------------------------------------------------------------------------------- files


def validate_file(file: File, *, api: ApiOptions = HERE) -> int:
    """Check a DAG file against its namespace: print each problem as `FILE:LINE:COLUMN: message [code]`. Exit code 1 if
    there is one. Warnings are printed too, and are no problem."""
    found = api.client().post("/dags/validate", {"yaml": _read(file)}, query=api.space)
    if api.json:
        print_json(found)
    else:
        for line in problem_lines(file, found):
            console.print(line, markup=False)
        if found["valid"]:
            console.print(f"{file}: the DAG {found['name']} is valid.", markup=False)
    return Exit.OK if found["valid"] else Exit.FAILED


def plan_file(
    file: File,
    *,
    rebuild: Rebuild = (),
    exit_code: Annotated[bool, Parameter(show_default=False)] = False,
    api: ApiOptions = HERE,
) -> int:
    """Show what a deploy of a DAG file would change, and what would be built. Changes nothing.

    Parameters
    ----------
    exit_code
        Exit code 2 if the deploy would change something.
    """
    client = api.client()
    plan = _planned(client, api, file, _read(file), rebuild)
    if api.json:
        print_json(plan)
    elif not plan["noop"]:
        hash_ = short(plan["plan_hash"])
        again = "".join(f" --rebuild {job}" for job in rebuild)
        console.print(f"  plan {hash_}   apply with:", markup=False)
        console.print(f"  windlass dags deploy {file}{again} --plan {hash_}", markup=False)
    return 2 if exit_code and not plan["noop"] else Exit.OK


def deploy_file(
    file: File,
    *,
    plan: str | None = None,
    manual: Annotated[bool, Parameter(show_default=False)] = False,
    rebuild: Rebuild = (),
    wait: Annotated[bool, Parameter(name=("--wait", "-w"), show_default=False)] = False,
    wait_timeout: Duration | None = None,
    yes: Annotated[bool, Parameter(name=("--yes", "-y"), show_default=False)] = False,
    api: ApiOptions = HERE,
) -> int:
    """Deploy a DAG file: show the plan, ask, and build the new version beside the active one. What was shown is what is
    deployed: if the plan has changed since, nothing is.

    Parameters
    ----------
    plan
        Hash of the plan, from `windlass dags plan`. Deploys that plan only, and does not ask.
    manual
        Do not activate the version when it is ready; `windlass dags activate` does.
    wait
        Wait until the version is active, or with --manual ready. Exit code 1 if it fails.
    wait_timeout
        Maximum time to wait, such as `30m`. Default: no limit.
    yes
        Do not ask. Without a terminal, nothing is asked either.
    """
    client, yaml = api.client(), _read(file)
    planned = _planned(client, api, file, yaml, rebuild)
    hash_: str = planned["plan_hash"]
    if plan is not None and not (is_plan(plan, hash_) or planned["noop"]):
        raise PlanChanged(f"the plan is {short(hash_)} now, not {plan}: nothing is deployed", plan_hash=hash_)
    if not (yes or plan or api.json or planned["noop"]) and sys.stdin.isatty() and not _agreed():
        errors.print("Nothing is deployed.")
        return Exit.FAILED
    order = {
        "yaml": yaml, "plan_hash": hash_, "cutover": "manual" if manual else "auto", "rebuild": list(rebuild),
    }  # fmt: skip
    made = client.post(f"/dags/{planned['dag']}/versions", order, query=api.space)
    if not wait:
        api.show(made, f"Version {made['number']} of {made['dag']} is {made['state']}.")
        return Exit.OK
    return _wait(client, api, made, {*ENDED, "ready"} if manual else ENDED, wait_timeout)


def _agreed() -> bool:
    return Confirm.ask("Deploy it?", console=errors, default=False)


def _wait(
    client: ApiClient, api: ApiOptions, made: dict[str, Any], ends: set[str] | frozenset[str], limit_s: Any
) -> int:
    ended, done = follow_version(client, made, api.space, ends, limit_s)
    built = f"{count(done, 'task')} done, " if done else ""
    api.show(ended, f"Version {ended['number']} of {ended['dag']}: {built}{ended['state']}.")
    if ended["state"] in ("active", "ready"):
        return Exit.OK
    why = f": {ended['reason']}" if ended["reason"] else ""
    still = "" if ended["state"] in ENDED else "still "
    raise Failed(f"version {ended['number']} is {still}{ended['state']}{why}")


def _read(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise Unusable(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise Unusable(f"{file} is not text in UTF-8") from None


def _planned(client: ApiClient, api: ApiOptions, file: str, yaml: str, rebuild: tuple[str, ...]) -> dict[str, Any]:
    """The plan of a file, which is shown unless JSON is asked for. The file names its DAG, so it is checked first."""
    found = client.post("/dags/validate", {"yaml": yaml}, query=api.space)
    if not api.json:
        for line in problem_lines(file, found):
            errors.print(line, markup=False)
    if not found["valid"]:
        raise DagInvalid(f"{file} has problems: nothing is done", problems=found["problems"])
    order = {"yaml": yaml, "rebuild": list(rebuild)}
    plan: dict[str, Any] = client.post(f"/dags/{found['name']}/plan", order, query=api.space)
    if not api.json:
        _show(client, api, plan, yaml)
    return plan


def _show(client: ApiClient, api: ApiOptions, plan: dict[str, Any], yaml: str) -> None:
    if plan["from_version"] is None:
        show_plan(plan, None, {})
        return
    active = client.get(f"/dags/{plan['dag']}/versions/{plan['from_version']}", {**api.space, "yaml": "true"})
    show_plan(plan, active["number"], {} if plan["noop"] else changed_values(plan, active["yaml"], yaml))


def _number(client: ApiClient, api: ApiOptions, dag: str, version: str | None) -> int | None:
    if version is None:
        return None
    number: int = client.get(f"/dags/{dag}/versions/{version}", api.space)["number"]
    return number


# --------------------------------------------------------------------------------------------- reads


def list_dags(*, limit: Limit = 100, api: ApiOptions = HERE) -> None:
    """List DAGs by name."""
    api.show_items("/dags", api.space, COLUMNS, _row, limit=limit, empty="There are no DAGs yet.")


def _row(dag: dict[str, Any]) -> list[object]:
    return [dag["name"], _state(dag), dag["jobs"], ", ".join(dag["datasets"]), dag["active_version"]]


def _state(dag: dict[str, Any]) -> str:
    if dag["retired"]:
        return "retired"
    if dag["paused"]:
        return "paused"
    return "active" if dag["active_version"] else "not active"


def get_dag(dag: DagName, *, api: ApiOptions = HERE) -> None:
    """Show a DAG: its versions, datasets and jobs, with the number of tasks that wait, run and failed."""
    client = api.client()
    found = client.get(f"/dags/{dag}", api.space)
    if api.json:
        print_json(found)
        return
    active, previous = (_number(client, api, dag, found[f"{name}_version"]) for name in ("active", "previous"))
    pairs([
        ("name", found["name"]), ("namespace", found["namespace"]), ("state", _state(found)),
        ("active version", active), ("previous version", previous), ("datasets", ", ".join(found["datasets"])),
    ])  # fmt: skip
    table(JOB_COLUMNS, map(_job_row, client.items(f"/dags/{dag}/jobs", api.space, 10_000)), nothing="It has no jobs.")


def _job_row(job: dict[str, Any]) -> list[object]:
    counts = [job["tasks"][state] or "" for state in ("queued", "running", "failed")]
    state = "held" if job["held"] else job.get("state", "")
    return [job["job"], *counts, state, job["queue"], job["operator"], job["runtime"]]


def list_versions(dag: DagName, *, limit: Limit = 50, api: ApiOptions = HERE) -> None:
    """List the versions of a DAG, newest first."""
    api.show_items(f"/dags/{dag}/versions", api.space, VERSION_COLUMNS, _version_row, limit=limit, empty="None yet.")


def _version_row(version: dict[str, Any]) -> list[object]:
    built = version["built"].values()
    owed, done = (sum(one[name] for one in built) for name in ("owed", "done"))
    return [
        version["number"], version["state"], f"{done}/{owed}" if owed else "", instant(version["created_at"]),
        version["created_by"], instant(version["activated_at"]), version["id"], version["reason"],
    ]  # fmt: skip


# --------------------------------------------------------------------------------------------- cutover


def activate_version(dag: DagName, version: Version, *, api: ApiOptions = HERE) -> None:
    """Activate a version that is ready or was active before. Readers see its data from their next query on."""
    which = int(version) if version.isascii() and version.isdigit() else version
    client = api.client()
    changed = client.put(f"/dags/{dag}/active", {"version": which}, query=api.space)
    _show_active(client, api, changed)


def roll_back(dag: DagName, *, api: ApiOptions = HERE) -> None:
    """Activate the version that was active before. The other one keeps its data."""
    client = api.client()
    active = client.get(f"/dags/{dag}", api.space)["active_version"]  # so that a repeated request goes back only once
    changed = client.post(f"/dags/{dag}/rollback", without_none(expect_active=active), query=api.space)
    _show_active(client, api, changed)


def _show_active(client: ApiClient, api: ApiOptions, dag: dict[str, Any]) -> None:
    number = None if api.json else _number(client, api, dag["name"], dag["active_version"])
    api.show(dag, f"Version {number} of {dag['name']} is active.")


def abandon_version(dag: DagName, version: Version, *, api: ApiOptions = HERE) -> None:
    """Give up a version that is not active. The tasks that build it are cancelled."""
    found = api.client().post(f"/dags/{dag}/versions/{version}/abandon", query=api.space)
    api.show(found, f"Version {found['number']} of {dag} is abandoned.")


# --------------------------------------------------------------------------------------------- pause and retire


def pause_dag(dag: DagName, *, api: ApiOptions = HERE) -> None:
    """Pause a DAG: its jobs get no new tasks. Running tasks continue."""
    api.show(api.client().post(f"/dags/{dag}/pause", query=api.space), f"{dag} is paused.")


def resume_dag(dag: DagName, *, api: ApiOptions = HERE) -> None:
    """Resume a paused DAG. Its jobs catch up on what they are owed."""
    api.show(api.client().post(f"/dags/{dag}/resume", query=api.space), f"{dag} is resumed.")


def retire_dag(dag: DagName, *, api: ApiOptions = HERE) -> None:
    """Stop a DAG for good: its sources stop and its tasks are cancelled. Its data stays."""
    api.show(api.client().delete(f"/dags/{dag}", query=api.space), f"{dag} is retired.")


# --------------------------------------------------------------------------------------------- jobs


def emit(
    dag: DagName,
    job: Annotated[str, Parameter(help="Name of the source.")],
    *,
    payload: Payload = None,
    cursor: int | None = None,
    partition: str | None = None,
    start: int | None = None,
    end: int | None = None,
    api: ApiOptions = HERE,
) -> None:
    """Start a task of a source and print its id: `windlass dags emit chain tick --cursor 1000`.

    Parameters
    ----------
    cursor
        Position up to which the source has data.
    partition
        Key of the partition that the source has data of.
    start
        First number in the partition, if it is a range.
    end
        Last number in the partition.
    """
    order = without_none(payload=payload, cursor=cursor, partition_key=partition, start=start, end=end)
    made = api.client().post(f"/dags/{dag}/jobs/{job}/emit", order, query=api.space)
    api.show(made, made["task_id"])


def set_webhook_secret(
    dag: DagName,
    job: Annotated[str, Parameter(help="Name of the source.")],
    *,
    file: str | None = None,
    overlap: Duration | None = None,
    remove: Annotated[bool, Parameter(show_default=False)] = False,
    api: ApiOptions = HERE,
) -> None:
    """Set the secret that signs requests to the webhook of a job, as in Standard Webhooks. Without --file, it is asked
    for, or read from standard input if that is no terminal. It is never shown.

    Parameters
    ----------
    file
        File with the secret: `whsec_` and base64. `-` is standard input.
    overlap
        Time for which the secret before is accepted too. Default: 1d.
    remove
        Remove the secret: requests need a key of a submitter.
    """
    path = f"/dags/{dag}/jobs/{job}/webhook-secret"
    if remove:
        found = api.client().delete(path, query=api.space)
        api.show(found, f"Requests to {found['path']} need a key.")
        return
    if file is None and sys.stdin.isatty():
        secret = Prompt.ask("Secret", console=errors, password=True)
    else:
        secret = _read(file or "-")
    order = without_none(secret=secret.strip(), overlap_s=overlap)
    found = api.client().put(path, order, query=api.space)
    api.show(found, f"Requests to {found['path']} may be signed with this secret.")


def why_job(
    dag: DagName,
    job: Annotated[str, Parameter(help="Name of the job.")],
    *,
    partition: str | None = None,
    api: ApiOptions = HERE,
) -> None:
    """Say why a partition of a job is there or not: `windlass dags why chain compact --partition 0-999`.

    Parameters
    ----------
    partition
        Key of the partition. A job that reads updates, and a source, have none.
    """
    found = api.client().get(f"/dags/{dag}/jobs/{job}/why", {**api.space, **without_none(partition_key=partition)})
    api.show(found, f"{found['because']}: {found['detail']}")
