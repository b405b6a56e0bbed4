"""The page on wrappers can be followed: its operators, its settings, its commands, on a server with certificates."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.command import SOON_S, environment
from tests.cli.conftest import Dev, start_dev
from tests.kit.database import temporary_folder

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/howto/run-operators.md"
WRAPPER = [sys.executable, "-m", "windlass.wrapper"]


def block(language: str) -> str:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)[0]


@pytest.fixture(scope="module")
def server() -> Iterator[Dev]:
    with temporary_folder() as folder:
        process = start_dev(folder, "--internal", "127.0.0.1:0", "--json")
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line, process.communicate(timeout=SOON_S)
            yield Dev(folder, json.loads(line))
        finally:
            process.terminate()
            process.communicate(timeout=SOON_S)


@pytest.fixture(scope="module")
def config(server: Dev, tmp_path_factory: pytest.TempPathFactory) -> Path:
    code = tmp_path_factory.mktemp("code")
    code.chmod(0o755)  # as root, untrusted operators run as another user
    for folder in (code, server.folder):
        (folder / "operators.py").write_text(block("python"))
    said = (
        block("toml").replace("https://127.0.0.1:8443", str(server.places["internal"])).replace('"shelf"', f'"{code}"')
    )
    file = server.folder / "wrapper.toml"
    file.write_text(said)
    assert server("queues", "wakeup", "words", "--lease", "5s").returncode == 0
    return file


def test_the_page_can_be_followed(server: Dev, config: Path) -> None:
    process = subprocess.Popen(
        [*WRAPPER, config.name, "--command", "nap=sleep 600"],
        cwd=server.folder,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert ready["queues"] == ["words"]
        results = {kind: done(server, kind) for kind in ("count", "longest", "shout")}
        napping = server.submit("nap", None, "--queue", "words")
        until_running(server, napping)
        server("tasks", "cancel", napping)
        server("tasks", "wait", napping)
        napped = server.json("tasks", "get", napping)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=SOON_S)

    assert results["count"] == {"state": "succeeded", "result": 3}
    if ready["isolation"] is None:
        assert results["longest"]["state"] == results["shout"]["state"] == "failed"
    else:
        assert results["longest"] == {"state": "succeeded", "result": "three"}
        assert results["shout"]["result"]["CONFIG"] == {"TEXT": "ONE TWO THREE"}
    assert napped["state"] == "cancelled"
    assert process.returncode == 0


def until_running(server: Dev, task_id: str) -> None:
    until_s = time.monotonic() + SOON_S
    while server.json("tasks", "get", task_id)["state"] != "running":
        assert time.monotonic() < until_s


def done(server: Dev, kind: str) -> dict[str, object]:
    payload = json.dumps({"text": "one two three"})
    told = server("submit", kind, "--queue", "words", "--payload", payload, "--wait", "--json")
    task = json.loads(told.stdout)
    return {"state": task["state"], "result": task["result"]}


def test_the_operators_of_the_examples_are_those_of_the_page() -> None:
    code = (ROOT / "examples/lease_operators.py").read_text()

    assert all(line in code for line in re.findall(r"^    \S.*$", block("python"), re.MULTILINE))


def test_what_would_be_run_is_told_without_running_it(server: Dev, config: Path) -> None:
    checked = subprocess.run(
        [*WRAPPER, config.name, "--check"],
        cwd=server.folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    told = json.loads(checked.stdout)

    assert told["operators"] == ["count", "longest", "shout"]
    assert told["isolation"] in ("namespaces", "landlock", None)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "server: is missing"),
        (["--server", "https://x", "-q", "q"], "certificate: is missing"),
        (["wrapper.toml", "--concurrency", "0"], "concurrency"),
        (["wrapper.toml", "--queue", ""], "queues"),
        (["wrapper.toml", "--function", "x"], "NAME="),
        (["wrapper.toml", "--function", "x=os.path"], "module:function"),
        (["wrapper.toml", "--function", "x=os:nothing"], "nothing"),
        (["wrapper.toml", "--key", "nothing.pem"], "nothing.pem"),
        (["wrapper.toml", "--server", "http://127.0.0.1:1"], "https://"),
        (["nothing.toml"], "nothing.toml"),
    ],
)
def test_wrong_use_is_one_line_and_code_2(server: Dev, config: Path, arguments: list[str], says: str) -> None:
    done = subprocess.run(
        [*WRAPPER, *arguments],
        cwd=server.folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=SOON_S,
        check=False,
    )

    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


def test_the_command_of_windlass_is_the_same(server: Dev, config: Path) -> None:
    told = server("wrapper", "wrapper.toml", "--check")

    assert json.loads(told.stdout)["operators"] == ["count", "longest", "shout"], told.stderr
