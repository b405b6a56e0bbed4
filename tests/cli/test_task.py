"""Commands that ask the API, against a real server with a real worker."""

from __future__ import annotations

import json
import re
import stat
import subprocess
import urllib.request
from urllib.error import HTTPError
from uuid import uuid4

import pytest
from tests.cli.command import WINDLASS, environment, windlass
from tests.cli.conftest import Dev

pytestmark = pytest.mark.slow

UUID7 = r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}"


def test_submit_prints_the_id_and_with_wait_the_result(dev: Dev) -> None:
    submitted = dev("submit", "greet", "--payload", '{"name": "Ada"}')
    assert re.fullmatch(UUID7 + "\n", submitted.stdout)

    waited = dev("submit", "greet", "-p", '{"name": "Ada"}', "--wait")
    assert (waited.returncode, waited.stdout) == (0, '"Hello, Ada!"\n')
    assert re.fullmatch(f"submitted {UUID7}\n", waited.stderr)


def test_submit_reads_a_file_and_standard_input(dev: Dev) -> None:
    (dev.folder / "ada.json").write_text('{"name": "Ada"}')
    assert dev("submit", "greet", "-p", "@ada.json", "--wait").stdout == '"Hello, Ada!"\n'
    assert dev("submit", "greet", "-p", "@nothing.json").returncode == 2
    done = subprocess.run(
        [str(WINDLASS), "submit", "greet", "-p", "-", "--wait"], input='{"name": "Bob"}', capture_output=True,
        text=True, check=False, cwd=dev.folder, env=environment(WINDLASS_URL=dev.url),
    )  # fmt: skip
    assert done.stdout == '"Hello, Bob!"\n'


def test_a_task_that_fails_ends_submit_with_code_1_and_says_why(dev: Dev) -> None:
    done = dev("submit", "break", "-p", '{"what": "it"}', "--max-attempts", "1", "--wait")

    assert (done.returncode, done.stdout) == (1, "")
    assert re.search(rf"error task {UUID7} is failed: ValueError: it is broken", done.stderr)

    as_json = dev("submit", "break", "-p", '{"what": "it"}', "--max-attempts", "1", "--wait", "--json")
    assert as_json.returncode == 1
    assert json.loads(as_json.stdout)["error"]["category"] == "USER_CODE"
    assert json.loads(as_json.stderr)["error"]["code"] == "failed"


def test_waiting_has_an_end_when_it_is_asked_for(dev: Dev) -> None:
    done = dev("submit", "nobody-knows-this", "--wait", "--wait-timeout", "100ms")

    assert done.returncode == 1
    assert re.search(rf"error task {UUID7} is queued", done.stderr)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--payload", "{name: Ada}"), "--payload is not JSON"),
        (("--delay", "soon"), "--delay: 'soon' is not a duration"),
        (("--priority", "high"), "--priority"),
    ],
)
def test_what_cannot_be_meant_is_wrong_use(dev: Dev, arguments: tuple[str, ...], says: str) -> None:
    done = dev("submit", "greet", *arguments)

    assert done.returncode == 2
    assert says in done.stderr


def test_what_the_server_refuses_is_told_with_code_1(dev: Dev) -> None:
    done = dev("submit", "greet", "--priority", "1000")

    assert done.returncode == 1
    assert "priority" in done.stderr


def test_options_of_a_submission_reach_the_task(dev: Dev) -> None:
    options = ("--priority", "5", "--delay", "1h", "--key", f"k-{uuid4()}", "--max-attempts", "2", "--timeout", "10m")
    task = dev.json("tasks", "get", dev.submit("later", {"a": 1}, *options, "--queue", "mail"))

    told = {name: task[name] for name in ("queue", "kind", "state", "priority", "max_attempts", "timeout_s", "payload")}
    assert told == {
        "queue": "mail", "kind": "later", "state": "queued", "priority": 5, "max_attempts": 2, "timeout_s": 600.0,
        "payload": {"a": 1},
    }  # fmt: skip


def test_the_same_key_is_the_same_task(dev: Dev) -> None:
    key = f"k-{uuid4()}"
    assert dev.submit("later", None, "--key", key) == dev.submit("later", None, "--key", key)


def test_list_filters_and_is_a_table_for_people(dev: Dev) -> None:
    kind = f"kind-{uuid4()}"
    ids = [dev.submit(kind, n, "--queue", "quiet") for n in range(3)]

    assert [task["id"] for task in dev.json("tasks", "list", "--kind", kind)] == ids[::-1]
    assert [task["id"] for task in dev.json("tasks", "list", "--kind", kind, "--limit", "2")] == ids[:0:-1]
    assert dev.json("tasks", "list", "--kind", kind, "--state", "failed", "-s", "running") == []
    shown = dev("tasks", "list", "--kind", kind).stdout.splitlines()
    assert shown[0].split() == ["id", "state", "kind", "queue", "created", "attempt", "reason"]
    assert shown[1].split()[:4] == [ids[2], "queued", kind, "quiet"]
    assert dev("tasks", "list", "--kind", kind, "--state", "failed").stdout == "There are no such tasks.\n"


def test_get_history_and_why_tell_about_one_task(dev: Dev) -> None:
    task_id = dev.json("submit", "greet", "-p", '{"name": "Ada"}', "--wait")["id"]
    shown = dict(line.split(maxsplit=1) for line in dev("tasks", "get", task_id).stdout.splitlines())
    assert (shown["id"], shown["state"].strip(), shown["result"].strip()) == (task_id, "succeeded", '"Hello, Ada!"')

    history = dev("tasks", "history", task_id).stdout
    assert [line.split()[2] for line in history.splitlines()[1:]] == ["submitted", "1"] or "succeeded" in history

    waiting = dev.submit("nobody-knows-this")
    assert dev("tasks", "why", waiting).stdout.splitlines()[1].startswith("no_capable_worker  no live worker takes")
    assert dev("tasks", "why", task_id).stdout == "Nothing: the task is running or has ended.\n"


def test_cancel_ends_what_waits_and_tells_what_runs(dev: Dev) -> None:
    waiting = dev.submit("nobody-knows-this")
    done = dev("tasks", "cancel", waiting, "--reason", "never mind")
    assert done.stdout == "The task is cancelled.\n"
    assert dev.json("tasks", "get", waiting)["reason"] == "never mind"

    again = dev("tasks", "retry", waiting)
    assert re.fullmatch(rf"Replayed as task {UUID7}\.\n", again.stdout)


def test_replay_counts_first_and_then_does_everything_again_once(dev: Dev) -> None:
    kind = f"kind-{uuid4()}"
    for _ in range(3):
        dev("tasks", "cancel", dev.submit(kind))
    asked = ("tasks", "replay", "--kind", kind, "--state", "cancelled")
    assert dev(*asked, "--dry-run").stdout == "3 tasks would be replayed.\n"
    assert dev(*asked).stdout == "Replayed 3 of 3 tasks.\n"
    assert len(dev.json("tasks", "list", "--kind", kind, "--state", "queued")) == 3


def test_an_unknown_task_is_a_failure_and_a_wrong_key_says_what_to_do(dev: Dev) -> None:
    unknown = dev("tasks", "get", str(uuid4()))
    assert unknown.returncode == 1
    assert unknown.stderr.startswith("error there is no task ")

    for flags in (("--api-key", "nonsense"),):
        refused = dev("tasks", "list", *flags)
        assert refused.returncode == 1
        assert "key" in refused.stderr


def test_no_server_is_exit_code_3() -> None:
    done = windlass("tasks", "list", "--url", "http://127.0.0.1:1", "--json")

    assert (done.returncode, done.stdout) == (3, "")
    assert json.loads(done.stderr)["error"]["code"] == "unreachable"


# ----------------------------------------------------------------------------------------------- keys


def test_keys_are_handed_out_once_and_revoked(dev: Dev) -> None:
    name = f"ci-{uuid4()}"
    secret = dev("keys", "create", name, "--role", "viewer").stdout.strip()
    (key,) = [key for key in dev.json("keys", "list") if key["name"] == name]
    assert secret.startswith(key["hint"])
    assert secret not in dev("keys", "list").stdout

    assert dev("tasks", "list", "--api-key", secret).returncode == 0
    forbidden = dev("submit", "greet", "--api-key", secret)
    assert (forbidden.returncode, forbidden.stdout) == (1, "")
    assert "viewer" in forbidden.stderr

    assert dev("keys", "revoke", key["id"]).stdout == f"The key {name} is revoked.\n"
    assert dev("tasks", "list", "--api-key", secret).returncode == 1


def test_the_key_of_dev_is_kept_where_only_this_user_reads_it(dev: Dev) -> None:
    file = dev.folder / ".windlass/api-key"
    assert file.read_text().strip() == dev.places["key"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    elsewhere = windlass("tasks", "list", "--url", dev.url)
    assert elsewhere.returncode == 1


def test_metrics_are_served_to_who_has_a_key(dev: Dev) -> None:
    dev("submit", "greet", "-p", '{"name": "Ada"}', "--wait")
    request = urllib.request.Request(dev.places["metrics"], headers={"Authorization": f"Bearer {dev.places['key']}"})
    with urllib.request.urlopen(request) as answer:
        text = answer.read().decode()
    assert 'windlass_tasks_total{kind="greet",outcome="succeeded",queue="default"}' in text
    assert "# TYPE windlass_task_start_latency_seconds histogram" in text
    with pytest.raises(HTTPError, match="401"):
        urllib.request.urlopen(dev.places["metrics"])
