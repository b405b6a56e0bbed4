"""DAG files through the commands, against a real server."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from tests.cli.conftest import Dev
from tests.cli.test_terminal import at_terminal
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
    runtime: dispatcher
    operator: range_splitter
    execution_strategy: PerPartition
    inputs: [{from: {job: ticks}}]
    config: {range_size: 10}
    outputs: 1
    update_strategy: replace
publish:
  DATASET: {from: {job: tables}, storage: s3, read_roles: ["*"]}
"""


class Flow:
    """A DAG file of its own, in the folder of the server."""

    def __init__(self, dev: Dev) -> None:
        self.name = f"f-{uuid4().hex}"[:20]
        self.dataset = self.name.replace("-", "_")
        self.file = f"{self.name}.yaml"
        self.path = Path(dev.folder) / self.file
        self.write()

    def write(self, old: str = "", new: str = "") -> None:
        """Write the file, with one change."""
        text = FLOW.replace(old, new) if old else FLOW
        assert not old or text != FLOW
        self.path.write_text(text.replace("NAME", self.name).replace("DATASET", self.dataset))


@pytest.fixture
def flow(dev: Dev) -> Flow:
    return Flow(dev)


def deployed(dev: Dev, flow: Flow) -> dict[str, Any]:
    made: dict[str, Any] = dev.json("dags", "deploy", flow.file, "--wait")
    assert made["state"] == "active", made
    return made


def fits(text: str) -> bool:
    return max(map(len, text.splitlines()), default=0) <= 80


async def emitted(dev: Dev, flow: Flow) -> None:
    """A committed partition of `ticks`, which `tables` has read."""
    done = dev("dags", "emit", flow.name, "ticks", "--partition", "0-19", "--start", "0", "--end", "19")
    task = str(UUID(done.stdout.strip()))
    await until(lambda: dev.json("tasks", "get", task)["state"] == "succeeded")

    def read() -> bool:
        tasks = dev.json("tasks", "list", "--kind", "range_splitter")
        mine = [one for one in tasks if one["wire"] and flow.name in str(one["wire"])]
        return [one["state"] for one in mine] == ["succeeded"]

    await until(read)


def test_problems_are_printed_as_compilers_do(dev: Dev, flow: Flow) -> None:
    good = dev("dags", "validate", flow.file)
    assert (good.returncode, good.stdout) == (0, f"{flow.file}: the DAG {flow.name} is valid.\n")
    flow.write("job: ticks", "job: tick")
    bad = dev("dags", "validate", flow.file)
    line = f"{flow.file}:15:27: there is no job 'tick' in this file: did you mean ticks? [unknown_job]\n"
    assert (bad.returncode, bad.stdout, bad.stderr) == (1, line, "")
    answer = dev("dags", "validate", flow.file, "--json")
    assert (answer.returncode, '"code":"unknown_job"' in answer.stdout) == (1, True)
    for command in ("plan", "deploy"):
        refused = dev("dags", command, flow.file)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert refused.stderr.startswith(line)
        assert '"dag_invalid"' in dev("dags", command, flow.file, "--json").stderr
    assert dev("dags", "get", flow.name).returncode == 1


def test_a_warning_is_no_problem(dev: Dev, flow: Flow) -> None:
    flow.write(', read_roles: ["*"]', "")
    done = dev("dags", "validate", flow.file)
    assert done.returncode == 0
    assert f"{flow.file}:20:3: warning: " in done.stdout
    assert "[no_consumer]" in done.stdout


def test_a_file_that_cannot_be_read_is_wrong_use(dev: Dev) -> None:
    (dev.folder / "latin.yaml").write_bytes(b"name: caf\xe9")
    for file, why in (("none.yaml", "No such file"), ("latin.yaml", "UTF-8"), (".", "Is a directory")):
        done = dev("dags", "validate", file)
        assert (done.returncode, why in done.stderr) == (2, True), done.stderr


async def test_a_change_is_planned_deployed_activated_and_rolled_back(dev: Dev, flow: Flow) -> None:
    new = dev("dags", "plan", flow.file)
    assert new.returncode == 0
    assert [line.rstrip() for line in new.stdout.splitlines()][:4] == [
        f"{flow.name}: new",
        f"  + ticks{' ' * (len(flow.dataset) - 5)} added",
        f"  + tables{' ' * (len(flow.dataset) - 6)} added",
        f"  + {flow.dataset} dataset, made",
    ]
    assert fits(new.stdout)
    deployed(dev, flow)
    same = dev("dags", "plan", flow.file, "--exit-code")
    assert (same.returncode, same.stdout) == (0, f"{flow.name}: no changes, from version 1 (active)\n")
    await emitted(dev, flow)

    flow.write("range_size: 10", "range_size: 5")
    changed = dev("dags", "plan", flow.file, "--exit-code")
    assert changed.returncode == 2
    lines = [line.rstrip() for line in changed.stdout.splitlines()]
    assert lines[:5] == [
        f"{flow.name}: from version 1 (active)",
        "  ~ tables changed: config.range_size 10 → 5",
        "           1 partition to build",
        f"           {flow.dataset} → new version",
        "  = ticks: unchanged",
    ]
    assert fits(changed.stdout)
    apply = lines[-1].split()
    assert apply[:-1] == ["windlass", "dags", "deploy", flow.file, "--plan"]

    done = dev(*apply[1:], "--manual", "--wait")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"Version 2 of {flow.name}: 1 task done, ready.\n")
    assert dev("dags", "activate", flow.name, "2").stdout == f"Version 2 of {flow.name} is active.\n"
    assert dev("dags", "rollback", flow.name).stdout == f"Version 1 of {flow.name} is active.\n"
    versions = dev.json("dags", "versions", flow.name)
    assert [(one["number"], one["state"]) for one in versions] == [(2, "rolled_back"), (1, "active")]
    assert dev.json("dags", "activate", flow.name, versions[0]["id"])["active_version"] == versions[0]["id"]


def test_a_deploy_of_another_plan_is_refused(dev: Dev, flow: Flow) -> None:
    for given in ("0" * 12, "0" * 64, "", "0"):
        done = dev("dags", "deploy", flow.file, "--plan", given)
        assert (done.returncode, "nothing is deployed" in done.stderr) == (1, True), done.stderr
    planned = dev.json("dags", "plan", flow.file)["plan_hash"]
    for given in (planned, planned[:12]):  # the second time there is nothing to do
        assert dev("dags", "deploy", flow.file, "--plan", given, "--wait").returncode == 0
    assert len(dev.json("dags", "versions", flow.name)) == 1


def test_a_rebuild_is_planned_and_deployed(dev: Dev, flow: Flow) -> None:
    deployed(dev, flow)
    planned = dev("dags", "plan", flow.file, "--rebuild", "tables")
    assert f"{flow.dataset} → new version" in planned.stdout
    *_, apply = planned.stdout.splitlines()
    assert "--rebuild tables --plan" in apply
    assert dev(*apply.split()[1:], "--wait").returncode == 0
    assert dev.json("dags", "versions", flow.name)[0]["number"] == 2
    assert dev("dags", "plan", flow.file, "--rebuild", "none").returncode == 1


async def test_a_version_that_fails_is_exit_code_1_with_its_reason(dev: Dev, flow: Flow) -> None:
    deployed(dev, flow)
    await emitted(dev, flow)
    flow.write("range_size: 10", "range_size: 7")
    done = dev("dags", "deploy", flow.file, "--wait", "--wait-timeout", "1m")
    assert done.returncode == 1
    assert f"Version 2 of {flow.name}: 1 task done, failed.\n" in done.stdout
    assert "error version 2 is failed: a task of tables: " in done.stderr
    failed, _active = dev("dags", "versions", flow.name).stdout.splitlines()[1:]
    assert failed.split()[:3] == ["2", "failed", "1/1"]
    assert "a task of tables: " in failed
    assert dev("dags", "abandon", flow.name, "2").stdout == f"Version 2 of {flow.name} is abandoned.\n"
    assert dev("dags", "abandon", flow.name, "1").returncode == 1


def test_a_terminal_asks_before_it_deploys(dev: Dev, flow: Flow) -> None:
    for answer, code, count in (("n", 1, 0), ("y", 0, 1)):
        terminal = at_terminal(dev, "dags", "deploy", flow.file, COLUMNS="80")
        terminal.read_until("Deploy it?")
        assert f"+ {flow.dataset}" in terminal.plain
        assert "\x1b[32m+ ticks" in terminal.seen
        os.write(terminal.master, f"{answer}\n".encode())
        assert terminal.end() == code, terminal.plain
        found = [one for one in dev.json("dags", "list") if one["name"] == flow.name]
        assert len(found) == count
        assert fits(terminal.plain)
    flow.write("range_size: 10", "range_size: 5")
    terminal = at_terminal(dev, "dags", "deploy", flow.file, "--yes", "--wait")
    assert terminal.end() == 0
    assert "Deploy it?" not in terminal.plain
    assert f"Version 2 of {flow.name}: active." in terminal.plain


def test_a_dag_is_listed_shown_paused_and_retired(dev: Dev, flow: Flow) -> None:
    made = deployed(dev, flow)
    [row] = [line for line in dev("dags", "list").stdout.splitlines() if flow.name in line]
    assert row.split() == [flow.name, "active", "2", flow.dataset, made["id"]]
    shown = dev("dags", "get", flow.name).stdout
    [ticks] = [line for line in shown.splitlines() if line.startswith("ticks")]
    assert ticks.split()[-2:] == ["manual_source", "dispatcher"]
    assert "active version  1" in shown
    assert dev.json("dags", "get", flow.name)["jobs"] == 2
    for verb, state in (("pause", "paused"), ("resume", "resumed"), ("retire", "retired")):
        assert dev("dags", verb, flow.name).stdout == f"{flow.name} is {state}.\n"
    assert "retired" in dev("dags", "get", flow.name).stdout
    for command in ("get", "versions", "rollback", "pause", "retire"):
        assert dev("dags", command, "none").returncode == 1


def test_a_task_of_a_source_is_started_with_what_is_given(dev: Dev, flow: Flow) -> None:
    deployed(dev, flow)
    task = dev.json("dags", "emit", flow.name, "ticks", "--payload", '{"a": 1}', "--cursor", "-5")["task_id"]
    trigger = dev.json("tasks", "get", task)["wire"]["trigger"]
    assert (trigger["payload"], trigger["cursor"]) == ({"a": 1}, -5)
    assert dev("dags", "emit", flow.name, "tables").returncode == 1
    assert dev("dags", "emit", flow.name, "ticks", "--cursor", "1", "--partition", "a").returncode == 1


def test_the_secret_of_a_webhook_is_set_from_a_file_and_never_shown(dev: Dev, flow: Flow) -> None:
    flow.write("operator: manual_source\n    source: {kind: manual}",
               f"operator: webhook_source\n    source: {{kind: webhook, path: {flow.name}}}")  # fmt: skip
    dev("dags", "deploy", flow.file, "--yes", "--wait")
    secret = "whsec_" + "c2VjcmV0" * 4
    (Path(dev.folder) / "secret").write_text(f"{secret}\n")

    set_ = dev("dags", "webhook-secret", flow.name, "ticks", "--file", "secret", "--json")
    removed = dev("dags", "webhook-secret", flow.name, "ticks", "--remove")

    found = json.loads(set_.stdout)
    assert (found["path"], found["previous_ends_at"]) == (f"/hooks/default/{flow.name}", None)
    assert removed.stdout.strip() == f"Requests to /hooks/default/{flow.name} need a key."
    (Path(dev.folder) / "secret").write_text("hunter2")
    wrong = dev("dags", "webhook-secret", flow.name, "ticks", "--file", "secret")
    assert wrong.returncode != 0
    for command in (set_, removed, wrong):
        assert secret not in command.stdout + command.stderr
        assert "hunter2" not in command.stdout + command.stderr


async def test_why_a_partition_is_there_or_not(dev: Dev, flow: Flow) -> None:
    deployed(dev, flow)
    query = ("dags", "why", flow.name, "tables", "--partition", "0-19")
    assert dev(*query).stdout == "waiting_for_input: ticks has not committed 0-19\n"

    await emitted(dev, flow)

    assert dev.json(*query)["because"] in ("committed", "not_owed")
    assert dev("dags", "why", flow.name, "tables").returncode != 0
