"""`windlass dev` and `windlass serve` as processes."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.cli.command import SOON_S, WINDLASS, environment, windlass
from tests.cli.conftest import SHOP, start_dev
from tests.kit.database import temporary_folder
from tests.kit.ports import free_port
from tests.kit.processes import alive

from windlass.api.client import ApiClient

pytestmark = pytest.mark.slow


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    """What it said when it was ready; told to stop in the end, and then it must end well."""
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, process.communicate(timeout=SOON_S)
        yield json.loads(line)
    finally:
        process.terminate()
        said = process.communicate(timeout=SOON_S)
    assert process.returncode == 0, said


def test_dev_uses_the_key_and_the_folder_that_it_is_given_and_says_where_things_are() -> None:
    with temporary_folder() as folder:
        (folder / "shop.py").write_text(SHOP)
        data = folder / "elsewhere"
        dev = start_dev(folder, "shop:app", "--json", "--api-key", "wl_mine", "--data-dir", str(data))
        with ended(dev) as places:
            assert places["key"] == "wl_mine"
            assert str(data).replace("/", "%2F") in places["database"]
            assert urlsplit(places["database"]).password in (None, "***")
            assert places["grpc"].startswith("http://127.0.0.1:")
            client = ApiClient(places["api"].removesuffix("/api/v1"), "wl_mine")
            assert client.get("/tasks")["items"] == []
        assert not (folder / ".windlass").exists()


def test_dev_keeps_its_key_from_one_start_to_the_next() -> None:
    with temporary_folder() as folder:
        keys = []
        for _ in range(2):
            with ended(start_dev(folder, "--json")) as places:
                keys.append(places["key"])
        assert keys[0] == keys[1]
        assert keys[0].startswith("wl_dev_")


@pytest.mark.parametrize("target", ["nothing:app", "shop:nothing", "shop"])
def test_an_app_that_is_not_there_is_said_before_anything_is_started(target: str) -> None:
    with temporary_folder() as folder:
        (folder / "shop.py").write_text(SHOP)
        done = windlass("dev", target, cwd=folder)
        assert done.returncode == 2
        assert done.stderr.startswith("error target: ")
        assert not (folder / ".windlass").exists()


def test_serve_needs_a_database_and_a_schema(bare_database: str) -> None:
    without = windlass("serve")
    assert without.returncode == 2
    assert "serve needs a database" in without.stderr
    bare = windlass("serve", "--database-url", bare_database)
    assert bare.returncode == 1
    assert "run `windlass migrate`" in bare.stderr


def serve(database: str, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    flags = ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--json", "--api-key", "k", "--database-url", database]
    return subprocess.Popen(
        [str(WINDLASS), "serve", *flags, *arguments],
        cwd="/", env=environment(**variables), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_two_servers_share_one_database_and_tell_json_where_they_are(database: str, tmp_path: Path) -> None:
    with ended(serve(database)) as one, ended(serve(database)) as other:
        assert "k" not in (one.get("key"), other.get("key"))
        first, second = (ApiClient(places["api"].removesuffix("/api/v1"), "k") for places in (one, other))
        task = first.post("/tasks", {"kind": "send"})
        assert second.get(f"/tasks/{task['id']}")["kind"] == "send"
        (tmp_path / "shop.py").write_text(SHOP)
        worker = subprocess.Popen(
            [str(WINDLASS), "worker", "shop:app", "--server", other["grpc"], "--api-key", "k"],
            cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            url = one["api"].removesuffix("/api/v1")
            flags = ("--wait", "--url", url, "--api-key", "k")
            done = windlass("submit", "greet", "-p", '{"name": "Ada"}', *flags)
            assert (done.returncode, done.stdout) == (0, '"Hello, Ada!"\n')
        finally:
            worker.terminate()
            worker.communicate(timeout=SOON_S)
        assert worker.returncode == 0


def test_an_address_in_use_is_said(database: str) -> None:
    with ended(serve(database)) as places:
        taken = places["api"].removeprefix("http://").removesuffix("/api/v1")
        done = windlass("serve", "--http", taken, "--grpc", "127.0.0.1:0", "--database-url", database)
        assert done.returncode in (1, 2)
        assert f"cannot listen on {taken}" in done.stderr
        assert "Traceback" not in done.stderr


def test_every_address_in_use_is_named_with_its_flag_before_anything_is_started(tmp_path: Path) -> None:
    with socket.socket() as one, socket.socket() as other:
        for taken in (one, other):
            taken.bind(("127.0.0.1", 0))
            taken.listen()
        first, second = (f"127.0.0.1:{taken.getsockname()[1]}" for taken in (one, other))
        for command in (("dev",), ("serve", "--database-url", "postgresql://nobody@127.0.0.1:1/nothing")):
            done = windlass(*command, "--http", first, "--grpc", second, "--internal", first, cwd=tmp_path)
            assert done.returncode == 2
            for flag, address in [("http", first), ("grpc", second), ("internal", first)]:
                assert f"--{flag} cannot listen on {address}: " in done.stderr, done.stderr
            assert list(tmp_path.iterdir()) == []
    free = f"127.0.0.1:{free_port()}"
    done = windlass("dev", "--http", free, "--grpc", free, cwd=tmp_path)
    assert done.returncode == 2
    assert f"--grpc cannot listen on {free}" in done.stderr
    assert "--http cannot" not in done.stderr


def test_serve_without_any_key_says_how_to_make_the_first_one(database: str) -> None:
    flags = ("--database-url", database)
    refused = windlass("serve", *flags, "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0")
    assert refused.returncode == 2
    assert "`windlass keys bootstrap`" in refused.stderr

    made = windlass("keys", "bootstrap", *flags)
    key = made.stdout.strip()
    assert (made.returncode, key[:3]) == (0, "wl_")
    again = windlass("keys", "bootstrap", *flags)
    assert again.returncode == 2
    assert "--again" in again.stderr
    other = windlass("keys", "bootstrap", "ada", "--again", "--json", *flags)
    assert json.loads(other.stdout)["name"] == "ada"

    process = subprocess.Popen(
        [str(WINDLASS), "serve", *flags, "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--json"],
        cwd="/", env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with ended(process) as places:
        client = ApiClient(places["api"].removesuffix("/api/v1"), key)
        assert [one["role"] for one in client.get("/keys")["items"]] == ["admin", "admin"]


def test_a_data_folder_is_used_even_if_the_environment_names_a_database() -> None:
    with temporary_folder() as folder:
        flags = ("--data-dir", str(folder / "data"))
        made = windlass("keys", "bootstrap", *flags, DATABASE_URL="postgresql://nobody@127.0.0.1:1/nothing")
        assert (made.returncode, made.stdout[:3]) == (0, "wl_"), made.stderr


def test_a_worker_beside_the_database_tells_its_own_metrics(database: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "windlass.toml").write_text('worker_metrics = "127.0.0.1:0"\n')
    with ended(serve(database)) as places:
        worker = subprocess.Popen(
            [str(WINDLASS), "worker", "shop:app", "--database-url", database],
            cwd=tmp_path, env=environment(PYTHONUNBUFFERED="1"), stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert worker.stdout is not None
            while "metrics at " not in (line := worker.stdout.readline()):
                assert line, "the worker has ended"
            flags = ("--wait", "--url", places["api"].removesuffix("/api/v1"), "--api-key", "k")
            assert windlass("submit", "greet", "-p", '{"name": "Ada"}', *flags).returncode == 0
            with urllib.request.urlopen(line.split()[-1]) as answer:
                assert b'windlass_tasks_total{kind="greet",outcome="succeeded",queue="default"} 1.0' in answer.read()
        finally:
            worker.terminate()
            worker.communicate(timeout=SOON_S)
        assert worker.returncode == 0


def test_a_worker_tells_programs_what_it_takes(database: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    worker = subprocess.Popen(
        [str(WINDLASS), "worker", "shop:app", "-q", "mail,default", "-k", "greet", "--json",
         "--database-url", database],
        cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with ended(worker) as said:
        assert said == {"worker": said["worker"], "kinds": ["greet"], "queues": ["mail", "default"]}


def test_dev_runs_the_programs_of_queues_and_takes_them_along() -> None:
    with temporary_folder() as folder:
        with ended(start_dev(folder, "--json")) as places:
            client = ApiClient(places["api"].removesuffix("/api/v1"), places["key"])
            script = {"pid": {"script": "import os; result = os.getpid()"}}
            client.put("/queues/programs", {"delivery": {"type": "stdio", "handlers": script}})
            task = client.post("/tasks", {"kind": "pid", "queue": "programs", "payload": {}})
            deadline = time.monotonic() + SOON_S
            while (seen := client.get(f"/tasks/{task['id']}"))["state"] != "succeeded":
                assert time.monotonic() < deadline, seen
                time.sleep(0.05)
            assert alive(seen["result"])
        assert not alive(seen["result"])
