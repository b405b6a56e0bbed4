"""Queues whose workers are woken, functions that are called, and dead letters, by command."""

from __future__ import annotations

from uuid import uuid4

import pytest
from tests.cli.conftest import Dev

pytestmark = pytest.mark.slow


def test_a_queue_is_told_to_wake_its_workers(dev: Dev) -> None:
    queue = f"q-{uuid4()}"
    said = dev("queues", "wakeup", queue, "--lease", "2m", "--secret", "SHOP_TOKEN", "--secret", "OTHER")
    assert (said.returncode, said.stdout) == (0, f"Workers of the queue {queue} are woken by postgres.\n")
    [known] = [one for one in dev.json("queues", "list") if one["name"] == queue]
    assert known["delivery"]["lease_ms"] == 120_000
    assert known["delivery"]["secrets"] == ["SHOP_TOKEN", "OTHER"]

    task_id = dev.submit("later", None, "--queue", queue)
    why = dev.json("tasks", "why", task_id)
    assert {one["reason"] for one in why["items"]} <= {"announced", "in_line"}


@pytest.mark.parametrize(
    "flags",
    [
        ("--carrier", "pigeon"),
        ("--address", "x"),
        ("--untrusted", "--secret", "TOKEN"),
        ("--lease", "soon"),
    ],
)
def test_what_no_queue_can_have_is_refused(dev: Dev, flags: tuple[str, ...]) -> None:
    assert dev("queues", "wakeup", f"q-{uuid4()}", *flags).returncode in (1, 2)


def test_a_queue_is_told_to_call_a_function(dev: Dev) -> None:
    queue = f"q-{uuid4()}"
    assert dev("queues", "invoke", queue).returncode == 2
    said = dev.json("queues", "invoke", queue, "resize")
    assert said["delivery"] == {
        "type": "invoke", "url": None, "function": "resize", "lease_ms": 900_000, "trusted": True,
    }  # fmt: skip


@pytest.mark.parametrize("command", ["dead-letters", "letters"])
def test_dead_letters_are_managed_by_command(dev: Dev, command: str) -> None:
    assert dev(command, "list", "--queue", f"q-{uuid4()}").stdout == "There are no dead letters.\n"
    assert dev(command, "replay", str(uuid4())).returncode == 1
    assert dev(command, "discard", "nonsense").returncode in (1, 2)
