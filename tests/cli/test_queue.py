"""Queues, runs and workers through the commands, against a real server with a real worker."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest
from tests.cli.conftest import Dev

from windlass.api.client import ApiClient

pytestmark = pytest.mark.slow


def client(dev: Dev) -> ApiClient:
    return ApiClient(dev.url, dev.places["key"])


def test_limits_are_set_one_by_one_and_taken_away_together(dev: Dev) -> None:
    queue = f"q-{uuid4()}"
    first = dev("queues", "set", queue, "--max-running", "5", "--rate", "10/1m", "--max-running-per-kind", "send=2")
    assert (first.returncode, first.stdout) == (0, f"The queue {queue}: max_running 5, send 2, 10 in 60 s.\n")
    second = dev.json("queues", "set", queue, "--max-running-per-key", "1", "--max-attempts", "9")
    assert second["limits"] == {
        "max_running": 5, "max_running_per_kind": {"send": 2}, "max_running_per_key": 1,
        "rate": {"count": 10, "period_s": 60.0},
    }  # fmt: skip
    assert second["retry"]["max_attempts"] == 9
    cleared = dev("queues", "set", queue, "--clear", "--max-running", "1")
    assert cleared.stdout == f"The queue {queue}: max_running 1.\n"
    assert dev.json("queues", "set", queue)["retry"]["max_attempts"] == 9


def test_wrong_limits_are_wrong_use(dev: Dev) -> None:
    for flags in (("--rate", "often"), ("--max-running-per-kind", "send"), ("--max-running", "many")):
        assert dev("queues", "set", "mail", *flags).returncode == 2


def test_pause_resume_and_drain(dev: Dev) -> None:
    queue = f"q-{uuid4()}"
    dev.submit("later", None, "--queue", queue)
    assert dev("queues", "pause", queue).stdout == f"The queue {queue} is paused.\n"
    (row,) = [line.split() for line in dev("queues", "list").stdout.splitlines() if queue in line]
    assert row[:3] == [queue, "paused", "1"]
    assert dev("queues", "resume", queue).stdout == f"The queue {queue} is resumed.\n"
    drained = dev("queues", "drain", queue, "--wait", "1s")
    assert (drained.returncode, drained.stdout) == (0, f"The queue {queue} is paused; no task is running.\n")


def test_limits_stay_when_a_queue_is_paused(dev: Dev) -> None:
    queue = f"q-{uuid4()}"
    dev("queues", "set", queue, "--max-running", "3")
    dev("queues", "pause", queue)
    set_again = dev.json("queues", "set", queue, "--max-running", "4")
    assert (set_again["paused"], set_again["limits"]["max_running"]) == (True, 4)


def test_a_queue_pushes_and_is_claimed_from_again_and_tells_its_secret(dev: Dev) -> None:
    queue = f"q-{uuid4()}"
    dev("queues", "set", queue, "--max-running", "3")
    pushes = dev(
        "queues", "push", queue, "http://127.0.0.1:9/windlass", "--heartbeat-interval", "5s", "--token-ttl", "2h"
    )
    secret = dev("queues", "secret", queue).stdout.strip()
    assert pushes.stdout == (
        f"The queue {queue} pushes to http://127.0.0.1:9/windlass.\nIts worker needs WINDLASS_SIGNING_SECRET={secret}\n"
    )
    again = dev.json("queues", "push", queue, "http://127.0.0.1:9/other")
    assert (again["delivery"]["url"], again["signing_secret"]) == ("http://127.0.0.1:9/other", secret)
    assert (again["limits"]["max_running"], again["delivery"]["heartbeat_interval_ms"]) == (3, 30_000)
    rotated = dev.json("queues", "secret", queue, "--rotate", "--overlap", "1h")["signing_secret"]
    assert rotated.startswith("whsec_")
    assert rotated != secret
    assert dev("queues", "pull", queue).stdout == f"Workers claim from the queue {queue}.\n"
    assert dev("queues", "secret", queue).returncode == 1
    assert dev("queues", "push", queue, "http://169.254.169.254/x").returncode == 1
    assert dev("queues", "push", queue, "http://127.0.0.1:9/", "--token-ttl", "soon").returncode == 2


def test_a_queue_that_drains_slowly_is_a_failure(dev: Dev) -> None:
    task_id = dev.submit("forever", {})
    while dev.json("tasks", "get", task_id)["state"] != "running":
        pass
    try:
        done = dev("queues", "drain", "default", "--wait", "0.1s")
        assert done.returncode == 1
        assert "1 tasks are still running." in done.stdout
    finally:
        dev("queues", "resume", "default")
        assert dev("tasks", "cancel", task_id).stdout in (
            "Cancellation requested; the task is still running.\n",
            "The task is cancelled.\n",
        )


def test_workers_are_listed_with_what_they_take(dev: Dev) -> None:
    (worker,) = dev.json("workers", "list")
    assert worker["name"] == dev.places["worker"]
    assert set(worker["kinds"]) >= {"greet", "break"}
    shown = dev("workers", "list").stdout.splitlines()
    assert shown[0].split()[:4] == ["name", "pid", "running", "state"]
    assert shown[1].startswith(worker["name"])
    assert dev.json("workers", "list", "--state", "draining") == []
    assert dev.json("workers", "show", worker["id"])["name"] == worker["name"]
    text = dev("workers", "show", worker["id"]).stdout
    assert f"id             {worker['id']}" in text
    assert "concurrency" in text


def submit_run(dev: Dev, *tasks: dict[str, Any]) -> str:
    return str(client(dev).post("/runs", {"tasks": list(tasks)})["id"])


def test_a_run_is_seen_waited_for_and_cancelled_as_one(dev: Dev) -> None:
    name = {"name": "Ada"}
    good = submit_run(
        dev, {"kind": "greet", "name": "a", "payload": name}, {"kind": "greet", "after": ["a"], "payload": name}
    )
    waited = dev("runs", "wait", good, "--timeout", "90s")
    assert (waited.returncode, waited.stdout) == (0, "2 succeeded\n")
    assert dev("runs", "get", good).stdout.splitlines()[0] == f"run {good}: 2 succeeded"
    assert good in dev("runs", "list").stdout

    bad = submit_run(
        dev,
        {"kind": "break", "name": "a", "payload": {"what": "it"}, "max_attempts": 1},
        {"kind": "greet", "after": ["a"]},
    )
    failed = dev("runs", "wait", bad, "--timeout", "90s")
    assert failed.returncode == 1
    assert f"not all tasks of run {bad} succeeded: 1 failed, 1 skipped" in failed.stderr

    stuck = submit_run(dev, {"kind": "nobody-knows-this"}, {"kind": "nobody-knows-this"})
    unfinished = dev("runs", "wait", stuck, "--timeout", "0.1s", "--json")
    assert unfinished.returncode == 1
    assert json.loads(unfinished.stdout)["counts"] == {"queued": 2}
    assert dev("runs", "cancel", stuck).stdout == "Cancellation requested for 2 tasks.\n"


def test_the_lines_that_a_task_logged_are_shown_by_attempt(dev: Dev) -> None:
    task_id = dev.json("submit", "talk", "-p", "{}", "--wait")["id"]
    (line,) = dev.json("tasks", "logs", task_id)["items"]
    assert (line["attempt"], line["message"]) == (1, "one moment")
    assert "1 WARNING one moment" in dev("tasks", "logs", task_id).stdout
    silent = dev.json("submit", "greet", "-p", '{"name": "Ada"}', "--wait")["id"]
    assert dev("tasks", "logs", silent).stdout == "No log lines.\n"
