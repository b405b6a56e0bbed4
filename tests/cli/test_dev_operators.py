"""Operators in `windlass dev`, and `windlass wrapper` beside it, as processes."""

from __future__ import annotations

import json
import signal
import subprocess
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import SOON_S, WINDLASS, environment, windlass
from tests.cli.conftest import start_dev
from tests.cli.test_dev import ended
from tests.kit.database import temporary_folder

from windlass.api.client import ApiClient

pytestmark = pytest.mark.slow

OPERATORS = """
from math import sqrt


def double(task):
    return 2 * task["config"]["n"]


def _hidden(task):
    return 0
"""


def client_of(places: dict[str, Any]) -> ApiClient:
    return ApiClient(places["api"].removesuffix("/api/v1"), places["key"])


def ended_task(client: ApiClient, kind: str, payload: object) -> dict[str, Any]:
    """A task of the queue of `ecs_platform` jobs, when it has ended."""
    task: dict[str, Any] = client.post("/tasks", {"kind": kind, "queue": "platform", "payload": payload})
    deadline = time.monotonic() + SOON_S
    while task["state"] not in ("succeeded", "failed"):
        assert time.monotonic() < deadline, task
        time.sleep(0.05)
        task = client.get(f"/tasks/{task['id']}")
    return task


def wrapper_file(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / ".windlass/wrapper.toml").read_text())


@contextmanager
def wrapper(folder: Path, *arguments: str) -> Iterator[list[str]]:
    """`windlass wrapper` in a folder, when it is ready. Yields the lines that it has printed."""
    process = subprocess.Popen(
        [str(WINDLASS), "wrapper", *arguments], cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, process.wait(SOON_S)
        yield [line]
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=SOON_S)
    assert process.returncode == 0


def test_dev_runs_the_functions_of_a_module_as_operators_with_nothing_else_to_set_up() -> None:
    with temporary_folder() as folder:
        (folder / "numbers_of.py").write_text(OPERATORS)
        with ended(start_dev(folder, "--json", "--operators", "numbers_of")) as places:
            assert places["operators"] == ["double"]
            assert ended_task(client_of(places), "double", {"n": 21})["result"] == 42


def test_dev_runs_the_operators_of_a_file_which_names_neither_server_nor_certificate() -> None:
    with temporary_folder() as folder:
        (folder / "ops.toml").write_text('[operators.count]\ncommand = ["wc", "-l"]\n')
        with ended(start_dev(folder, "--json", "--operators", "ops.toml")) as places:
            assert places["operators"] == ["count"]
            assert ended_task(client_of(places), "count", {})["state"] == "succeeded"


def test_a_wrapper_in_the_folder_of_dev_finds_it_and_still_does_after_dev_was_started_again() -> None:
    with temporary_folder() as folder:
        (folder / "numbers_of.py").write_text(OPERATORS)
        with ended(start_dev(folder, "--json")) as places:
            address = wrapper_file(folder)["server"]
            assert address == places["internal"]
        with ended(start_dev(folder, "--json")) as places:
            assert places["internal"] == address
            with wrapper(folder, "--operators", "numbers_of") as lines:
                assert json.loads(lines[0])["queues"] == ["platform", "udf"]
                assert ended_task(client_of(places), "double", {"n": 4})["result"] == 8


def test_two_dev_that_are_started_at_once_in_one_folder_have_internal_ports_of_their_own() -> None:
    with temporary_folder() as folder:
        with ended(start_dev(folder, "--json")) as first:
            pass
        processes = [start_dev(folder, "--json") for _ in range(2)]
        with ended(processes[0]) as one, ended(processes[1]) as other:
            ports = {one["internal"], other["internal"]}
            assert len(ports) == 2
            assert first["internal"] in ports


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("nothing", "nothing cannot be imported"),
        ("nothing.toml", "there is no file nothing.toml"),
        ("empty", "empty defines no functions"),
    ],
)
def test_unknown_operators_are_refused_before_anything_is_started(target: str, says: str) -> None:
    with temporary_folder() as folder:
        (folder / "empty.py").write_text("from math import sqrt\n")
        done = windlass("dev", "--operators", target, cwd=folder)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("error operators: ")
        assert says in done.stderr
        assert not (folder / ".windlass").exists()


def test_a_wrapper_alone_says_what_it_needs(tmp_path: Path) -> None:
    (tmp_path / "numbers_of.py").write_text(OPERATORS)
    without = windlass("wrapper", cwd=tmp_path)
    assert (without.returncode, "start `windlass dev` in this folder" in without.stderr) == (2, True)
    operators = windlass("wrapper", "--server", "https://127.0.0.1:1", "-q", "q", "--certificate", "c", "--key", "k",
                         "--ca", "a", cwd=tmp_path)  # fmt: skip
    assert (operators.returncode, "--operators" in operators.stderr) == (2, True)
