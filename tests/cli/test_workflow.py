"""Workflows through the commands: signals, steps, forks, and the check before a deployment."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from tests.cli.conftest import SHOP, Dev

pytestmark = pytest.mark.slow


def until_asleep(dev: Dev, task_id: str) -> None:
    deadline = time.monotonic() + 120
    while dev.json("tasks", "get", task_id)["state"] != "sleeping":
        assert time.monotonic() < deadline


def waiting_order(dev: Dev) -> str:
    task_id = dev.submit("checkout", {"order": "A-17"})
    until_asleep(dev, task_id)
    return task_id


def test_a_signal_wakes_the_workflow_that_waits_for_it(dev: Dev) -> None:
    task_id = waiting_order(dev)
    sent = dev("signals", "send", task_id, "approval", "--payload", "true")
    assert sent.returncode == 0
    assert re.fullmatch(r"Sent\. The workflow is \w+\.\n", sent.stdout)
    assert dev("tasks", "wait", task_id, "--timeout", "90s").stdout == '"receipt of A-17, approved: True"\n'


def test_steps_are_listed_and_a_workflow_is_done_again_from_one(dev: Dev) -> None:
    task_id = waiting_order(dev)
    rows = [line.split() for line in dev("tasks", "steps", task_id).stdout.splitlines()]
    assert rows[0][:4] == ["step", "occurrence", "kind", "state"]
    assert [row[0] for row in rows[1:]] == ["charge", "signal:approval"]
    forked = re.fullmatch(r"Forked as task (\S+)\.\n", dev("tasks", "fork", task_id, "charge").stdout)
    assert forked
    until_asleep(dev, forked[1])
    for each in (task_id, forked[1]):
        dev("signals", "send", each, "approval")
    assert dev("tasks", "fork", task_id, "nothing").returncode == 1


def check(dev: Dev, module: str) -> Any:
    return dev("check", f"{module}:app", "--data-dir", str(dev.folder / ".windlass"))


def test_code_that_no_longer_fits_is_found_before_it_is_deployed(dev: Dev) -> None:
    task_id = waiting_order(dev)
    fits = check(dev, "shop")
    assert (fits.returncode, fits.stdout) == (0, "All unfinished workflows match their code.\n"), fits.stderr
    (dev.folder / "changed.py").write_text(
        SHOP.replace("ctx.step(charge, order)", "ctx.step(charge_twice, order)").replace(
            "async def charge(", "async def charge_twice("
        )
    )
    drifts = check(dev, "changed")
    assert drifts.returncode == 1
    assert f"checkout {task_id} (sleeping)" in drifts.stdout
    assert "charge_twice" in drifts.stdout
    assert drifts.stdout.endswith("1 workflows would be parked.\n")
    dev("tasks", "cancel", task_id)
